"""Produce: accepted and refused batches, and the time of the response."""

from __future__ import annotations

import errno

import pytest

from headrace.broker.context import CloseConnection
from headrace.errors import ErrorCode
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.batch import BatchHeader
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Compression
from tests.fixtures.broker_harness import (
    START_MS,
    BrokerHarness,
    Pending,
    batch,
    fetch_request,
    produce_request,
    values,
)


@pytest.fixture
def harness() -> BrokerHarness:
    made = BrokerHarness()
    made.create_topic("t", partitions=2)
    return made


def error_of(response) -> ErrorCode:
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


@pytest.mark.parametrize("version", range(3, 10))
@pytest.mark.parametrize("acks", [1, -1])
def test_a_batch_gets_its_offset(harness: BrokerHarness, version: int, acks: int):
    for expected in (0, 2):
        response = harness.call(produce_request("t", 0, batch(b"a", b"b"), acks=acks), version)
        (part,) = response.responses[0].partition_responses
        assert (part.error_code, part.base_offset, part.log_append_time_ms) == (0, expected, -1)
    assert values(harness.fetch("t", 0).records) == [b"a", b"b"] * 2


@pytest.mark.parametrize("compression", list(Compression))
def test_every_codec_is_kept_as_it_was_sent(harness: BrokerHarness, compression: Compression):
    harness.produce("t", b"x" * 1000)
    sent = batch(b"a" * 1000, compression=compression)
    harness.call(produce_request("t", 0, sent))
    stored = bytes(harness.fetch("t", 1).records)
    # The broker changes only base offset and leader epoch, which are outside the range of the checksum.
    assert stored[16:] == sent[16:]
    assert BatchHeader.parse(stored).base_offset == 1


@pytest.mark.parametrize(("version", "accepted"), [(6, False), (7, True)])
def test_zstd_needs_version_7(harness: BrokerHarness, version, accepted):
    request = produce_request("t", 0, batch(b"a", compression=Compression.ZSTD))
    expected = ErrorCode.NONE if accepted else ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert error_of(harness.call(request, version)) == expected


def test_acks_0_gets_no_answer_and_is_appended(harness: BrokerHarness):
    pending = harness.send(produce_request("t", 0, batch(b"a"), acks=0))
    assert pending.silent
    harness.sync()
    assert values(harness.fetch("t", 0).records) == [b"a"]


@pytest.mark.parametrize(
    ("topic", "records"), [("missing", batch(b"a")), ("t", b"rubbish" * 20), ("t", None)]
)
def test_acks_0_that_fails_closes_the_connection(harness: BrokerHarness, topic, records):
    with pytest.raises(CloseConnection, match="acks=0"):
        harness.send(produce_request(topic, 0, records, acks=0))


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_are_refused(harness: BrokerHarness, acks: int):
    response = harness.call(produce_request("t", 0, batch(b"a"), acks=acks))
    assert error_of(response) == ErrorCode.INVALID_REQUIRED_ACKS
    assert harness.fetch("t", 0).high_watermark == 0


def corrupted(records: bytes) -> bytes:
    return records[:-1] + bytes([records[-1] ^ 1])


def with_base_offset(records: bytes, offset: int) -> bytes:
    return offset.to_bytes(8) + records[8:]


def control_batch() -> bytes:
    builder = BatchBuilder(control=True)
    builder.append(b"\x00\x00\x00\x01", b"", timestamp_ms=START_MS)
    return bytes(builder.build())


