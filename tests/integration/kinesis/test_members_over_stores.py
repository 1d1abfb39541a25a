"""Members of a group over real stores: sharing, a member that is cut off, the end of all, and a reset."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from headrace.core.lease.actions import Why
from headrace.core.lease.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint
from headrace.core.lease.lease import HashRange, Lease, LeaseKey
from headrace.core.lease.settings import LeaseSettings
from headrace.errors import HeadraceError
from headrace.kinesis.group.member import LeaseMember
from headrace.kinesis.leases.administration import apply, moves, watched
from headrace.kinesis.leases.opening import open_store
from headrace.kinesis.leases.store import LeaseStore
from headrace.testing.kinesis.aws import FakeAws
from tests.integration.kinesis.servers import dummy_aws

STREAM = "orders@1"
SETTINGS = LeaseSettings(
    duration_ms=3_000,
    renew_ms=700,
    margin_ms=300,
    scan_ms=500,
    checkpoint_ms=50,
    retry_ms=100,
    call_timeout_ms=1_500,
)


@dataclass(frozen=True)
class Shard:
    shard: str
    parents: frozenset[str] = frozenset()
    hash_range: HashRange | None = None


class Stream:
    shards = tuple(Shard(f"shardId-{number:012d}") for number in range(6))

    async def list_shards(self) -> tuple[Shard, ...]:
        return self.shards


class Reader:
    """A listener that reads no records, and finishes at once."""

    def __init__(self, store: LeaseStore, group: str) -> None:
        self.store = store
        self.member = LeaseMember(store, group, {STREAM: Stream()}, self, SETTINGS)
        self.began: dict[str, Checkpoint] = {}

    async def assigned(self, lease: Lease) -> None:
        self.began[lease.key.shard] = lease.checkpoint
        self.member.progressed(lease.key)

    async def drain(self, key: LeaseKey, why: Why, deadline_ms: int | None) -> None:
        self.member.drained(key)

    async def restart(self, key: LeaseKey) -> None:
        pass

    async def revoked(self, key: LeaseKey, why: Why) -> None:
        self.began.pop(key.shard, None)

    async def failed(self, error: HeadraceError) -> None:
        raise error

    @property
    def valid(self) -> set[str]:
        held = [lease.key for lease in self.member.held if self.member.valid(lease.key)]
        return {key.shard for key in held if key.shard in self.began}


@pytest.fixture(params=["sqlite", "fake", "dynalite"])
def make_store(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[Callable[[], LeaseStore]]:
    if request.param == "sqlite":
        yield lambda: open_store(f"sqlite:///{tmp_path}/leases.db")
    elif request.param == "dynalite":
        aws = dummy_aws(request.getfixturevalue("dynamodb_url"))
        yield lambda: open_store("dynamodb://leases-of-members", aws)
    else:
        with FakeAws() as fake:
            yield lambda: open_store("dynamodb://leases-of-members", dummy_aws(fake.endpoint_url))


@asynccontextmanager
async def reader(make_store: Callable[[], LeaseStore], group: str) -> AsyncIterator[Reader]:
    store = make_store()
    await store.open()
    found = Reader(store, group)
    await found.member.start()
    try:
        yield found
    finally:
        await found.member.close()
        await store.close()


async def until(condition: Callable[[], bool], what: str) -> None:
    for _ in range(3_000):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"not in time: {what}")


def shares(*readers: Reader) -> list[int]:
    sets = [reader.valid for reader in readers]
    assert sum(map(len, sets)) == len(set().union(*sets)), "a shard has two owners"
    return [len(shards) for shards in sets]


def test_members_share_lose_and_continue_shards(
    make_store: Callable[[], LeaseStore],
) -> None:
    group = f"billing-{uuid4()}"

    async def scenario() -> None:
        async with reader(make_store, group) as one:
            await until(lambda: shares(one) == [6], "one has all")
            async with reader(make_store, group) as other, reader(make_store, group) as third:
                await until(lambda: shares(one, other, third) == [2, 2, 2], "each has its part")
                lease = one.member.held[0]
                await one.member.checkpoint(lease.key, Checkpoint("17"))
                await one.store.close()  # from here on this member is alone
                await until(lambda: one.valid == set(), "who cannot renew stops by itself")
                await until(lambda: shares(other, third) == [3, 3], "its shards are others'")
                reading = {**other.began, **third.began}
                assert reading[lease.key.shard] == Checkpoint("17")
                watch = await watched(other.store, group, STREAM, wait_ms=20_000)
                assert watch.alive == {other.member.owner, third.member.owner}
        await move(make_store, group)
        async with reader(make_store, group) as again:
            await until(lambda: shares(again) == [5], "all but the one that has ended")
            assert set(again.began.values()) == {Checkpoint("5")}

    asyncio.run(scenario())


async def move(make_store: Callable[[], LeaseStore], group: str) -> None:
    store = make_store()
    await store.open()
    watch = await watched(store, group, STREAM, wait_ms=20_000)
    assert not watch.alive  # closed members own no lease
    assert {lease.owner for lease in watch.leases} == {None}
    found = moves(group, STREAM, watch.leases, Stream.shards, Checkpoint("5"), keep_ended=False)
    assert await apply(store, found) == []
    first = (await store.leases(group, STREAM))[0]
    assert await store.reset(first, SHARD_END)
    assert TRIM_HORIZON not in {lease.checkpoint for lease in await store.leases(group, STREAM)}
    await store.close()
