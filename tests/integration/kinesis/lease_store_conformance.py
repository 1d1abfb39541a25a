"""Checks for every lease store. Each check gets a function that opens stores over the same rows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final
from uuid import uuid4

import pytest

from headrace.core.lease.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint, at_timestamp
from headrace.core.lease.lease import HashRange, Lease, LeaseKey
from headrace.errors import ConfigError, LeaseStoreError
from headrace.kinesis.leases.store import LeaseStore

MakeStore = Callable[[], LeaseStore]
Check = Callable[[MakeStore], Coroutine[Any, Any, None]]

LONG = "49590338271490256608559692538361571095921575989136588898"
"""A sequence number in the form of AWS: 56 digits, more than a number of DynamoDB has."""


@asynccontextmanager
async def opened(make: MakeStore) -> AsyncIterator[LeaseStore]:
    store = make()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def new_lease(
    group: str | None = None, shard: str = "shardId-000000000000", **given: object
) -> Lease:
    key = LeaseKey(group or f"group-{uuid4()}", "orders@1700000000", shard)
    return replace(Lease(key=key, checkpoint=TRIM_HORIZON), **given)  # type: ignore[arg-type] # of fields


async def created(store: LeaseStore, **given: object) -> Lease:
    lease = new_lease(**given)  # type: ignore[arg-type] # of fields
    assert await store.create(lease)
    return lease


async def read(store: LeaseStore, lease: Lease) -> Lease:
    (row,) = [
        row for row in await store.leases(lease.key.group, lease.key.stream) if row.key == lease.key
    ]
    return row


async def taken(store: LeaseStore, owner: str = "a", **given: object) -> Lease:
    row = await store.take(await created(store, **given), owner)
    assert row is not None
    return row


async def all_of_a_lease_is_kept(make: MakeStore) -> None:
    lease = new_lease(
        checkpoint=Checkpoint(LONG, 7),
        owner="a",
        epoch=3,
        beat=4,
        parents=frozenset({"shardId-000000000001", "shardId-000000000002"}),
        next_owner="b",
        hash_range=HashRange(2**127, 2**128 - 1),
        bytes_per_s=1234.5,
        switches=2,
    )
    plain = new_lease(
        lease.key.group, "shardId-000000000009", checkpoint=at_timestamp(1_700_000_000_123)
    )
    async with opened(make) as store:
        assert await store.create(lease)
        assert await store.create(plain)
        assert await store.leases(lease.key.group, lease.key.stream) == [lease, plain]
    async with opened(make) as store:
        assert await store.leases(lease.key.group, lease.key.stream) == [lease, plain]


async def a_lease_that_is_there_is_not_created_again(make: MakeStore) -> None:
    async with opened(make) as store:
        lease = await created(store)
        row = await store.take(lease, "a")
        assert not await store.create(lease)
        assert await read(store, lease) == row
        assert await store.leases(lease.key.group, "orders@1700000001") == []


async def one_of_many_creates_it(make: MakeStore) -> None:
    lease = new_lease()
    async with opened(make) as one, opened(make) as other:
        results = await asyncio.gather(*(store.create(lease) for store in [one, other] * 10))
        assert sum(results) == 1


async def one_of_fifty_takes_it(make: MakeStore) -> None:
    async with opened(make) as one, opened(make) as other:
        lease = await created(one)
        owners = [f"owner-{number}" for number in range(50)]
        results = await asyncio.gather(
            *(
                store.take(lease, owner)
                for store, owner in zip([one, other] * 25, owners, strict=True)
            )
        )
        (winner,) = [row for row in results if row is not None]
        assert (winner.epoch, winner.beat, winner.switches) == (1, 1, 1)
        assert await read(one, lease) == winner


async def a_take_needs_epoch_and_beat_as_seen(make: MakeStore) -> None:
    async with opened(make) as store:
        row = await taken(store, "a")
        assert await store.take(replace(row, beat=0), "b") is None
        assert await store.take(replace(row, epoch=0), "b") is None
        assert await store.take(replace(row, key=row.key._replace(shard="none")), "b") is None
        assert await store.ask(row, "c")
        after = await store.take(row, "b")
        assert after == replace(row, owner="b", epoch=2, beat=2, switches=2, next_owner=None)


async def a_repeated_take_finds_its_own_write(make: MakeStore) -> None:
    async with opened(make) as store:
        lease = await created(store)
        first = await store.take(lease, "a")
        again = await store.take(lease, "a")
        assert first is not None
        assert again == replace(first, beat=first.beat + 1)
        assert await read(store, lease) == again


async def a_renewal_needs_owner_and_epoch(make: MakeStore) -> None:
    async with opened(make) as store:
        row = await taken(store, "a")
        renewed = await store.renew(row.key, "a", 1, 2, bytes_per_s=10.5)
        assert renewed == replace(row, beat=2, bytes_per_s=10.5)
        assert await store.renew(row.key, "a", 1, 7) == replace(row, beat=7, bytes_per_s=10.5)
        assert await store.renew(row.key, "a", 0, 8) is None
        assert await store.renew(row.key, "a", 2, 8) is None
        assert await store.renew(row.key, "b", 1, 8) is None
        assert await store.renew(row.key._replace(shard="none"), "a", 1, 8) is None
        assert len(await store.leases(*row.key[:2])) == 1
        assert (await read(store, row)).beat == 7


async def a_renewal_that_comes_late_or_again_does_nothing(make: MakeStore) -> None:
    async with opened(make) as store:
        row = await taken(store, "a")
        now = await store.renew(row.key, "a", 1, 5, checkpoint=Checkpoint("9"), bytes_per_s=2.0)
        assert now is not None
        for late in (4, 5):  # the answer is the present row
            assert now == await store.renew(
                row.key, "a", 1, late, checkpoint=Checkpoint("8"), bytes_per_s=1.0
            )
        late_take = replace(row, owner=None, epoch=0, beat=0)
        assert await store.take(late_take, "a") is None
        assert await read(store, row) == now


async def of_writes_that_race_the_last_one_counts(make: MakeStore) -> None:
    async with opened(make) as store:
        row = await taken(store, "a")
        results = await asyncio.gather(
            *(
                store.renew(row.key, "a", 1, beat, checkpoint=Checkpoint(str(beat)))
                for beat in range(2, 12)
            )
        )
        assert None not in results
        after = await read(store, row)
        assert (after.beat, after.checkpoint) == (11, Checkpoint("11"))


async def a_checkpoint_is_a_renewal(make: MakeStore) -> None:
    async with opened(make) as store:
        row = await taken(store, "a")
        after = await store.renew(
            row.key, "a", 1, 2, checkpoint=Checkpoint(LONG, 3), bytes_per_s=5.0
        )
        assert after == replace(
            row, checkpoint=Checkpoint(LONG, 3), beat=2, switches=0, bytes_per_s=5.0
        )
        after = await store.renew(row.key, "a", 1, 3, checkpoint=Checkpoint(LONG))
        assert after is not None
        assert after.checkpoint == Checkpoint(LONG)
        assert await read(store, row) == after


async def who_was_shut_out_writes_nothing(make: MakeStore) -> None:
    async with opened(make) as store:
        row = await taken(store, "a")
        now = await store.take(row, "b")
        assert await store.renew(row.key, "a", 1, 9, checkpoint=Checkpoint("9")) is None
        assert await store.renew(row.key, "a", 2, 9, checkpoint=Checkpoint("9")) is None
        assert not await store.give(row.key, "a", 1, to="c", checkpoint=Checkpoint("9"))
        assert await store.renew(row.key, "a", 1, 9) is None
        assert await read(store, row) == now


async def one_asks_at_a_time(make: MakeStore) -> None:
    async with opened(make) as store:
        row = await taken(store, "a")
        renewed = await store.renew(row.key, "a", 1, 2)
        assert renewed is not None
        assert await store.ask(row, "b")
        assert await store.ask(row, "b")
        assert not await store.ask(row, "c")
        assert not await store.ask(replace(row, epoch=0), "b")
        assert not await store.ask(replace(row, key=row.key._replace(shard="none")), "b")
        reply = await store.renew(row.key, "a", 1, 3)
        assert reply == replace(renewed, beat=3, next_owner="b")


async def a_lease_is_given_with_its_checkpoint(make: MakeStore) -> None:
    async with opened(make) as store:
        row = await taken(store, "a")
        await store.ask(row, "b")
        for _ in range(2):
            assert await store.give(row.key, "a", 1, to="b", checkpoint=Checkpoint("5"))
        given = await read(store, row)
        assert given == replace(
            row, owner=None, next_owner="b", epoch=2, checkpoint=Checkpoint("5"), switches=0
        )
        now = await store.take(given, "b")
        assert now == replace(
            given, owner="b", next_owner=None, epoch=3, beat=row.beat + 1, switches=1
        )
        for _ in range(2):
            assert await store.give(row.key, "b", 3, to=None, checkpoint=None)
        free = await read(store, row)
        assert free == replace(now, owner=None, epoch=4)
        assert not await store.give(row.key, "a", 1, to="b", checkpoint=Checkpoint("6"))
        assert not await store.give(
            row.key._replace(shard="none"), "a", 1, to=None, checkpoint=None
        )


async def an_end_is_given_back(make: MakeStore) -> None:
    async with opened(make) as store:
        row = await taken(store, "a", checkpoint=Checkpoint(LONG, 4))
        assert await store.give(row.key, "a", 1, to=None, checkpoint=SHARD_END)
        after = await read(store, row)
        assert (after.checkpoint, after.owner, after.epoch) == (SHARD_END, None, 2)


async def an_administrator_moves_a_lease(make: MakeStore) -> None:
    async with opened(make) as store:
        row = await taken(store, "a", checkpoint=Checkpoint(LONG, 4))
        await store.ask(row, "b")
        assert await store.reset(replace(row, beat=0), TRIM_HORIZON) is None
        assert await store.reset(replace(row, epoch=0), TRIM_HORIZON) is None
        after = await store.reset(row, TRIM_HORIZON)
        for repeated in (after, await store.reset(row, TRIM_HORIZON)):
            assert repeated == replace(
                row, owner=None, epoch=2, switches=0, checkpoint=TRIM_HORIZON
            )
        assert await store.renew(row.key, "a", 1, 9, checkpoint=Checkpoint("9")) is None
        assert await read(store, row) == after


async def a_lease_is_deleted_as_seen(make: MakeStore) -> None:
    async with opened(make) as store:
        row = await taken(store, "a")
        assert not await store.delete(replace(row, epoch=0))
        assert await read(store, row) == row
        assert await store.delete(row)
        assert await store.delete(row)
        assert await store.leases(*row.key[:2]) == []
        assert await store.renew(row.key, "a", 1, 9) is None
        assert await store.leases(*row.key[:2]) == []


async def groups_and_streams_are_listed(make: MakeStore) -> None:
    name = f"group-{uuid4()}"
    keys = [(name + "#x", "orders@1"), (name, "x@1"), (name, "orders@1"), (name, "orders@2")]
    async with opened(make) as store:
        for group, stream in keys:
            assert await store.create(
                Lease(key=LeaseKey(group, stream, "s"), checkpoint=TRIM_HORIZON)
            )
        await store.record_once(f"{name}/x", "round", "1")
        found = [pair for pair in await store.streams() if pair[0].startswith(name)]
        assert found == sorted(keys)
        (row,) = await store.leases(name + "#x", "orders@1")
        assert row.key == LeaseKey(name + "#x", "orders@1", "s")


async def more_than_a_page_is_read(make: MakeStore) -> None:
    """DynamoDB's pages end at a megabyte."""
    parents = frozenset(f"shardId-{number:012d}" for number in range(4000))
    first = new_lease(parents=parents)
    async with opened(make) as store:
        keys = [first.key._replace(shard=f"shardId-{number:012d}") for number in range(16)]
        for key in keys:
            assert await store.create(replace(first, key=key))
        rows = await store.leases(*first.key[:2])
        assert [row.key for row in rows] == keys
        assert all(row.parents == parents for row in rows)
        assert first.key[:2] in await store.streams()