@pytest.mark.parametrize(
    ("records", "error"),
    [
        (None, ErrorCode.INVALID_RECORD),
        (b"", ErrorCode.INVALID_RECORD),
        (batch(b"a")[:40], ErrorCode.INVALID_RECORD),
        (corrupted(batch(b"a")), ErrorCode.CORRUPT_MESSAGE),
        (batch(b"a") + batch(b"b"), ErrorCode.INVALID_RECORD),
        (with_base_offset(batch(b"a"), 5), ErrorCode.INVALID_RECORD),
        (control_batch(), ErrorCode.INVALID_RECORD),
        (batch(b"a")[:16] + b"\x01" + batch(b"a")[17:], ErrorCode.INVALID_RECORD),
        (batch(b"a" * 2_000_000), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=["null", "empty", "torn", "crc", "two", "base", "control", "magic", "large"],
)
def test_a_batch_that_is_not_sound_is_refused(harness: BrokerHarness, records, error):
    response = harness.call(produce_request("t", 0, records))
    (part,) = response.responses[0].partition_responses
    assert ErrorCode(part.error_code) == error
    assert part.base_offset == -1
    assert part.error_message
    assert harness.fetch("t", 0).high_watermark == 0


def test_the_size_limit_is_the_topics(harness: BrokerHarness):
    harness.create_topic("small", max_message_bytes="200")
    assert harness.produce("small", b"a" * 100).error_code == ErrorCode.NONE
    assert harness.produce("small", b"a" * 200).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_each_partition_of_a_produce_has_its_own_result(harness: BrokerHarness):
    def data(index: int, records: bytes) -> PartitionProduceData:
        return PartitionProduceData(index=index, records=records)

    response = harness.call(
        ProduceRequest(
            acks=-1,
            timeout_ms=1000,
            topic_data=[
                TopicProduceData(
                    name="t",
                    partition_data=[data(1, batch(b"a")), data(7, batch(b"a")), data(0, b"x" * 70)],
                ),
                TopicProduceData(name="missing", partition_data=[data(0, batch(b"a"))]),
            ],
        )
    )
    errors = [
        [(p.index, ErrorCode(p.error_code), p.base_offset) for p in topic.partition_responses]
        for topic in response.responses
    ]
    assert errors == [
        [
            (1, ErrorCode.NONE, 0),
            (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
            (0, ErrorCode.CORRUPT_MESSAGE, -1),
        ],
        [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)],
    ]


def test_a_client_does_not_write_internal_topics(harness: BrokerHarness):
    harness.create_offsets_topic()
    part = harness.produce("__consumer_offsets", b"a")
    assert part.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("acks", [1, -1])
def test_a_topic_needs_no_more_in_sync_replicas_than_it_has(harness: BrokerHarness, acks: int):
    harness.create_topic("careful", min_insync_replicas="2")
    assert harness.produce("careful", b"a", acks=acks).error_code == ErrorCode.NONE


def test_log_append_time_is_stamped_and_answered(harness: BrokerHarness):
    harness.create_topic("stamped", message_timestamp_type="LogAppendTime")
    harness.now_ms += 5000
    part = harness.produce("stamped", b"a")
    assert part.log_append_time_ms == harness.now_ms
    header = BatchHeader.parse(bytes(harness.fetch("stamped", 0).records))
    assert header.max_timestamp == harness.now_ms
    assert header.timestamp_type == 1


# Idempotent producers


def idempotent(sequence: int, *payload: bytes, epoch: int = 0, producer_id: int = 9) -> bytes:
    return batch(*payload, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def test_a_retry_is_answered_with_the_original_offset_once(harness: BrokerHarness):
    for sequence in range(5):
        harness.call(produce_request("t", 0, idempotent(sequence, b"a")))
    for sequence in range(5):
        response = harness.call(produce_request("t", 0, idempotent(sequence, b"a")))
        assert response.responses[0].partition_responses[0].base_offset == sequence
    assert harness.fetch("t", 0).high_watermark == 5


def test_a_retry_of_a_batch_that_is_not_durable_yet_waits_for_it(harness: BrokerHarness):
    first = harness.send(produce_request("t", 0, idempotent(0, b"a")))
    retry = harness.send(produce_request("t", 0, idempotent(0, b"a")))
    assert [first.done, retry.done] == [False, False]
    harness.sync()
    assert [first.done, retry.done] == [True, True]
    assert retry.response.responses[0].partition_responses[0].base_offset == 0


def test_gaps_and_old_epochs_are_refused(harness: BrokerHarness):
    harness.call(produce_request("t", 0, idempotent(0, b"a", epoch=1)))
    gap = harness.call(produce_request("t", 0, idempotent(2, b"a", epoch=1)))
    assert error_of(gap) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    old = harness.call(produce_request("t", 0, idempotent(1, b"a", epoch=0)))
    assert error_of(old) == ErrorCode.INVALID_PRODUCER_EPOCH
    newer = harness.call(produce_request("t", 0, idempotent(0, b"a", epoch=2)))
    assert error_of(newer) == ErrorCode.NONE


def test_sequences_survive_a_restart_and_a_crash(harness: BrokerHarness):
    harness.call(produce_request("t", 0, idempotent(0, b"a")))
    harness.restart()
    retry = harness.call(produce_request("t", 0, idempotent(0, b"a")))
    assert retry.responses[0].partition_responses[0].base_offset == 0
    harness.call(produce_request("t", 0, idempotent(1, b"b")))
    harness.crash()
    retry = harness.call(produce_request("t", 0, idempotent(1, b"b")))
    assert retry.responses[0].partition_responses[0].base_offset == 1
    assert values(harness.fetch("t", 0).records) == [b"a", b"b"]


@pytest.mark.parametrize("version", range(5))
def test_every_producer_id_is_allocated_once(version: int):
    harness = BrokerHarness()
    seen = []
    for _ in range(3):
        for _ in range(700):
            response = harness.call(
                InitProducerIdRequest(transactional_id=None, producer_id=5, producer_epoch=3),
                version,
            )
            assert (response.error_code, response.producer_epoch) == (0, 0)
            seen.append(response.producer_id)
        harness.crash()
    assert len(set(seen)) == len(seen)
    assert min(seen) >= 0


@pytest.mark.parametrize(("producer_id", "producer_epoch"), [(5, -1), (-1, 5)])
def test_an_id_without_an_epoch_is_no_identity(
    harness: BrokerHarness, producer_id: int, producer_epoch: int
):
    request = InitProducerIdRequest(
        transactional_id=None, producer_id=producer_id, producer_epoch=producer_epoch
    )
    assert harness.call(request).error_code == ErrorCode.INVALID_REQUEST


def test_an_empty_transactional_id_is_refused():
    harness = BrokerHarness()
    empty = harness.call(InitProducerIdRequest(transactional_id="", transaction_timeout_ms=1))
    assert empty.error_code == ErrorCode.INVALID_REQUEST


# Durability


def test_the_response_is_sent_after_the_sync(harness: BrokerHarness):
    first = harness.send(produce_request("t", 0, batch(b"a")))
    running = harness.broker.start_sync()
    assert running is not None
    second = harness.send(produce_request("t", 0, batch(b"b")))
    running.run()
    assert [first.done, second.done] == [False, False]
    harness.broker.finish_sync(running, None, harness.now_ms)
    # The second batch was appended after the sync had begun.
    assert [first.done, second.done] == [True, False]
    harness.sync()
    assert second.response.responses[0].partition_responses[0].base_offset == 1


def test_records_are_not_visible_before_they_are_durable(harness: BrokerHarness):
    harness.produce("t", b"a")
    harness.send(produce_request("t", 0, batch(b"b")))
    fetched = harness.fetch("t", 0)
    assert (fetched.high_watermark, fetched.last_stable_offset) == (1, 1)
    assert values(fetched.records) == [b"a"]
    harness.sync()
    assert values(harness.fetch("t", 0).records) == [b"a", b"b"]


def test_one_sync_completes_many_produces(harness: BrokerHarness):
    waiting = [harness.send(produce_request("t", i % 2, batch(b"a"))) for i in range(20)]
    assert harness.sync()
    assert all(pending.done for pending in waiting)
    assert not harness.sync(), "there is nothing left to sync"


def test_an_answer_for_two_partitions_waits_for_both(harness: BrokerHarness):
    request = produce_request("t", 0, batch(b"a"))
    request.topic_data[0].partition_data.append(PartitionProduceData(index=1, records=batch(b"b")))
    pending = harness.send(request)
    harness.sync()
    parts = pending.response.responses[0].partition_responses
    assert [(p.index, p.error_code) for p in parts] == [(0, 0), (1, 0)]


def test_with_durability_os_the_answer_does_not_wait():
    harness = BrokerHarness(durability="os")
    harness.create_topic("t")
    pending = harness.send(produce_request("t", 0, batch(b"a")))
    assert pending.done
    assert values(harness.fetch("t", 0).records) == [b"a"]
    assert not harness.sync(), "no request waits for a sync"


def test_with_durability_os_logs_are_synced_in_the_background():
    harness = BrokerHarness(durability="os")
    harness.create_topic("t")
    harness.produce("t", b"a")
    partition = harness.broker.services.partitions.require("t", 0)
    assert partition.log.synced_offset == 0
    harness.advance(30_000)
    assert harness.sync()
    assert partition.log.synced_offset == 1
    harness.produce("t", b"b")
    harness.advance(30_000)
    assert harness.sync()
    assert partition.log.synced_offset == 2


def test_a_timeout_is_an_error_although_the_batch_may_become_durable(harness: BrokerHarness):
    pending = harness.send(produce_request("t", 0, batch(b"a"), timeout_ms=500))
    harness.advance(499)
    assert not pending.done
    harness.advance(1)
    assert error_of(pending.response) == ErrorCode.REQUEST_TIMED_OUT
    harness.sync()
    assert values(harness.fetch("t", 0).records) == [b"a"]


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31)])
def test_a_produce_timeout_of_zero_or_less_expires_at_the_next_tick(
    harness: BrokerHarness, timeout_ms: int
):
    pending = harness.send(produce_request("t", 0, batch(b"a"), timeout_ms=timeout_ms))
    harness.advance(0)
    assert error_of(pending.response) == ErrorCode.REQUEST_TIMED_OUT


