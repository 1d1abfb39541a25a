"""Fetch: limits, waiting, visibility, sessions, epochs."""

from __future__ import annotations

import pytest

from headrace.broker.replication.partition import Partition
from headrace.errors import CorruptRecordError, ErrorCode
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.fetch import FetchRequest
from headrace.records.batch import iterate_headers
from tests.fixtures.broker_harness import (
    BrokerHarness,
    batch,
    fetch_request,
    produce_request,
    values,
)


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness()
    made.create_topic("t", partitions=3)
    made.create_topic("u")
    return made


def parts(response):
    return [part for topic in response.responses for part in topic.partitions]


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_returns_whole_batches_from_the_offset_on(harness, version):
    harness.produce("t", b"a", b"b")
    harness.produce("t", b"c")
    response = harness.call(fetch_request(("t", 0, 2), max_wait_ms=0), version)
    (part,) = parts(response)
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 3, 3)
    assert values(part.records) == [b"c"]
    assert part.log_start_offset == (0 if version >= 5 else -1)


def test_the_first_batch_may_begin_before_the_offset(harness):
    harness.produce("t", b"a", b"b", b"c")
    assert values(harness.fetch("t", 2).records) == [b"a", b"b", b"c"]


def test_a_fetch_at_the_high_watermark_returns_no_records_and_no_error(harness):
    harness.produce("t", b"a")
    part = harness.fetch("t", 1)
    assert (part.error_code, bytes(part.records)) == (0, b"")


@pytest.mark.parametrize("offset", [-1, 2, 10**15])
def test_an_offset_outside_the_log_is_out_of_range_with_the_offsets_of_the_log(harness, offset):
    harness.produce("t", b"a")
    part = harness.fetch("t", offset)
    assert part.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (part.high_watermark, part.log_start_offset) == (1, 0)


def test_offsets_above_the_high_watermark_return_no_records(harness):
    harness.produce("t", b"a")
    harness.send(produce_request("t", 0, batch(b"b")))
    for offset in (1, 2):
        part = harness.fetch("t", offset)
        assert (part.error_code, bytes(part.records)) == (0, b"")


def test_every_partition_is_answered_in_the_order_of_the_request(harness):
    wanted = [("t", 2, 0), ("t", 0, 0), ("u", 0, 0), ("t", 1, 0), ("t", 9, 0), ("none", 4, 0)]
    response = harness.call(fetch_request(*wanted))
    answered = [
        (t.topic, p.partition_index, p.error_code) for t in response.responses for p in t.partitions
    ]
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answered == [
        ("t", 2, 0),
        ("t", 0, 0),
        ("u", 0, 0),
        ("t", 1, 0),
        ("t", 9, unknown),
        ("none", 4, unknown),
    ]
    assert parts(response)[-1].high_watermark == -1


def test_an_empty_fetch_waits_its_time_and_is_empty(harness):
    pending = harness.send(fetch_request(max_wait_ms=300))
    harness.advance(299)
    assert not pending.done
    harness.advance(1)
    assert pending.response.responses == []


# Limits


def sizes(part) -> list[int]:
    return [header.size for _, header in iterate_headers(bytes(part.records))]


def test_the_first_batch_comes_even_if_it_is_too_large(harness):
    harness.produce("t", b"a" * 5000)
    harness.produce("t", b"b" * 5000)
    for limits in (
        {"max_bytes": 10},
        {"partition_max_bytes": 10},
        {"max_bytes": 0},
        {"max_bytes": -5},
    ):
        (part,) = parts(harness.call(fetch_request(("t", 0, 0), **limits)))
        assert values(part.records) == [b"a" * 5000]


def test_only_the_first_partition_with_data_may_exceed_the_limits(harness):
    for partition in (1, 2):
        harness.produce("t", b"a" * 5000, partition=partition)
    wanted = [("t", 0, 0), ("t", 1, 0), ("t", 2, 0)]
    response = harness.call(fetch_request(*wanted, max_bytes=100))
    assert [len(part.records) > 0 for part in parts(response)] == [False, True, False]
    response = harness.call(fetch_request(*wanted, partition_max_bytes=100))
    assert [len(part.records) > 0 for part in parts(response)] == [False, True, False]


