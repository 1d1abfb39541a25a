"""The search by time in topics with transactions, from every offset that a broker may return."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from headrace.clients.blocking import LATEST, BlockingClient, FetchedPartition, NewTopic
from headrace.errors import ApiError, ErrorCode, TransportError
from headrace.spark.options.reader import ClientOptions
from headrace.spark.source import times as times_module
from headrace.spark.source.cluster_client import ClusterClient
from headrace.spark.source.times import first_records
from headrace.types import TopicPartition

PLACE = TopicPartition("t", 0)
MONTH_AGO = 1_792_880_000_000


@pytest.fixture
def bootstrap(headrace_bootstrap: str) -> str:
    """A topic with times a month ago. Each of four transactions has two records, and the third transaction is aborted.

    The times are in seconds since then: (0, 10) marker (20, 5) marker (30, 40) abort marker (15, 50) marker.
    """
    with BlockingClient(headrace_bootstrap) as client:
        client.create_topics([NewTopic("t", 1, configs={"retention.ms": "-1"})])
    with headrace.Producer(headrace_bootstrap, transactional_id="x", serde="bytes") as producer:
        producer.init_transactions()
        for number, seconds in enumerate([(0, 10), (20, 5), (30, 40), (15, 50)]):
            producer.begin_transaction()
            for each in seconds:
                producer.send("t", b"v", timestamp_ms=MONTH_AGO + each * 1000)
            producer.flush()
            if number == 2:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    return headrace_bootstrap


OFFSETS = {0: 0, 10: 1, 20: 3, 5: 4, 15: 9, 50: 10}
"""Offsets and times of the committed records."""
ABORTED = {30: 6, 40: 7}


def found(bootstrap: str, seconds: int, answered: int, isolation: str = "read_committed") -> int:
    client = ClusterClient(ClientOptions(bootstrap, (("isolation.level", isolation),)))
    try:
        return first_records(client, {PLACE: MONTH_AGO + seconds * 1000}, {PLACE: answered}, 30)[
            PLACE
        ]
    finally:
        client.close()


def wanted(seconds: int, answered: int, records: dict[int, int]) -> int:
    """Return the first record at or after an offset whose time is late enough."""
    later = [offset for at, offset in records.items() if at >= seconds and offset >= answered]
    return min(later, default=-1)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_the_first_record_is_found_from_every_offset(bootstrap: str, isolation: str) -> None:
    """Apache Kafka returns the markers at 2, 5, 8 and 11, because their times are later than those of all records."""
    records = OFFSETS if isolation == "read_committed" else {**OFFSETS, **ABORTED}
    for seconds in (0, 1, 5, 10, 15, 20, 30, 41, 50, 51):
        for answered in range(12):
            assert found(bootstrap, seconds, answered, isolation) == wanted(
                seconds, answered, records
            )
    assert found(bootstrap, 0, -1, isolation) == -1


def test_a_search_by_time_takes_several_fetches(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times_module, "FIRST_BYTES", 1)
    monkeypatch.setattr(times_module, "NEXT_BYTES", 1)
    assert found(bootstrap, 50, 2) == 10
    assert found(bootstrap, 60, 2) == -1


def test_the_client_searches_after_the_brokers_offset(bootstrap: str) -> None:
    client = ClusterClient(ClientOptions(bootstrap, (("isolation.level", "read_committed"),)))
    at = {
        seconds: client.offsets_at({PLACE: MONTH_AGO + 1000 * seconds})[PLACE]
        for seconds in range(60)
    }
    client.close()
    assert at == {seconds: wanted(seconds, 0, OFFSETS) for seconds in range(60)}


@pytest.mark.parametrize(("begin", "expected"), [(3, 3), (9, 9), (10, 10), (12, -1)])
def test_a_search_by_time_skips_records_that_retention_deletes(
    bootstrap: str, begin: int, expected: int
) -> None:
    with headrace.Admin(bootstrap) as admin:
        admin.truncate("t", {0: begin})
    assert found(bootstrap, 10, 1) == expected


class Log:
    """A cluster that returns the same result for every fetch."""

    def __init__(self, fetched: FetchedPartition) -> None:
        self.fetched = fetched

    def offsets(self, partitions: Any, position: int) -> Any:
        return dict.fromkeys(partitions, 9 if position == LATEST else 0)

    def fetch(self, positions: Any) -> Any:
        return dict.fromkeys(positions, self.fetched)


@pytest.mark.parametrize(
    ("fetched", "kind", "said"),
    [
        # the broker throttles its clients
        (FetchedPartition(), TransportError, "quota"),
        (
            FetchedPartition(error=ErrorCode.LEADER_NOT_AVAILABLE),
            ApiError,
            r"last error: LEADER_NOT_AVAILABLE.*\(see whether all brokers",
        ),
        (
            FetchedPartition(error=ErrorCode.NETWORK_EXCEPTION, reason="b:1 hung up"),
            ApiError,
            r"last error: .*b:1 hung up \(see whether a broker runs",
        ),
        (FetchedPartition(error=ErrorCode.TOPIC_AUTHORIZATION_FAILED), ApiError, ""),
        # the log ends before the returned offset and begins at 0
        (FetchedPartition(error=ErrorCode.OFFSET_OUT_OF_RANGE), ApiError, ""),
    ],
)
def test_an_unreadable_partition_ends_the_search_by_time(
    fetched: FetchedPartition, kind: type, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(times_module, "PAUSE_S", 0)
    with pytest.raises(kind, match=f"t-0.*{said}"):
        first_records(Log(fetched), {PLACE: 5}, {PLACE: 3}, 0.01)


def test_a_time_lookup_finds_no_record_in_a_compacted_end_of_a_log() -> None:
    nothing = FetchedPartition(last_stable_offset=9)
    assert first_records(Log(nothing), {PLACE: 5}, {PLACE: 3}, 30) == {PLACE: -1}