def test_a_failed_sync_fails_waiting_and_later_produces(harness: BrokerHarness):
    harness.produce("t", b"safe")
    waiting = [harness.send(produce_request("t", i, batch(b"a"))) for i in range(2)]
    harness.sync(OSError(errno.EIO, "Input/output error"))
    for pending in waiting:
        assert error_of(pending.response) == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.broker.failed
    assert harness.produce("t", b"b").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "log_directory_failed" in harness.journal.events("error")
    # A later sync must not make a batch durable that was reported as failed.
    batch_ = harness.broker.start_sync()
    assert batch_ is not None
    with pytest.raises(OSError, match="Input/output"):
        batch_.run()
    assert harness.fetch("t", 0).high_watermark == 1


def test_a_failed_append_fails_the_data_directory(harness: BrokerHarness):
    harness.produce("t", b"a")
    waiting = harness.send(produce_request("t", 1, batch(b"a")))
    log = harness.broker.services.partitions.require("t", 0).log

    def broken(*_args, **_options):
        raise OSError(errno.EIO, "Input/output error")

    partition = harness.broker.services.partitions.require("t", 0)
    partition.log = _Failing(log, broken)  # type: ignore[assignment]  # replaces a log on a broken disk
    response = harness.call(produce_request("t", 0, batch(b"b")))
    assert error_of(response) == ErrorCode.KAFKA_STORAGE_ERROR
    assert error_of(waiting.response) == ErrorCode.KAFKA_STORAGE_ERROR
    assert harness.broker.failed