def test_the_limits_hold_over_partitions_and_within(harness):
    for _ in range(3):
        for partition in range(3):
            harness.produce("t", b"a" * 1000, partition=partition)
    one = len(harness.fetch("t", 0, max_bytes=1).records)
    wanted = [("t", p, 0) for p in range(3)]
    response = harness.call(fetch_request(*wanted, partition_max_bytes=2 * one + 10))
    assert [len(part.records) // one for part in parts(response)] == [2, 2, 2]
    response = harness.call(fetch_request(*wanted, max_bytes=4 * one + 10))
    assert [len(part.records) // one for part in parts(response)] == [3, 1, 0]


def test_the_brokers_byte_limit_overrides_the_limit_of_the_client():
    harness = BrokerHarness(fetch_max_bytes=1024)
    harness.create_topic("t")
    for _ in range(4):
        harness.produce("t", b"a" * 400)
    part = harness.fetch("t", 0, max_bytes=2**31 - 1, partition_max_bytes=2**31 - 1)
    assert len(sizes(part)) == 2


# Waiting


def test_a_fetch_waits_until_records_are_durable(harness):
    pending = harness.send(fetch_request(("t", 0, 0), ("t", 1, 0)))
    harness.send(produce_request("t", 1, batch(b"a")))
    assert not pending.done, "the batch is not durable yet"
    harness.sync()
    first, second = parts(pending.response)
    assert (values(first.records), values(second.records)) == ([], [b"a"])
    assert len(harness.broker.services.purgatory) == 0


def test_a_write_to_another_partition_does_not_complete_the_fetch(harness):
    pending = harness.send(fetch_request(("t", 0, 0)))
    harness.produce("t", b"a", partition=1)
    assert not pending.done


def test_a_fetch_waits_for_min_bytes_over_all_partitions(harness):
    size = len(batch(b"a" * 100))
    pending = harness.send(
        fetch_request(("t", 0, 0), ("t", 1, 0), min_bytes=3 * size, max_wait_ms=10_000)
    )
    for partition in (0, 1):
        harness.produce("t", b"a" * 100, partition=partition)
        assert not pending.done
    harness.produce("t", b"a" * 100, partition=1)
    assert [len(part.records) // size for part in parts(pending.response)] == [1, 2]


def test_a_fetch_returns_the_available_records_at_its_deadline(harness):
    pending = harness.send(fetch_request(("t", 0, 0), min_bytes=10_000, max_wait_ms=500))
    harness.produce("t", b"a")
    harness.advance(499)
    assert not pending.done
    harness.advance(1)
    assert values(parts(pending.response)[0].records) == [b"a"]


@pytest.mark.parametrize("happens", ["produce", "delete"])
def test_a_fetch_in_steps_does_not_wait_if_a_partition_has_changed(harness, happens):
    harness.create_topic("many", partitions=1_200)
    request = fetch_request(("t", 0, 0), *(("many", index, 0) for index in range(1_200)))
    request.max_wait_ms = 60_000
    pending = harness.send(request)
    assert harness.broker.services.steps, "more partitions than are read in a step"
    if happens == "produce":
        harness.send(produce_request("t", 0, batch(b"a")))
        assert harness.sync()
    else:
        harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
    while harness.step():
        pass
    assert pending.done
    assert len(harness.broker.services.purgatory) == 0


def test_a_fetch_in_steps_waits_when_nothing_has_happened(harness):
    harness.create_topic("many", partitions=1_200)
    harness.produce("t", b"a")
    wanted = [("t", 0, 1), *(("many", index, 0) for index in range(1_200))]
    pending = harness.send(fetch_request(*wanted, max_wait_ms=60_000))
    while harness.step():
        pass
    assert not pending.done
    harness.produce("t", b"b")
    while harness.step():
        pass
    assert values(parts(pending.response)[0].records) == [b"b"]


@pytest.mark.parametrize("options", [{"max_wait_ms": 0}, {"max_wait_ms": -1}, {"min_bytes": 0}])
def test_a_fetch_without_a_wait_time_does_not_wait(harness, options):
    assert harness.send(fetch_request(("t", 0, 0), **options)).done


@pytest.mark.parametrize(
    "wanted", [("t", 0, 5), ("t", 9, 0), ("none", 0, 0)], ids=["range", "partition", "topic"]
)
def test_any_error_is_answered_at_once(harness, wanted):
    assert harness.send(fetch_request(("t", 1, 0), wanted, max_wait_ms=60_000)).done


def test_a_delayed_fetch_counts_appended_bytes_once(harness):
    pending = harness.send(fetch_request(("t", 0, 0), min_bytes=100_000, max_wait_ms=60_000))
    for _ in range(5):
        harness.produce("t", b"a" * 10_000)
    assert not pending.done
    for _ in range(5):
        harness.produce("t", b"a" * 10_000)
    assert len(parts(pending.response)[0].records) > 100_000


def test_many_waiters_are_woken_by_one_batch(harness):
    waiting = [harness.send(fetch_request(("t", 0, 0))) for _ in range(50)]
    harness.produce("t", b"a")
    assert all(pending.done for pending in waiting)


def test_data_that_does_not_fit_the_waiters_limits_still_comes(harness):
    pending = harness.send(fetch_request(("t", 0, 0), min_bytes=5000, partition_max_bytes=100))
    harness.produce("t", b"a" * 6000)
    assert values(parts(pending.response)[0].records) == [b"a" * 6000]


def test_deleting_the_topic_wakes_it_with_an_error(harness):
    pending = harness.send(fetch_request(("t", 0, 0), max_wait_ms=60_000))
    harness.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="t")]))
    assert parts(pending.response)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_read_committed_sees_up_to_the_last_stable_offset(harness):
    harness.produce("t", b"a")
    part = harness.fetch("t", 0, isolation_level=1)
    assert values(part.records) == [b"a"]
    assert (part.last_stable_offset, part.aborted_transactions or []) == (1, [])


