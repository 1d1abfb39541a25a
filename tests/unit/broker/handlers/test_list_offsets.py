"""ListOffsets and OffsetForLeaderEpoch: offsets by special timestamps, by time, by epoch."""

from __future__ import annotations

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from tests.fixtures.broker_harness import START_MS, BrokerHarness, batch, produce_request

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING_UPLOAD = range(-1, -7, -1)


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness()
    made.create_topic("t", partitions=2)
    for number, timestamp_ms in enumerate([START_MS, START_MS + 200, START_MS + 100]):
        records = batch(b"%d" % number, b"x", timestamp_ms=timestamp_ms)
        made.call(produce_request("t", 0, records))
    return made


def ask(harness, timestamp, *, version=7, topic="t", partition=0, epoch=-1, isolation_level=0):
    wanted = ListOffsetsPartition(
        partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
    )
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=[wanted])],
    )
    (answer,) = harness.call(request, version).topics[0].partitions
    return answer


@pytest.mark.parametrize("version", range(1, 12))
def test_the_ends_of_the_log_in_every_version(harness, version):
    for timestamp, offset in {LATEST: 6, EARLIEST: 0}.items():
        answer = ask(harness, timestamp, version=version)
        assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, -1)
        assert answer.leader_epoch == (0 if version >= 4 else -1)


@pytest.mark.parametrize(
    ("timestamp", "offset", "found"),
    [
        (0, 0, START_MS),
        (START_MS, 0, START_MS),
        (START_MS + 1, 2, START_MS + 200),
        (START_MS + 200, 2, START_MS + 200),
    ],
)
def test_by_time_it_is_the_first_record_that_is_not_older(harness, timestamp, offset, found):
    answer = ask(harness, timestamp)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, offset, found)


def test_a_time_lookup_without_a_match_returns_minus_one(harness):
    answer = ask(harness, START_MS + 201)
    assert (answer.error_code, answer.offset, answer.timestamp) == (0, -1, -1)
    empty = ask(harness, 0, partition=1)
    assert (empty.error_code, empty.offset, empty.timestamp) == (0, -1, -1)


def test_the_largest_timestamp_from_version_7_on(harness):
    answer = ask(harness, MAX_TIMESTAMP)
    assert (answer.offset, answer.timestamp) == (2, START_MS + 200)
    assert ask(harness, MAX_TIMESTAMP, version=6).error_code == ErrorCode.UNSUPPORTED_VERSION
    empty = ask(harness, MAX_TIMESTAMP, partition=1)
    assert (empty.error_code, empty.offset) == (0, -1)


def test_the_timestamp_of_tiered_storage_finds_no_offset(harness):
    local = ask(harness, EARLIEST_LOCAL, version=8)
    assert (local.error_code, local.offset, local.leader_epoch) == (0, 0, 0)
    assert ask(harness, LATEST_TIERED, version=8).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert ask(harness, PENDING_UPLOAD, version=10).error_code == ErrorCode.UNSUPPORTED_VERSION
    for timestamp in (LATEST_TIERED, PENDING_UPLOAD):
        tiered = ask(harness, timestamp, version=11)
        assert (tiered.error_code, tiered.offset, tiered.timestamp) == (0, -1, -1)


@pytest.mark.parametrize("timestamp", [-4, -5, -6, -(2**63)])
def test_unknown_special_timestamps_are_refused(harness, timestamp):
    assert ask(harness, timestamp).error_code == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize("isolation_level", [0, 1])
def test_list_offsets_shows_only_durable_records(harness, isolation_level):
    records = batch(b"late", timestamp_ms=START_MS + 900)
    harness.send(produce_request("t", 0, records))
    assert ask(harness, LATEST, isolation_level=isolation_level).offset == 6
    assert ask(harness, START_MS + 900, isolation_level=isolation_level).offset == -1
    harness.sync()
    assert ask(harness, LATEST, isolation_level=isolation_level).offset == 7
    assert ask(harness, START_MS + 900, isolation_level=isolation_level).offset == 6