class _Failing:
    def __init__(self, log, append) -> None:
        self._log = log
        self.append = append

    def __getattr__(self, name: str):
        return getattr(self._log, name)


def test_a_closed_broker_after_a_failure_is_not_clean(harness: BrokerHarness):
    harness.send(produce_request("t", 0, batch(b"a")))
    harness.sync(OSError(errno.EIO, "Input/output error"))
    harness.broker.close(harness.now_ms)
    assert harness.files.read_file("clean_shutdown") is None


def test_close_syncs_the_unsynced_records():
    harness = BrokerHarness(durability="os")
    harness.create_topic("t")
    harness.produce("t", b"a")
    harness.restart()
    assert values(harness.fetch("t", 0).records) == [b"a"]


def test_answering_may_bring_the_next_request_in_the_middle(harness: BrokerHarness):
    """A server passes the next request of a connection as soon as the last one has its response."""
    follow_ups: list[Pending] = []

    def next_requests() -> None:
        follow_ups.append(harness.send(produce_request("t", 0, batch(b"next"))))
        follow_ups.append(harness.send(fetch_request(("t", 0, 3))))

    first = harness.send(produce_request("t", 0, batch(b"0")), then=next_requests)
    others = [harness.send(produce_request("t", 0, batch(b"%d" % i))) for i in (1, 2)]
    harness.sync()
    assert [p.done for p in (first, *others)] == [True, True, True]
    assert [p.done for p in follow_ups] == [False, False]
    harness.sync()
    assert [p.done for p in follow_ups] == [True, True]
    assert values(follow_ups[1].response.responses[0].partitions[0].records) == [b"next"]
