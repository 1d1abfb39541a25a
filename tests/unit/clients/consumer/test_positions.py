"""The positions of a consumer: committed offsets, auto.offset.reset, seeks, times, and truncated logs."""

from __future__ import annotations

import struct

import pytest

from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.records import FetchedBatches
from headrace.clients.flows.fetch import FetchedPartition
from headrace.clients.flows.list_offsets import EARLIEST, LATEST
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.core.log import Marker, build_marker
from headrace.errors import (
    ConfigError,
    LogTruncatedError,
    NoOffsetError,
    TransportError,
)
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.list_offsets import ListOffsetsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from headrace.types import TopicPartition
from tests.fixtures.broker_harness import START_MS, batch, produce_request
from tests.fixtures.consumer_simulation import ConsumerSimulation, Program

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def make_reader(records: int = 10, **options) -> tuple[ConsumerSimulation, Program]:
    simulation = ConsumerSimulation()
    simulation.broker.create_topic("t", partitions=2)
    if records:
        simulation.fill("t", 2, records)
    return simulation, simulation.consumer(**{"auto_offset_reset": "earliest"} | options)


def offsets_of(records) -> list[int]:
    return [record.offset for record in records]


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("latest", 10)])
def test_auto_offset_reset_applies_without_a_committed_offset(reset: str, first: int) -> None:
    _, reader = make_reader(group="g", auto_offset_reset=reset)
    reader.assign([T0])
    assert reader.run(reader.core.positions.position(T0, 10_000)) == first


def test_a_missing_committed_offset_is_an_error_without_auto_offset_reset() -> None:
    _, reader = make_reader(group="g", auto_offset_reset="none")
    reader.assign([T0])
    with pytest.raises(NoOffsetError, match="nothing is committed for t-0"):
        reader.poll(1000)
    reader.core.positions.seek(T0, 4)
    assert offsets_of(reader.poll(1000, 1)) == [4]


def test_a_committed_offset_goes_before_the_policy() -> None:
    simulation, reader = make_reader(group="g", enable_auto_commit=False)
    reader.assign({T0: 6})
    reader.commit()
    again = simulation.consumer(group="g", auto_offset_reset="latest")
    again.assign([T0])
    assert offsets_of(again.poll(1000, 2)) == [6, 7]


def test_a_deleted_offset_is_reset_by_the_policy_with_a_warning() -> None:
    simulation, reader = make_reader()
    reader.assign({T0: 2})
    part = DeleteRecordsPartition(partition_index=0, offset=5)
    simulation.broker.call(
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=[part])], timeout_ms=1000
        )
    )
    assert offsets_of(reader.poll(1000)) == [5, 6, 7, 8, 9]
    [warning] = reader.warnings
    assert "t-0: offset 2 does not exist (any more); reading goes on at 5" in warning


def test_a_seek_while_the_position_is_looked_up_holds() -> None:
    simulation, reader = make_reader()
    reader.assign([T0])
    reader.engine.spawn(reader.core.poll(60_000))  # (1) asks where to begin
    reader.core.positions.seek(T0, 8)  # (2) the program knows better
    simulation.settle()  # (3) the answer comes
    assert reader.requests(ListOffsetsRequest)
    assert offsets_of(reader.core.take()) == [8, 9]


def test_seeks_to_begin_end_and_time() -> None:
    simulation, reader = make_reader(records=0)
    for hour in range(4):
        records = batch(b"a", b"b", timestamp_ms=START_MS - 36_000_000 + 3_600_000 * hour)
        simulation.broker.call(produce_request("t", 0, records))
    reader.assign([T0, T1])
    positions = reader.core.positions
    reader.run(positions.seek_to(None, LATEST))
    assert positions.positions() == {T0: 8, T1: 0}
    reader.run(positions.seek_to([T0], EARLIEST))
    assert positions.positions()[T0] == 0
    reader.run(positions.seek_to(None, START_MS - 36_000_000 + 3_600_001))
    assert positions.positions() == {T0: 4, T1: 0}, "the end, where nothing is as late"
    assert offsets_of(reader.poll(1000, 1)) == [4]
    with pytest.raises(ConfigError, match="a number from 0 on"):
        positions.seek(T0, -2)