async def a_value_is_recorded_once(make: MakeStore) -> None:
    scope = f"spark/{uuid4()}#1"
    async with opened(make) as one, opened(make) as other:
        written = await asyncio.gather(
            *(
                store.record_once(scope, "0/shardId-1", f"value {number}")
                for number, store in enumerate([one, other] * 5)
            )
        )
        assert len(set(written)) == 1
        assert await other.record_once(scope, "1/shardId-1", "{}") == "{}"
        assert await one.recorded(scope) == {"0/shardId-1": written[0], "1/shardId-1": "{}"}
        assert await one.recorded(scope + "2") == {}


async def values_are_forgotten(make: MakeStore) -> None:
    scope = f"spark/{uuid4()}"
    value = "x" * 100_000
    names = [f"{number:03d}" for number in range(25)]
    async with opened(make) as store:
        for name in names:
            await store.record_once(scope, name, value)
        assert await store.recorded(scope) == dict.fromkeys(names, value)
        await store.forget(scope, [*names[1:], "none"])
        await store.forget(scope, [])
        assert await store.recorded(scope) == {"000": value}
        assert await store.record_once(scope, "001", "new") == "new"


async def names_that_no_row_can_have_are_refused(make: MakeStore) -> None:
    good = new_lease()
    async with opened(make) as store:
        for bad in (
            good.key._replace(group=""),
            good.key._replace(group="x" * 513),
            good.key._replace(group="tab\t"),
            good.key._replace(stream="orders#1"),
            good.key._replace(stream=""),
            good.key._replace(shard=""),
            good.key._replace(shard="x" * 201),
        ):
            with pytest.raises(ConfigError, match="cannot name a"):
                await store.create(replace(good, key=bad))
        with pytest.raises(ConfigError, match="cannot name a scope"):
            await store.record_once("", "name", "value")
        assert await store.create(replace(good, key=good.key._replace(group="Größe # 1")))