# Sessions


@pytest.mark.parametrize(("session_id", "session_epoch"), [(0, -1), (-1, -1), (12345, -1)])
@pytest.mark.parametrize("version", [7, 11, 12])
def test_a_fetch_that_requests_no_session_gets_none(harness, session_id, session_epoch, version):
    harness.produce("t", b"a")
    request = fetch_request(("t", 0, 0), session_id=session_id, session_epoch=session_epoch)
    response = harness.call(request, version)
    assert (response.error_code, response.session_id) == (0, 0)
    assert values(parts(response)[0].records) == [b"a"]


@pytest.mark.parametrize("session_id", [0, 12345])
def test_an_incremental_fetch_finds_no_session(harness, session_id):
    request = fetch_request(("t", 0, 0), session_id=session_id, session_epoch=3)
    pending = harness.send(request)
    assert pending.response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert (pending.response.session_id, pending.response.responses) == (0, [])


def test_a_fetch_before_version_7_needs_no_session(harness):
    assert harness.call(FetchRequest(max_wait_ms=0), 4).error_code == 0


# Epochs


@pytest.mark.parametrize("version", [9, 12])
def test_an_old_epoch_is_fenced_and_a_new_one_unknown(harness, version):
    harness.produce("t", b"a")
    harness.restart()
    for epoch, error in {
        -1: ErrorCode.NONE,
        0: ErrorCode.FENCED_LEADER_EPOCH,
        1: ErrorCode.NONE,
        2: ErrorCode.UNKNOWN_LEADER_EPOCH,
    }.items():
        request = fetch_request(("t", 0, 0), current_leader_epoch=epoch)
        assert parts(harness.call(request, version))[0].error_code == error


def test_a_reader_whose_log_diverged_gets_the_diverging_offset(harness):
    harness.produce("t", b"a", b"b")
    harness.restart()
    harness.produce("t", b"c")
    same = harness.send(fetch_request(("t", 0, 2), last_fetched_epoch=0))
    assert parts(same.response)[0].diverging_epoch is None
    beyond = harness.send(fetch_request(("t", 0, 3), last_fetched_epoch=0, max_wait_ms=60_000))
    (part,) = parts(beyond.response)
    assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (0, 2)
    assert bytes(part.records) == b""
    unknown = harness.send(fetch_request(("t", 0, 0), last_fetched_epoch=7))
    assert parts(unknown.response)[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_follower_is_refused(harness):
    request = fetch_request(("t", 0, 0), replica_id=2, max_wait_ms=60_000)
    (part,) = parts(harness.send(request).response)
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# Damage


class DamagedLog:
    """A log whose file cannot be read."""

    def __init__(self, log, error: Exception) -> None:
        self._log = log
        self._error = error

    def read(self, *_args, **_options):
        raise self._error

    def __getattr__(self, name: str):
        return getattr(self._log, name)


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), CorruptRecordError("bad")])
def test_a_partition_that_cannot_be_read_is_an_error_of_its_own(harness, error):
    harness.produce("t", b"a", partition=0)
    harness.produce("t", b"b", partition=1)
    partition: Partition = harness.broker.services.partitions.require("t", 0)
    partition.log = DamagedLog(partition.log, error)  # type: ignore[assignment]  # stands in for a damaged disk
    first, second = parts(harness.call(fetch_request(("t", 0, 0), ("t", 1, 0))))
    assert first.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert values(second.records) == [b"b"]
    assert harness.journal.events("error") == ["read_failed"]


def test_a_waiting_fetch_survives_the_roll_of_segments(harness):
    harness.create_topic("rolled", segment_bytes="300")
    for _ in range(6):
        harness.produce("rolled", b"a" * 100)
    pending = harness.send(fetch_request(("rolled", 0, 6)))
    harness.produce("rolled", b"b" * 100)
    assert values(parts(pending.response)[0].records) == [b"b" * 100]


def test_min_bytes_is_reached_over_segments(harness):
    harness.create_topic("rolled", segment_bytes="300")
    pending = harness.send(fetch_request(("rolled", 0, 0), min_bytes=1000, max_wait_ms=60_000))
    for _ in range(20):
        harness.produce("rolled", b"a" * 100)
    assert pending.done, "a read ends with its segment; what lies behind it counts too"


def test_the_rest_of_a_segment_is_answered_at_once(harness):
    harness.create_topic("rolled", segment_bytes="300")
    for _ in range(4):
        harness.produce("rolled", b"a" * 100)
    assert harness.send(fetch_request(("rolled", 0, 0), min_bytes=5000)).done
    assert not harness.send(fetch_request(("rolled", 0, 3), min_bytes=5000)).done