def test_lag_and_offsets() -> None:
    _, reader = make_reader()
    reader.assign({T0: 3, T1: 10})
    positions = reader.core.positions
    assert reader.run(positions.lag(None, 1000)) == {T0: 7, T1: 0}
    assert reader.run(positions.lag([T0], 1000)) == {T0: 7}
    assert reader.run(positions.begin_offsets([T0])) == {T0: 0}
    assert reader.run(positions.end_offsets([T0, T1])) == {T0: 10, T1: 10}
    [found] = reader.run(positions.offsets_for({T0: START_MS + 1})).values()
    assert found.offset == -1
    assert reader.run(reader.core.partitions_for("t")) == [T0, T1]


def test_a_position_that_cannot_be_found_in_time() -> None:
    simulation, reader = make_reader()
    reader.assign([T0])
    simulation.fault = lambda _program, call: (
        TransportError("gone") if isinstance(call.request, ListOffsetsRequest) else None
    )
    with pytest.raises(TransportError, match="position of t-0 was not found in time"):
        reader.run(reader.core.positions.position(T0, 500))


def test_paused_partitions_are_neither_returned_nor_fetched() -> None:
    simulation, reader = make_reader()
    reader.assign([T0, T1])
    reader.core.positions.pause([T0])
    assert {record.partition for record in reader.poll(1000)} == {1}
    assert reader.core.positions.paused() == [T0]
    assert reader.poll(1000) == []
    fetched = {
        part.partition
        for request in reader.requests(FetchRequest)
        for topic in request.topics
        for part in topic.partitions
    }
    assert fetched == {1}
    reader.core.positions.resume([T0])
    assert {record.partition for record in reader.poll(1000)} == {0}
    assert simulation.now_ms > START_MS


def test_a_partition_with_unread_records_is_not_fetched_again() -> None:
    _, reader = make_reader()
    reader.assign([T0])
    for _ in range(5):
        reader.poll(1000, 1)
    assert len(reader.requests(FetchRequest)) == 1


def test_partitions_take_turns() -> None:
    _, reader = make_reader()
    reader.assign([T0, T1])
    reader.poll(1000, 1)
    turns = [reader.poll(1000, 1)[0].partition for _ in range(4)]
    assert turns in ([0, 1, 0, 1], [1, 0, 1, 0])


# New leaders


def lead_in_epoch(simulation: ConsumerSimulation, epoch: int, end: EpochEndOffset) -> None:
    """Make the broker the leader of another epoch, whose log diverges at `end` from the read records."""

    def newer(_program, call):
        if isinstance(call.request, OffsetForLeaderEpochRequest):
            answer = OffsetForLeaderTopicResult(topic="t", partitions=[end])
            return OffsetForLeaderEpochResponse(topics=[answer])
        if isinstance(call.request, FetchRequest):
            for topic in call.request.topics:
                for part in topic.partitions:
                    part.current_leader_epoch = -1
        return None

    def told(_program, call):
        if not isinstance(call.request, MetadataRequest):
            return None
        response = simulation.broker.call(call.request)
        for topic in response.topics:
            for partition in topic.partitions:
                partition.leader_epoch = epoch
        return response

    simulation.fault, simulation.lost = newer, told