async def a_closed_store_says_so(make: MakeStore) -> None:
    store = make()
    with pytest.raises(LeaseStoreError, match=r"not open|closed"):
        await store.leases("group", "orders@1")
    await store.open()
    await store.open()
    await store.close()
    await store.close()
    with pytest.raises(LeaseStoreError, match=r"not open|closed"):
        await store.leases("group", "orders@1")


CHECKS: Final[tuple[Check, ...]] = (
    all_of_a_lease_is_kept,
    a_lease_that_is_there_is_not_created_again,
    one_of_many_creates_it,
    one_of_fifty_takes_it,
    a_take_needs_epoch_and_beat_as_seen,
    a_repeated_take_finds_its_own_write,
    a_renewal_needs_owner_and_epoch,
    a_renewal_that_comes_late_or_again_does_nothing,
    of_writes_that_race_the_last_one_counts,
    a_checkpoint_is_a_renewal,
    who_was_shut_out_writes_nothing,
    one_asks_at_a_time,
    a_lease_is_given_with_its_checkpoint,
    an_end_is_given_back,
    an_administrator_moves_a_lease,
    a_lease_is_deleted_as_seen,
    groups_and_streams_are_listed,
    more_than_a_page_is_read,
    a_value_is_recorded_once,
    values_are_forgotten,
    names_that_no_row_can_have_are_refused,
    a_closed_store_says_so,
)