def test_errors_are_per_partition(harness):
    assert ask(harness, LATEST, partition=2).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(harness, LATEST, topic="none").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert ask(harness, LATEST, epoch=1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    harness.restart()
    assert ask(harness, LATEST, epoch=0).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_the_epoch_is_the_one_that_wrote_the_record(harness):
    harness.restart()
    harness.produce("t", b"new")
    assert ask(harness, EARLIEST).leader_epoch == 0
    assert ask(harness, START_MS).leader_epoch == 0
    assert ask(harness, LATEST).leader_epoch == 1


# OffsetForLeaderEpoch


def end_of(harness, epoch, *, version=4, topic="t", partition=0, current=-1, replica_id=-1):
    wanted = OffsetForLeaderPartition(
        partition=partition, leader_epoch=epoch, current_leader_epoch=current
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=replica_id, topics=[OffsetForLeaderTopic(topic=topic, partitions=[wanted])]
    )
    (answer,) = harness.call(request, version).topics[0].partitions
    assert answer.partition == partition
    return ErrorCode(answer.error_code), answer.leader_epoch, answer.end_offset


@pytest.mark.parametrize(("version", "replica_id"), [(2, -1), (3, -1), (4, -1), (4, 2), (4, -2)])
def test_the_current_epoch_ends_at_the_log_end(harness, version, replica_id):
    assert end_of(harness, 0, version=version, replica_id=replica_id) == (ErrorCode.NONE, 0, 6)
    harness.send(produce_request("t", 0, batch(b"not durable")))
    assert end_of(harness, 0, version=version, replica_id=replica_id) == (ErrorCode.NONE, 0, 7)


def test_earlier_epochs_end_where_the_next_one_began(harness):
    harness.restart()
    harness.restart()
    harness.produce("t", b"c")
    harness.restart()
    assert end_of(harness, 0) == (ErrorCode.NONE, 0, 6)
    # Epoch 1 wrote nothing, so that the response has the previous epoch.
    assert end_of(harness, 1) == (ErrorCode.NONE, 0, 6)
    assert end_of(harness, 2) == (ErrorCode.NONE, 2, 7)
    assert end_of(harness, 3) == (ErrorCode.NONE, 3, 7)


def test_a_position_taken_before_a_restart_is_still_valid_after_it(harness):
    """A consumer at the end of the log must not believe that the log was truncated (KIP-320)."""
    for partition in (0, 1):
        before = ask(harness, LATEST, partition=partition)
        harness.restart()
        error, _, end_offset = end_of(harness, before.leader_epoch, partition=partition)
        assert error == ErrorCode.NONE
        assert end_offset >= before.offset


def test_an_epoch_that_never_existed_is_unknown(harness):
    assert end_of(harness, 5) == (ErrorCode.NONE, -1, -1)
    assert end_of(harness, -1) == (ErrorCode.NONE, -1, -1)


def test_epoch_errors_are_per_partition(harness):
    unknown = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)
    assert end_of(harness, 0, topic="none") == unknown
    assert end_of(harness, 0, partition=9) == unknown
    assert end_of(harness, 0, current=4)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH


def by_time(topic: str, partitions: int, timestamp: int) -> ListOffsetsRequest:
    wanted = [
        ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index in range(partitions)
    ]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=topic, partitions=wanted)])


def test_a_request_that_is_much_work_is_answered_in_steps(harness, monkeypatch):
    monkeypatch.setattr("headrace.broker.waiting.steps.STEP_COST", 100_000)
    harness.create_topic("many", partitions=40)
    for index in range(40):
        records = batch(b"a", b"b", timestamp_ms=START_MS + index)
        harness.call(produce_request("many", index, records))
    pending = harness.send(by_time("many", 40, START_MS + 7), 7)
    assert not pending.done
    ticks = 0
    while not pending.done:
        assert harness.broker.next_deadline_ms == 0
        harness.broker.tick(harness.now_ms)
        ticks += 1
    assert ticks > 3
    (topic,) = pending.response.topics
    offsets = [answer.offset for answer in topic.partitions]
    assert offsets == [-1] * 7 + [0] * 33
    assert len(harness.broker.services.steps) == 0


def test_a_topic_that_is_deleted_between_two_steps_is_not_searched(harness, monkeypatch):
    monkeypatch.setattr("headrace.broker.waiting.steps.STEP_COST", 100_000)
    harness.create_topic("many", partitions=40)
    for index in range(40):
        harness.call(produce_request("many", index, batch(b"a", timestamp_ms=START_MS)))
    pending = harness.send(by_time("many", 40, START_MS), 7)
    assert not pending.done
    harness.call(DeleteTopicsRequest(topic_names=["many"], timeout_ms=1000), 4)
    while not pending.done:
        harness.broker.tick(harness.now_ms)
    (topic,) = pending.response.topics
    errors = {answer.error_code for answer in topic.partitions}
    assert errors == {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