@pytest.mark.parametrize("reset", ["earliest", "none"])
def test_a_log_that_was_cut_is_noticed(reset: str) -> None:
    simulation, reader = make_reader(auto_offset_reset=reset)
    reader.assign({T0: 0})
    assert len(reader.poll(1000, 8)) == 8
    epoch = reader.core.assigned[T0].epoch
    lead_in_epoch(
        simulation, epoch + 1, EpochEndOffset(partition=0, leader_epoch=epoch, end_offset=5)
    )
    reader.core.assigned[T0].drop_read_ahead()
    reader.state.stale_topics.add("t")
    if reset == "none":
        with pytest.raises(LogTruncatedError, match="before offset 8, its log parts at 5"):
            reader.poll(5000)
        return
    assert offsets_of(reader.poll(5000)) == [5, 6, 7, 8, 9]
    assert any("reading goes on at 5" in text for text in reader.warnings)
    assert len(reader.requests(OffsetForLeaderEpochRequest)) == 1


def test_a_new_leader_with_the_whole_log_changes_nothing() -> None:
    simulation, reader = make_reader()
    reader.assign({T0: 0})
    assert len(reader.poll(1000, 8)) == 8
    epoch = reader.core.assigned[T0].epoch
    lead_in_epoch(
        simulation, epoch + 1, EpochEndOffset(partition=0, leader_epoch=epoch, end_offset=10)
    )
    reader.core.assigned[T0].drop_read_ahead()
    reader.state.stale_topics.add("t")
    assert offsets_of(reader.poll(5000)) == [8, 9]
    assert reader.warnings == []
    assert len(reader.requests(OffsetForLeaderEpochRequest)) == 1


def test_a_position_behind_a_marker_is_of_the_leader_that_wrote_the_marker() -> None:
    """The leader after a crash ends earlier transactions. Its markers do not show that the log was truncated."""
    marker = bytearray(build_marker(Marker(1, 0, 0, committed=False), START_MS))
    struct.pack_into(">i", marker, 12, 7)
    partition = AssignedPartition(T0, 0)
    data = FetchedPartition(records=bytes(marker))
    partition.fetched = FetchedBatches(T0, data, check_crcs=True)
    assert not partition.decode()
    assert partition.position() == OffsetAndMetadata(1, leader_epoch=7)


@pytest.mark.parametrize("reset", ["earliest", "latest", "none"])
def test_positions_in_a_topic_that_was_deleted_are_not_used_in_its_namesake(reset: str) -> None:
    simulation, reader = make_reader(group_id="g", auto_offset_reset="earliest")
    reader.assign({T0: 0})
    assert len(reader.poll(1000)) == 10
    assert reader.poll(100) == []  # the next fetch waits at the broker, and will be answered
    object.__setattr__(reader.config, "auto_offset_reset", reset)
    simulation.broker.call(
        DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], topic_names=["t"])
    )
    simulation.broker.create_topic("t", partitions=2)
    simulation.fill("t", 2, 12)  # longer than the old one: no offset is out of range
    if reset == "none":
        with pytest.raises(NoOffsetError, match="the topic of t-0 was deleted and created again"):
            reader.poll(2_000)
        return
    read = offsets_of(reader.poll(2_000))
    assert any("deleted and created again" in text for text in reader.warnings)
    assert read == (list(range(12)) if reset == "earliest" else [])
    assert reader.run(reader.core.positions.position(T0, 1_000)) == 12
    reader.commit()
    assert reader.committed(T0) == {T0: 12}


def test_fetches_that_fail_come_at_growing_intervals_and_so_do_questions_for_the_leader() -> None:
    simulation, reader = make_reader(retry_backoff_ms=100, retry_backoff_max_ms=1_000)
    reader.assign({T0: 0})
    assert len(reader.poll(1000)) == 10

    def fail(_program, call):
        return TransportError("gone") if isinstance(call.request, FetchRequest) else None

    simulation.fault = fail
    reader.calls.clear()
    reader.poll(10_000)
    assert len(reader.requests(FetchRequest)) <= 16, "ten a second at first, then one"
    assert len(reader.requests(MetadataRequest)) <= 16
    simulation.fault = None
    simulation.fill("t", 2, 1)
    assert offsets_of(reader.poll(5_000)) == [10]
