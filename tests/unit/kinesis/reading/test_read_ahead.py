"""Reading ahead of several shards: the budget, the turns of shards, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from headrace.errors import KinesisError
from headrace.kinesis.reading.budget import Budget
from headrace.kinesis.reading.prefetch import ReadAhead
from headrace.kinesis.reading.reader import Fetched, ReadCounts
from headrace.kinesis.reading.records import KinesisRecord
from headrace.kinesis.reading.settings import ReadSettings


def record(shard: str, number: int, size: int = 100) -> KinesisRecord:
    is_last = True
    return KinesisRecord("orders", shard, str(number), None, is_last, "key", None, bytes(size), 0)


class ListReader:
    """Returns its records one at a time, and counts its calls."""

    def __init__(self, records: list[KinesisRecord], *, ends: bool = False) -> None:
        self.records = records
        self.ends = ends
        self.fetches = 0
        self.restarts = 0
        self.closed = False
        self.counts = ReadCounts()
        self.spaces: list[int] = []

    async def fetch(self, space: Callable[[], int] | None = None) -> Fetched:
        self.fetches += 1
        assert space is not None
        self.spaces.append(space())
        await asyncio.sleep(0)
        if not self.records and not self.ends:
            await asyncio.Event().wait()
        given_ = [self.records.pop(0)] if self.records else []
        size = sum(len(each.data) for each in given_)
        return Fetched(
            records=given_, size_bytes=size, ended=self.ends and not self.records, behind_ms=7
        )

    def restart(self) -> None:
        self.restarts += 1

    async def aclose(self) -> None:
        self.closed = True


def records_of(shard: str, count: int, size: int = 100) -> list[KinesisRecord]:
    return [record(shard, number, size) for number in range(count)]


def run(scenario: Callable[[ReadAhead[str]], Awaitable[None]], **changes: Any) -> None:
    async def whole() -> None:
        ahead: ReadAhead[str] = ReadAhead(ReadSettings(**changes))
        try:
            await scenario(ahead)
        finally:
            await ahead.aclose()

    asyncio.run(whole())


async def settled() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


def test_a_full_queue_stops_reading_and_drops_no_record() -> None:
    async def scenario(ahead: ReadAhead[str]) -> None:
        reader = ListReader(records_of("a", 100), ends=True)
        ahead.add("a", reader)
        await settled()
        assert reader.fetches < 15
        assert ahead.held_bytes <= 4_000
        got: list[KinesisRecord] = []
        last = Fetched()
        while len(got) < 100:
            arrival = await ahead.next(5_000)
            assert arrival is not None
            last = arrival.fetched
            got += last.records
        assert got == records_of("a", 100)
        assert last.ended
        assert ahead.held_bytes == 0
        assert ahead.behind_ms("a") == 7

    run(scenario, shard_bytes=4_000)


def test_a_shard_whose_records_are_not_taken_does_not_starve_the_others() -> None:
    async def scenario(ahead: ReadAhead[str]) -> None:
        stuck = ListReader(records_of("stuck", 10_000, 1_000))
        ahead.add("stuck", stuck)
        ahead.pause("stuck")
        await settled()
        read_alone = stuck.fetches
        live = ListReader(records_of("live", 100, 1_000))
        ahead.add("live", live)
        for number in range(100):
            arrival = await ahead.next(5_000)
            assert arrival is not None
            assert arrival.fetched.records == [record("live", number, 1_000)]
        assert stuck.fetches <= read_alone + 1
        ahead.resume("stuck")
        arrival = await ahead.next(5_000)
        assert arrival is not None
        assert arrival.fetched.records == [record("stuck", 0, 1_000)]

    run(scenario, shard_bytes=100_000, worker_bytes=60_000)


def test_shards_are_served_in_turn() -> None:
    async def scenario(ahead: ReadAhead[str]) -> None:
        for shard in "abc":
            ahead.add(shard, ListReader(records_of(shard, 5)))
        await settled()
        keys = [arrival.key for _ in range(9) if (arrival := ahead.take()) is not None]
        assert sorted(keys[:3]) == sorted(keys[3:6]) == sorted(keys[6:]) == ["a", "b", "c"]

    run(scenario)


def test_next_returns_none_after_its_timeout() -> None:
    async def scenario(ahead: ReadAhead[str]) -> None:
        ahead.add("a", ListReader([]))
        assert await ahead.next(1) is None

    run(scenario)


def test_ready_records_are_returned_before_a_later_error() -> None:
    class Failing(ListReader):
        async def fetch(self, space: Callable[[], int] | None = None) -> Fetched:
            if not self.records:
                raise KinesisError("not allowed")
            return await super().fetch(space)

    async def scenario(ahead: ReadAhead[str]) -> None:
        ahead.add("a", Failing(records_of("a", 2)))
        arrivals = [await ahead.next(5_000) for _ in range(3)]
        assert [len(each.fetched.records) for each in arrivals if each] == [1, 1, 0]
        assert arrivals[2] is not None
        assert str(arrivals[2].error) == "not allowed"

    run(scenario)


def test_removing_a_shard_closes_its_reader_and_frees_its_bytes() -> None:
    async def scenario(ahead: ReadAhead[str]) -> None:
        readers = [ListReader(records_of("a", 100, 1_000)), ListReader(records_of("a", 1, 1_000))]
        ahead.add("a", readers[0])
        await settled()
        await ahead.remove("a")
        assert readers[0].closed
        assert ahead.held_bytes == 0
        assert ahead.take() is None
        ahead.add("a", readers[1])
        assert await ahead.next(5_000) is not None
        assert readers[1].spaces[0] == readers[0].spaces[0]

    run(scenario, worker_bytes=20_000)


def test_a_cancelled_removal_stays_cancelled() -> None:
    class Stubborn(ListReader):
        async def fetch(self, space: Callable[[], int] | None = None) -> Fetched:
            try:
                await asyncio.Event().wait()
            finally:
                await release.wait()
            raise AssertionError

    release = asyncio.Event()

    async def scenario(ahead: ReadAhead[str]) -> None:
        reader = Stubborn([])
        ahead.add("a", reader)
        await settled()
        removal = asyncio.ensure_future(ahead.remove("a"))
        await settled()
        removal.cancel()
        await asyncio.wait({removal})
        assert removal.cancelled()
        assert reader.closed
        release.set()
        await settled()

    run(scenario)


@pytest.mark.parametrize("seed", range(40))
def test_no_shard_exceeds_its_limit_and_every_shard_has_space(seed: int) -> None:
    chance = Random(seed)
    shard_bytes, worker_bytes = chance.randint(100, 5_000), chance.randint(1_000, 20_000)
    budget = Budget(ReadSettings(shard_bytes=shard_bytes, worker_bytes=worker_bytes))
    shards = range(chance.randint(1, 8))
    for shard in shards:
        budget.join(shard)
    held = dict.fromkeys(shards, 0)
    reserved = dict.fromkeys(shards, 0)
    for _ in range(60):
        shard = chance.choice(shards)
        step = chance.choice(["reserve", "settle", "free"])
        if step == "reserve" and budget.has_space(shard):
            reserved[shard] = budget.reserve(shard)
        elif step == "settle" and reserved[shard]:
            brought = chance.randint(0, reserved[shard])
            budget.settle(shard, brought)
            held[shard] += brought
            reserved[shard] = 0
        elif step == "free":
            budget.free(shard, held[shard])
            held[shard] = 0
        assert sum(held.values()) + sum(reserved.values()) <= worker_bytes
        assert budget.held_bytes == sum(held.values())
        for each in shards:
            assert held[each] + reserved[each] <= shard_bytes
            if not held[each] and not reserved[each]:
                assert budget.has_space(each)


def test_a_shard_that_joins_a_full_budget_has_space_at_once() -> None:
    budget = Budget(ReadSettings(shard_bytes=100_000, worker_bytes=64_000))
    budget.join("first")
    budget.settle("first", budget.reserve("first"))
    assert budget.held_bytes == 64_000
    for number in range(99):
        budget.join(number)
        assert budget.has_space(number)
    for number in range(99):
        budget.settle(number, budget.reserve(number))
    assert budget.held_bytes <= 96_000
    assert not budget.has_space("first")
    budget.free("first", 64_000)
    assert budget.has_space("first")
    for number in range(99):
        budget.leave(number)
    assert budget.space("first") == 64_000


def test_pausing_an_unknown_shard_is_an_error() -> None:
    async def scenario(ahead: ReadAhead[str]) -> None:
        with pytest.raises(KeyError):
            ahead.pause("a")
        await ahead.remove("a")

    run(scenario)
