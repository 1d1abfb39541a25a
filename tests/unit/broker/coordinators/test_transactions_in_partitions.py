"""Markers, producers and isolation levels: WriteTxnMarkers, DescribeProducers, Fetch, ListOffsets."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.consumer.records import FetchedBatches
from headrace.clients.flows.fetch import FetchedPartition
from headrace.core.log import Marker, build_marker
from headrace.core.log.index.transaction_index import TRANSACTION_INDEX
from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.types import TopicPartition
from tests.fixtures.broker_harness import (
    START_MS,
    BrokerHarness,
    batch,
    fetch_request,
    produce_request,
)
from tests.fixtures.transactions import transactional


@pytest.fixture
def harness() -> BrokerHarness:
    harness = BrokerHarness()
    harness.create_topic("t")
    return harness


def begin(harness: BrokerHarness, value: bytes, producer_id: int = 1, sequence: int = 0) -> None:
    """Append a transactional batch of a producer whose transaction the coordinator knows."""
    partition = harness.broker.services.partitions.require("t", 0)
    records = transactional((None, value), producer_id=producer_id, sequence=sequence)
    harness.broker.services.replicas.append(partition, records, harness.now_ms)
    harness.sync()


def end(harness: BrokerHarness, producer_id: int = 1, topic: str = "t", **fields: Any) -> int:
    """Write a marker and return the error code."""
    request = markers(producer_id, topic, **fields)
    return int(harness.call(request).markers[0].topics[0].partitions[0].error_code)


def markers(producer_id: int, topic: str = "t", **fields: Any) -> WriteTxnMarkersRequest:
    fields.setdefault("transaction_result", True)
    topics = [WritableTxnMarkerTopic(name=topic, partition_indexes=[0])]
    marker = WritableTxnMarker(producer_id=producer_id, topics=topics, **fields)
    return WriteTxnMarkersRequest(markers=[marker])


def consume(data: Any) -> list[bytes | None]:
    aborted = data.aborted_transactions or ()
    batches = FetchedBatches(
        TopicPartition("t", 0),
        FetchedPartition(
            records=bytes(data.records or b""),
            aborted_transactions=tuple((one.producer_id, one.first_offset) for one in aborted),
        ),
        check_crcs=True,
    )
    found: list[bytes | None] = []
    while (part := batches.next_slice()) is not None:
        found += [record.value for record in part.records]
    return found


def test_b16_read_committed_ends_where_a_transaction_is_open(harness: BrokerHarness):
    harness.produce("t", b"plain")
    begin(harness, b"open")
    harness.produce("t", b"after")
    committed = harness.fetch("t", 0, isolation_level=1)
    assert (committed.high_watermark, committed.last_stable_offset) == (3, 1)
    assert consume(committed) == [b"plain"]
    assert committed.aborted_transactions == []
    uncommitted = harness.fetch("t", 0)
    assert consume(uncommitted) == [b"plain", b"open", b"after"]
    assert uncommitted.last_stable_offset == 1
    assert uncommitted.aborted_transactions is None


def test_read_committed_gets_an_error_if_the_aborted_transactions_are_unknown(
    harness: BrokerHarness,
):
    begin(harness, b"aborted")
    end(harness, transaction_result=False)
    harness.broker.services.partitions.require("t", 0).log.roll(harness.now_ms)
    harness.restart()  # nothing is in memory any more
    log = harness.broker.services.partitions.require("t", 0).log
    log._log_files.files.remove(log.segments.all[0].sidecar_path(TRANSACTION_INDEX))
    refused = harness.fetch("t", 0, isolation_level=1)
    assert refused.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert not refused.records
    assert "read_failed" in harness.journal.events("error")
    assert consume(harness.fetch("t", 0)) == [b"aborted"]


@pytest.mark.parametrize("committed", [False, True])
def test_a_long_poll_of_read_committed_wakes_when_the_marker_is_durable(
    *, harness: BrokerHarness, committed: bool
):
    begin(harness, b"v")
    pending = harness.send(fetch_request(("t", 0, 0), isolation_level=1))
    begin(harness, b"w", sequence=1)  # the high watermark moves, but not the last stable offset
    assert not pending.done
    written = harness.send(markers(1, transaction_result=committed))
    assert not written.done
    assert not pending.done
    assert harness.sync()
    assert written.response.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
    data = pending.response.responses[0].partitions[0]
    assert data.last_stable_offset == 3
    assert consume(data) == ([b"v", b"w"] if committed else [])
    told = [(one.producer_id, one.first_offset) for one in data.aborted_transactions]
    assert told == ([] if committed else [(1, 0)])


def test_aborted_transactions_are_answered_in_the_order_of_their_first_offsets(
    harness: BrokerHarness,
):
    for producer_id in (1, 2, 3):
        begin(harness, b"%d" % producer_id, producer_id)
    for producer_id, committed in ((3, False), (2, True), (1, False)):
        assert end(harness, producer_id, transaction_result=committed) == ErrorCode.NONE
    data = harness.fetch("t", 0, isolation_level=1)
    told = [(one.producer_id, one.first_offset) for one in data.aborted_transactions]
    assert told == [(1, 0), (3, 2)]
    assert consume(data) == [b"2"]


def test_b14_b15_read_uncommitted_gets_aborted_records_and_no_list(harness: BrokerHarness):
    begin(harness, b"v")
    end(harness, transaction_result=False)
    data = harness.fetch("t", 0)
    assert data.aborted_transactions is None
    assert consume(data) == [b"v"]


def test_list_offsets_answers_by_isolation_level(harness: BrokerHarness):
    def latest(isolation_level: int, timestamp: int = -1) -> int:
        wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
        topic = ListOffsetsTopic(name="t", partitions=[wanted])
        request = ListOffsetsRequest(isolation_level=isolation_level, topics=[topic])
        return int(harness.call(request).topics[0].partitions[0].offset)

    harness.produce("t", b"plain")
    begin(harness, b"open")
    assert (latest(0), latest(1)) == (2, 1)
    harness.produce("t", b"later")
    assert (latest(0, START_MS), latest(1, START_MS)) == (0, 0)
    harness.call(produce_request("t", 0, batch(b"newer", timestamp_ms=START_MS + 5)))
    assert (latest(0, START_MS + 5), latest(1, START_MS + 5)) == (3, -1)
    end(harness)
    assert (latest(0), latest(1), latest(1, START_MS + 5)) == (5, 5, 3)


def test_markers_of_the_past_are_fenced(harness: BrokerHarness):
    begin(harness, b"v")
    assert end(harness, producer_epoch=2, coordinator_epoch=4) == ErrorCode.NONE
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert end(harness, producer_epoch=2, coordinator_epoch=3) == fenced
    assert end(harness, producer_epoch=1, coordinator_epoch=4) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(harness, -1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(harness, topic="none") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    records = batch(b"z", producer_id=1, producer_epoch=1, base_sequence=0)
    late = harness.call(produce_request("t", 0, records))
    part = late.responses[0].partition_responses[0]
    assert part.error_code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_clients_cannot_write_markers_or_batches_without_a_producer_id(harness: BrokerHarness):
    marker = build_marker(Marker(1, 0, 0, committed=True), START_MS)
    for records, code in (
        (marker, ErrorCode.INVALID_RECORD),
        (
            transactional((None, b"v"), producer_id=1),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    ):
        response = harness.call(produce_request("t", 0, records))
        assert response.responses[0].partition_responses[0].error_code == code
    assert harness.fetch("t", 0).high_watermark == 0


def test_producers_are_described(harness: BrokerHarness):
    harness.produce("t", b"plain")
    begin(harness, b"a", 7)
    begin(harness, b"b", 8)
    end(harness, 8, coordinator_epoch=5)
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0, 9])])
    known, unknown = harness.call(request).topics[0].partitions
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [
        (
            one.producer_id,
            one.producer_epoch,
            one.last_sequence,
            one.coordinator_epoch,
            one.current_txn_start_offset,
        )
        for one in known.active_producers
    ] == [(7, 0, 0, -1, 1), (8, 0, 0, 5, -1)]


def test_a_transaction_outlives_the_broker(harness: BrokerHarness):
    begin(harness, b"v")
    harness.restart()
    assert harness.fetch("t", 0, isolation_level=1).last_stable_offset == 0
    assert end(harness, transaction_result=False) == ErrorCode.NONE
    harness.crash()
    data = harness.fetch("t", 0, isolation_level=1)
    assert (data.last_stable_offset, consume(data)) == (2, [])
