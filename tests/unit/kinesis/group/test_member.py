"""Members over leases in memory, on an event loop whose clock moves to the next timer."""

from __future__ import annotations

import asyncio
import math
import random
import selectors
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from headrace.core.lease.actions import ListedShard, Why
from headrace.core.lease.checkpoint import SHARD_END, Checkpoint
from headrace.core.lease.lease import HashRange, Lease, LeaseKey
from headrace.core.lease.settings import LeaseSettings
from headrace.errors import HeadraceError, LeaseLostError, LeaseStoreError, StreamNotFoundError
from headrace.kinesis.group.member import WRITES_AT_ONCE, LeaseMember, monotonic_ms
from headrace.kinesis.leases.memory import MemoryLeaseStore

STREAM = "orders@1"


class LeapingLoop(asyncio.SelectorEventLoop):
    """An event loop that does not sleep: if no callback is ready, the clock moves to the next timer."""

    def __init__(self) -> None:
        self.now_ms = -5000
        super().__init__(_Leaping(self))

    def time(self) -> float:
        return self.now_ms / 1000


class _Leaping(selectors.SelectSelector):
    def __init__(self, loop: LeapingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits, and nothing will ever happen"
        self._loop.now_ms += math.ceil(timeout * 1000)
        return super().select(0)


@dataclass(frozen=True)
class Listed:
    shard: str
    parents: frozenset[str] = frozenset()
    hash_range: HashRange | None = None


class Lister:
    def __init__(self, *shards: str) -> None:
        self.shards: list[ListedShard] = [Listed(shard) for shard in shards]
        self.error: HeadraceError | None = None

    async def list_shards(self) -> Sequence[ListedShard]:
        if self.error is not None:
            raise self.error
        return self.shards


class Store(MemoryLeaseStore):
    """A lease store that can stop answering, and counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.is_silent = False
        self.is_hanging = False
        self.bug: Exception | None = None

    async def leases(self, group: str, stream: str) -> list[Lease]:
        if self.bug is not None:
            raise self.bug
        return await super().leases(group, stream)

    async def renew(self, *arguments: Any, **named: Any) -> Lease | None:
        await self._fail()
        return await super().renew(*arguments, **named)

    async def _fail(self) -> None:
        if self.is_hanging:
            await asyncio.sleep(10**6)
        if self.is_silent:
            raise LeaseStoreError("no server is there")


class Team:
    """A member and its readers, which drain at once when the member requests it."""

    def __init__(
        self, store: Store, lister: Lister, loop: LeapingLoop, seed: int = 1, **settings: Any
    ) -> None:
        self.notified: list[str] = []
        self.errors: list[HeadraceError] = []
        self.finished: dict[LeaseKey, Checkpoint] = {}
        self.is_slow = False
        self.member = LeaseMember(
            store,
            "g",
            {STREAM: lister},
            self,
            LeaseSettings(**settings),
            clock=lambda: loop.now_ms,
            wall_clock=lambda: loop.now_ms,
            chance=random.Random(seed),
        )

    async def assigned(self, lease: Lease) -> None:
        if self.is_slow:
            await asyncio.sleep(60)
        self.notified.append(f"assigned {lease.key.shard} {lease.checkpoint.position}")

    async def drain(self, key: LeaseKey, why: Why, deadline_ms: int | None) -> None:
        self.notified.append(f"drain {key.shard} {why}")
        self.member.drained(key, self.finished.get(key))

    async def restart(self, key: LeaseKey) -> None:
        self.notified.append(f"restart {key.shard}")

    async def revoked(self, key: LeaseKey, why: Why) -> None:
        self.notified.append(f"revoked {key.shard} {why}")

    async def failed(self, error: HeadraceError) -> None:
        self.errors.append(error)

    @property
    def shards(self) -> list[str]:
        return sorted(lease.key.shard for lease in self.member.held)


def key(shard: str) -> LeaseKey:
    return LeaseKey("g", STREAM, shard)


async def until(condition: Callable[[], object], seconds: int = 300) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the time of this loop costs nothing
            await asyncio.sleep(0.1)


Told = Callable[[Store, Lister, LeapingLoop], Coroutine[Any, Any, None]]


def simulate(scenario: Told, *shards: str) -> None:
    loop = LeapingLoop()
    try:
        loop.run_until_complete(scenario(Store(), Lister(*shards), loop))
        assert not asyncio.all_tasks(loop)
    finally:
        loop.close()


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="of Linux")
def test_the_lease_clock_advances_while_the_machine_is_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def clock(which: int) -> int:
        slept_s = 3600 if which == time.CLOCK_BOOTTIME else 0
        return (100 + slept_s) * 1_000_000_000

    monkeypatch.setattr(time, "clock_gettime_ns", clock)
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock(time.CLOCK_MONOTONIC))
    assert monotonic_ms() == 3_700_000


def test_members_share_shards_and_hand_them_over_without_a_gap() -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        one, two = Team(store, lister, loop), Team(store, lister, loop, 2)
        await one.member.start()
        await until(lambda: one.shards == ["a", "b"])
        for shard, position in (("a", "7"), ("b", "9")):
            one.finished[key(shard)] = Checkpoint(position)
        await two.member.start()
        await until(lambda: two.shards)
        (moved,) = two.shards
        assert two.notified == [f"assigned {moved} {one.finished[key(moved)].position}"]
        assert one.notified[-2:] == [f"drain {moved} handover", f"revoked {moved} handover"]
        await one.member.close()
        assert one.shards == []
        await until(lambda: two.shards == ["a", "b"])
        await two.member.close()
        assert {lease.owner for lease in await store.leases("g", STREAM)} == {None}

    simulate(scenario, "a", "b")


def test_other_members_own_the_shards_beyond_a_members_limit() -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        bound = Team(store, lister, loop, max_shards=1)
        await bound.member.start()
        await until(lambda: bound.shards)
        await asyncio.sleep(100)
        assert len(bound.shards) == 1
        other = Team(store, lister, loop, 2)
        await other.member.start()
        await until(lambda: len(other.shards) == 4, 15)
        await other.member.close()
        await asyncio.sleep(100)
        assert len(bound.shards) == 1
        await bound.member.close()

    simulate(scenario, *"abcde")


def test_checkpoint_returns_after_the_write() -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        team = Team(store, lister, loop)
        await team.member.start()
        await until(lambda: team.shards)
        for position in ("9", "10", "10"):
            await team.member.checkpoint(key("a"), Checkpoint(position))
            (lease,) = await store.leases("g", STREAM)
            assert lease.checkpoint == Checkpoint(position)
        last = asyncio.create_task(team.member.checkpoint(key("a"), Checkpoint("11")))
        await asyncio.sleep(0)
        # The checkpoint is written together with the release of the lease.
        await team.member.close()
        await last
        with pytest.raises(LeaseLostError, match="orders@1/a"):
            await team.member.checkpoint(key("a"), Checkpoint("12"))

    simulate(scenario, "a")


@pytest.mark.parametrize("fault", ["is_silent", "is_hanging"])
def test_a_member_that_cannot_renew_stops_in_time_and_starts_again(fault: str) -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        team = Team(store, lister, loop)
        await team.member.start()
        await until(lambda: team.shards)
        taken_ms = loop.now_ms
        setattr(store, fault, True)
        await until(lambda: not team.member.valid(key("a")))
        assert loop.now_ms <= taken_ms + 27_100
        message = (
            "no server is there"
            if fault == "is_silent"
            else "the lease store did not answer within 5 s"
        )
        assert message in (team.member.trouble or "")
        await until(lambda: "revoked a lost" in team.notified)
        setattr(store, fault, False)
        await until(lambda: team.member.valid(key("a")))
        assert team.notified[-1] == "assigned a TRIM_HORIZON"
        await team.member.close()

    simulate(scenario, "a")


def test_notifications_of_a_shard_do_not_overlap() -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        team = Team(store, lister, loop)
        team.is_slow = True
        await team.member.start()
        await until(lambda: team.shards)
        await team.member.close()
        assert team.notified == [
            "assigned a TRIM_HORIZON",
            "drain a shutdown",
            "revoked a shutdown",
        ]

    simulate(scenario, "a")


def test_the_children_are_read_after_the_end_of_a_shard() -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        team = Team(store, lister, loop)
        await team.member.start()
        await until(lambda: team.shards)
        began_ms = loop.now_ms
        lister.shards += [Listed("b", frozenset("a")), Listed("c", frozenset("a"))]
        team.member.ended(key("a"))
        await until(lambda: team.shards == ["b", "c"])
        assert loop.now_ms < began_ms + 1000  # before the next scan
        assert (await store.leases("g", STREAM))[0].checkpoint == SHARD_END
        await team.member.close()

    simulate(scenario, "a")


def test_a_deleted_stream_is_reported_once() -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        lister.error = StreamNotFoundError("there is no stream orders")
        team = Team(store, lister, loop)
        await team.member.start()
        await until(lambda: team.errors)
        await asyncio.sleep(100)
        assert team.errors == [lister.error]
        await team.member.close()

    simulate(scenario, "a")


def test_a_request_is_repeated_after_an_unknown_exception_of_the_store() -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        store.bug = ValueError("an unknown bug")
        team = Team(store, lister, loop)
        await team.member.start()
        await asyncio.sleep(10)
        store.bug = None
        await until(lambda: team.shards)
        await team.member.close()

    simulate(scenario, "a")


def test_a_member_that_was_never_started_closes() -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        await Team(store, lister, loop).member.close()

    simulate(scenario, "a")


def test_a_cancelled_close_leaves_no_task() -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        team = Team(store, lister, loop)
        await team.member.start()
        await until(lambda: team.shards)
        team.drain = lambda *_: asyncio.sleep(10**6)  # type: ignore[method-assign]  # it never finishes
        closing = asyncio.create_task(team.member.close())
        await asyncio.sleep(1)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        assert not team.member._notifiers
        assert len(asyncio.all_tasks()) == 1

    simulate(scenario, "a")


def test_reports_after_the_close_send_no_request() -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        team = Team(store, lister, loop)
        await team.member.start()
        await until(lambda: team.shards)
        team.drain = lambda *_: asyncio.sleep(10**6)  # type: ignore[method-assign]  # it never finishes
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await team.member.close()
        team.member.drained(key("a"))
        assert len(asyncio.all_tasks()) == 1
        with pytest.raises(LeaseLostError):
            await team.member.checkpoint(key("a"), Checkpoint("9"))

    simulate(scenario, "a")


def test_a_cancelled_checkpoint_does_not_block_the_lease_transfer() -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        team = Team(store, lister, loop)
        await team.member.start()
        await until(lambda: team.shards)
        began_ms = loop.now_ms
        give = store.give

        async def slowly(*arguments: Any, **named: Any) -> bool:
            await asyncio.sleep(0.5)
            return await give(*arguments, **named)

        store.give = slowly  # type: ignore[method-assign]  # so that there is time to cancel
        await team.member.checkpoint(key("a"), Checkpoint("9"))
        waiting = asyncio.create_task(team.member.checkpoint(key("a"), Checkpoint("10")))
        await asyncio.sleep(0)
        closing = asyncio.create_task(team.member.close())
        await asyncio.sleep(0.2)
        waiting.cancel()
        await closing
        assert loop.now_ms < began_ms + 2000
        assert (await store.leases("g", STREAM))[0].checkpoint == Checkpoint("10")

    simulate(scenario, "a")


def test_the_requests_of_many_shards_are_sent_in_turn() -> None:
    async def scenario(store: Store, lister: Lister, loop: LeapingLoop) -> None:
        at_once, most = 0, 0

        async def slowly() -> None:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.05)
            at_once -= 1

        store._fail = slowly  # type: ignore[method-assign]  # before each renewal
        team = Team(store, lister, loop)
        await team.member.start()
        await until(lambda: len(team.shards) == 80)
        await asyncio.sleep(30)
        assert len(team.shards) == 80
        assert most == WRITES_AT_ONCE
        await team.member.close()

    simulate(scenario, *(f"{number:03}" for number in range(80)))
