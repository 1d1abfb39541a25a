"""Rounds of fetches: the ranges and bytes of each request, the order of results, and the timeout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from headrace.clients.blocking import FetchedPartition, FetchPosition
from headrace.errors import CorruptRecordError, ErrorCode, TransportError
from headrace.records.builder import build_batch
from headrace.records.reader import read_records
from headrace.spark.options.source import SourceOptions, source_options
from headrace.spark.source.fetching import PARTITION_BYTES, FetchedPart, fetch_ranges
from headrace.spark.source.offsets import DataLossError, OffsetRange
from headrace.types import TopicPartition
from tests.unit.spark.fakes import FakeCluster

Answers = Callable[[TopicPartition, FetchPosition], FetchedPartition]


def options(**changes: Any) -> SourceOptions:
    base = {"kafka.bootstrap.servers": "localhost:1", "subscribe": "a"}
    return replace(source_options(base, streaming=False), **changes)


def partition(number: int) -> TopicPartition:
    return TopicPartition("a", number)


def whole(number: int, count: int) -> OffsetRange:
    return OffsetRange(partition(number), 0, count)


class Brokers(FakeCluster):
    """A cluster whose fetches a function answers."""

    def __init__(self, answer: Answers) -> None:
        super().__init__()
        self.answer = answer

    def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition]
    ) -> dict[TopicPartition, FetchedPartition]:
        self.rounds.append(positions)
        return {each: self.answer(each, position) for each, position in positions.items()}


def rounds(cluster: FakeCluster) -> list[dict[int, int]]:
    """The requested offsets of each round, by partition, in the order of the request."""
    return [
        {each[0].partition: each[1].offset for each in asked.items()} for asked in cluster.rounds
    ]


def offsets(parts: list[FetchedPart]) -> list[tuple[int, int]]:
    return [
        (part.number, record.offset)
        for part in parts
        for record in read_records(part.fetched.records, tolerate_truncated=True)
    ]


def test_small_ranges_are_fetched_in_one_round_and_returned_in_order() -> None:
    cluster = FakeCluster()
    for number in range(40):
        cluster.grow("a", number, 3)

    parts = list(fetch_ranges(cluster, [whole(number, 3) for number in range(40)], options()))

    assert len(cluster.rounds) == 1
    assert offsets(parts) == [(number, offset) for number in range(40) for offset in range(3)]


def test_a_result_of_a_later_range_is_kept_and_not_fetched_again() -> None:
    cluster = FakeCluster()
    cluster.grow("a", 0, 9)
    cluster.grow("a", 1, 3)

    parts = list(fetch_ranges(cluster, [whole(0, 9), whole(1, 3)], options()))

    assert rounds(cluster) == [{0: 0, 1: 0}, {0: 3}, {0: 6}]
    assert [part.number for part in parts] == [0, 0, 0, 1]


def test_no_range_is_fetched_after_one_that_needs_several_rounds() -> None:
    count = PARTITION_BYTES  # offsets, of some bytes each
    cluster = FakeCluster()
    for number in range(2):
        cluster.grow("a", number, count)
    parts = fetch_ranges(cluster, [whole(0, count), whole(1, count)], options())

    next(parts)
    next(parts)

    assert rounds(cluster) == [{0: 0}, {0: 3}]
    assert [each.max_bytes for each in cluster.rounds[0].values()] == [PARTITION_BYTES]


def test_two_ranges_of_one_partition_are_not_fetched_in_one_request() -> None:
    cluster = FakeCluster()
    cluster.grow("a", 0, 12)
    ranges = [OffsetRange(partition(0), 0, 3), OffsetRange(partition(0), 6, 9)]

    parts = list(fetch_ranges(cluster, ranges, options()))

    assert rounds(cluster) == [{0: 0}, {0: 6}]
    assert [offset for _, offset in offsets(parts)] == [0, 1, 2, 6, 7, 8]


def test_an_error_counts_when_its_range_is_the_first_incomplete_one() -> None:
    cluster = FakeCluster()
    cluster.grow("a", 0, 3)
    cluster.logs[partition(1)] = (5, 9)  # its first records are gone
    ranges = [whole(0, 3), whole(1, 9)]

    parts = list(fetch_ranges(cluster, ranges, options(fail_on_data_loss=False)))

    assert rounds(cluster) == [{0: 0, 1: 0}, {1: 0}, {1: 5}, {1: 8}]
    assert [offset for number, offset in offsets(parts) if number == 1] == [5, 6, 7, 8]


def test_the_size_of_a_fetch_follows_the_rest_of_its_range() -> None:
    value = b"x" * 1000

    def answer(_: TopicPartition, position: FetchPosition) -> FetchedPartition:
        batch = build_batch([(None, value, (), 0)] * 100, base_offset=position.offset)
        return FetchedPartition(batch)

    brokers = Brokers(answer)
    list(fetch_ranges(brokers, [whole(0, 5000)], options()))

    asked = [position.max_bytes for each in brokers.rounds for position in each.values()]
    assert asked[0] == 5000 * 256 * 1.25, "before anything is known"
    assert asked[1] == pytest.approx(4900 * 1012 * 1.25, rel=0.02)
    assert asked[1:] == sorted(asked[1:], reverse=True)
    assert asked[-1] < 200_000


def test_large_batches_raise_the_requested_size() -> None:
    large = [
        build_batch([(None, b"x" * (10 << 20), (), 0)], base_offset=offset) for offset in range(4)
    ]

    def answer(_: TopicPartition, position: FetchPosition) -> FetchedPartition:
        rest = b"".join(large[position.offset :])
        return FetchedPartition(rest[: max(position.max_bytes, len(large[0]))])

    brokers = Brokers(answer)
    parts = list(fetch_ranges(brokers, [whole(0, 4)], options()))

    assert offsets(parts) == [(0, offset) for offset in range(4)]
    assert len(brokers.rounds) == 3, "one, two, and one again"


def test_the_time_of_the_consumer_does_not_count_for_the_timeout() -> None:
    cluster = FakeCluster()
    cluster.grow("a", 0, 9)
    now = [0.0]

    parts = fetch_ranges(
        cluster,
        [whole(0, 9)],
        options(poll_timeout_ms=1000),
        clock=lambda: now[0],
        pause=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )
    found = []
    for part in parts:
        found.append(part)
        now[0] += 3600
        cluster.errors = [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    assert len(found) == 3


def test_half_a_batch_is_waited_for_and_then_is_an_error() -> None:
    batch = build_batch([(None, b"x" * 1000, (), 0)])
    now = iter(range(100))
    brokers = Brokers(lambda *_: FetchedPartition(batch[:500]))
    brokers.grow("a", 0, 1)
    with pytest.raises(TransportError, match=r"no records of a-0 from offset 0 to 0 came in 2 s"):
        list(
            fetch_ranges(
                brokers, [whole(0, 1)], options(poll_timeout_ms=2000), clock=lambda: next(now)
            )
        )


def test_a_length_that_no_batch_can_have_is_an_error() -> None:
    brokers = Brokers(lambda *_: FetchedPartition(bytes(100)))
    with pytest.raises(CorruptRecordError, match="batch length 0 at byte 0"):
        list(fetch_ranges(brokers, [whole(0, 1)], options()))


def cut_off(*, fail_on_data_loss: bool) -> list[FetchedPart]:
    """Fetch up to offset 9 of a log that was truncated to offset 5 after the plan."""
    cluster = FakeCluster()
    cluster.grow("a", 0, 5)
    cluster.grow("a", 1, 3)
    now = iter(range(100))
    return list(
        fetch_ranges(
            cluster,
            [whole(0, 9), whole(1, 3)],
            options(poll_timeout_ms=2000, fail_on_data_loss=fail_on_data_loss),
            clock=lambda: next(now),
        )
    )


def test_a_log_that_has_become_shorter_than_planned_is_lost_data() -> None:
    with pytest.raises(DataLossError, match=r"offsets 5 to 8 of a-0 do not exist .* ends at 5"):
        cut_off(fail_on_data_loss=True)

    parts = cut_off(fail_on_data_loss=False)

    assert offsets(parts) == [*((0, offset) for offset in range(5)), (1, 0), (1, 1), (1, 2)]


class Recreated(FakeCluster):
    """A cluster whose topic is deleted and created again with other records while a fetch is in flight."""

    def __init__(self, during: int) -> None:
        super().__init__()
        self.grow("a", 0, 9)
        self.grow("a", 1, 3)
        self._during = during

    def fetch(
        self, positions: Mapping[TopicPartition, FetchPosition]
    ) -> dict[TopicPartition, FetchedPartition]:
        if len(self.rounds) == self._during:
            self.ids["a"] = "id-new"
        return super().fetch(positions)


@pytest.mark.parametrize(("during", "yielded"), [(0, 0), (1, 2), (2, 2)])
def test_a_topic_that_is_created_again_during_a_task_is_noticed_by_that_task(
    during: int, yielded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.spark.client.contact.STALE_PAUSES_S", (0.0, 0.0))
    ranges = [replace(whole(0, 9), topic_id="id-a"), replace(whole(1, 3), topic_id="id-a")]

    with pytest.raises(DataLossError, match="was deleted and created again"):
        list(fetch_ranges(Recreated(during), ranges, options()))

    parts = list(fetch_ranges(Recreated(during), ranges, options(fail_on_data_loss=False)))
    assert len(parts) == yielded, "what is known to be another's is left out"


def test_topic_ids_are_compared_again_after_the_last_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("headrace.spark.client.contact.STALE_PAUSES_S", (0.0, 0.0))
    cluster = Recreated(1)
    cluster.grow("b", 0, 9)
    other = OffsetRange(TopicPartition("b", 0), 0, 9, "id-b")

    with pytest.raises(DataLossError, match="offsets 0 to 8 of a-0 are gone"):
        list(fetch_ranges(cluster, [replace(whole(0, 9), topic_id="id-a"), other], options()))


@pytest.mark.parametrize(("size", "questions"), [(3, 1), (9, 2)])
def test_a_task_asks_for_ids_with_its_first_round_and_its_last(size: int, questions: int) -> None:
    cluster = FakeCluster()
    cluster.grow("a", 0, size)
    cluster.stale = [cluster.topology(["a"])] * 9

    list(fetch_ranges(cluster, [replace(whole(0, size), topic_id="id-a")], options()))

    assert len(cluster.stale) == 9 - questions
