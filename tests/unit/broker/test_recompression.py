"""Topics with a codec of their own: batches are compressed again, in order, and a few at a time."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from crc32c import crc32c

from headrace.broker import recompression
from headrace.broker.context import CloseConnection
from headrace.broker.recompression import BATCHES_MOST, SMALL_BYTES
from headrace.broker.session import Session
from headrace.broker.waiting.steps import STEP_COST
from headrace.errors import ErrorCode
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    CRC_POSITION,
    CRC_START,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    TimestampType,
)
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Compression, compress, decompress
from headrace.records.reader import Record, decode_batch
from headrace.records.recompression import RECOMPRESSED_MAX
from tests.fixtures.broker_harness import (
    START_MS,
    BrokerHarness,
    Pending,
    batch,
    produce_request,
    values,
)

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
CODEC_OF = dict(zip(CODECS, Compression, strict=True))
SLOW = 3 * SMALL_BYTES
"""The size of records from which on threads are used, if there are any."""


def text(size: int, seed: int = 0) -> bytes:
    """Return bytes that compress to about a half."""
    chance = random.Random(seed)
    return bytes(chance.choices(b"abcdefghijklmnop", k=size))


def part_of(response: Any) -> Any:
    return response.responses[0].partition_responses[0]


def stored(harness: BrokerHarness, topic: str = "t", partition: int = 0) -> list[bytes]:
    """Return the batches of a partition."""
    content = bytes(harness.fetch(topic, 0, partition, partition_max_bytes=1 << 26).records or b"")
    batches = []
    while content:
        size = BatchHeader.parse(content).size
        batches.append(content[:size])
        content = content[size:]
    return batches


def codecs(harness: BrokerHarness, topic: str = "t") -> list[Compression]:
    return [Compression(BatchHeader.parse(each).compression) for each in stored(harness, topic)]


def records_in(content: bytes) -> list[Record]:
    return decode_batch(BatchHeader.parse(content), content, 0)


def rich_batch(compression: Compression, **identity: int) -> bytes:
    """Build a batch with every part that a record can have."""
    builder = BatchBuilder(compression=compression)
    builder.append(b"k", b"v" * 300, [("h", b"1"), ("h", None), ("ü", b"")], START_MS + 5)
    builder.append(None, b"", [], START_MS - 7)
    builder.append(b"", None, [], START_MS + 9)
    return bytes(builder.build(**identity))


def sealed(content: bytearray) -> bytes:
    """Return a batch with a correct CRC."""
    struct.pack_into(">I", content, CRC_POSITION, crc32c(content[CRC_START:]))
    return bytes(content)


def patched(content: bytes, position: int, pattern: str, value: int) -> bytes:
    changed = bytearray(content)
    struct.pack_into(pattern, changed, position, value)
    return sealed(changed)


def with_payload(content: bytes, payload: bytes) -> bytes:
    changed = bytearray(content[:HEADER_SIZE] + payload)
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    return sealed(changed)


class Threads:
    """Threads for a broker. Work waits here until the test runs it."""

    def __init__(self, harness: BrokerHarness) -> None:
        self._harness = harness
        self.work: list[tuple[Callable[[], Any], Callable[[Any], object]]] = []
        harness.broker.services.recompressions.run_aside = lambda work, done: self.work.append(
            (work, done)
        )

    def finish(self, index: int = 0) -> None:
        """Run some work, and pass the result to the broker."""
        work, done = self.work.pop(index)
        done(work())
        self._harness.broker.tick(self._harness.now_ms)

    def finish_all(self) -> None:
        while self.work or self._harness.step():
            if self.work:
                self.finish()


@pytest.fixture
def harness() -> BrokerHarness:
    return BrokerHarness()


@pytest.mark.parametrize("sent", list(Compression))
@pytest.mark.parametrize("name", CODECS)
def test_a_batch_is_stored_with_the_codec_of_its_topic(
    harness: BrokerHarness, name: str, sent: Compression
):
    harness.create_topic("t", compression_type=name)
    original = rich_batch(sent, producer_id=7, producer_epoch=0, base_sequence=0)
    harness.produce("t", b"before")
    assert part_of(harness.call(produce_request("t", 0, original))).error_code == 0
    _, content = stored(harness)
    header, before = BatchHeader.parse(content), BatchHeader.parse(original)
    assert Compression(header.compression) is CODEC_OF[name]
    expected = before._replace(
        base_offset=1,
        batch_length=header.batch_length,
        partition_leader_epoch=header.partition_leader_epoch,
        crc=header.crc,
        attributes=CODEC_OF[name],
    )
    assert header == expected
    assert [each[1:] for each in records_in(content)] == [each[1:] for each in records_in(original)]
    if sent is CODEC_OF[name]:
        assert content[CRC_POSITION:] == original[CRC_POSITION:]


@pytest.mark.parametrize(
    ("settings", "codec", "level"),
    [
        ({"compression_type": "gzip"}, Compression.GZIP, 6),
        ({"compression_type": "gzip", "compression_gzip_level": "1"}, Compression.GZIP, 1),
        ({"compression_type": "gzip", "compression_gzip_level": "9"}, Compression.GZIP, 9),
        ({"compression_type": "lz4"}, Compression.LZ4, 1),
        ({"compression_type": "lz4", "compression_lz4_level": "17"}, Compression.LZ4, 12),
        ({"compression_type": "lz4", "compression_lz4_level": "1"}, Compression.LZ4, 3),
        ({"compression_type": "zstd"}, Compression.ZSTD, 3),
        ({"compression_type": "zstd", "compression_zstd_level": "-20"}, Compression.ZSTD, -20),
        ({"compression_type": "zstd", "compression_zstd_level": "19"}, Compression.ZSTD, 19),
    ],
)
def test_the_levels_are_the_topics(harness: BrokerHarness, settings, codec, level):
    harness.create_topic("t", **settings)
    sent = batch(text(20_000))
    harness.call(produce_request("t", 0, sent))
    (content,) = stored(harness)
    assert content[HEADER_SIZE:] == compress(codec, sent[HEADER_SIZE:], level)


def test_a_batch_with_the_topics_codec_is_stored_unchanged_at_any_level(harness: BrokerHarness):
    harness.create_topic("t", compression_type="gzip", compression_gzip_level="9")
    builder = BatchBuilder(compression=Compression.GZIP, level=1)
    builder.append(None, text(5000), timestamp_ms=START_MS)
    sent = bytes(builder.build())
    harness.call(produce_request("t", 0, sent))
    assert stored(harness)[0][CRC_POSITION:] == sent[CRC_POSITION:]


def test_the_brokers_default_counts_for_topics_without_their_own():
    harness = BrokerHarness(compression_type="zstd", compression_zstd_level=7)
    harness.create_topic("t")
    harness.create_topic("own", compression_type="producer")
    sent = batch(text(20_000))
    for topic in ("t", "own"):
        harness.call(produce_request(topic, 0, sent))
    assert stored(harness)[0][HEADER_SIZE:] == compress(Compression.ZSTD, sent[HEADER_SIZE:], 7)
    assert codecs(harness, "own") == [Compression.NONE]


def alter(harness: BrokerHarness, topic: str, name: str, value: str) -> None:
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=2,
                resource_name=topic,
                configs=[AlterableConfig(name=name, config_operation=0, value=value)],
            )
        ]
    )
    assert harness.call(request).responses[0].error_code == 0


def test_a_change_applies_to_later_batches(harness: BrokerHarness):
    harness.create_topic("t")
    for name in ("gzip", "uncompressed", "snappy", "producer"):
        harness.produce("t", text(1000))
        alter(harness, "t", "compression.type", name)
    harness.produce("t", text(1000), b"")
    assert codecs(harness) == [0, Compression.GZIP, 0, Compression.SNAPPY, 0]


def test_a_retry_is_recognised(harness: BrokerHarness):
    harness.create_topic("t", compression_type="lz4")
    identity = {"producer_id": 9, "producer_epoch": 0}
    for sequence in (0, 1, 1, 0, 2):
        sent = batch(b"%d" % sequence, base_sequence=sequence, **identity)
        part = part_of(harness.call(produce_request("t", 0, sent)))
        assert (part.error_code, part.base_offset) == (0, sequence)
    sent = batch(b"gap", base_sequence=9, **identity)
    part = part_of(harness.call(produce_request("t", 0, sent)))
    assert part.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_largest_timestamp_is_that_of_the_records(harness: BrokerHarness):
    harness.create_topic("t", compression_type="zstd")
    lying = patched(rich_batch(Compression.NONE), 35, ">q", START_MS - 100)
    harness.call(produce_request("t", 0, lying))
    assert BatchHeader.parse(stored(harness)[0]).max_timestamp == START_MS + 9


def test_a_delete_horizon_is_not_the_producers_to_set(harness: BrokerHarness):
    harness.create_topic("t", compression_type="zstd")
    content = rich_batch(Compression.NONE)
    harness.call(produce_request("t", 0, patched(content, CRC_START, ">h", DELETE_HORIZON_FLAG)))
    (kept,) = stored(harness)
    assert BatchHeader.parse(kept).attributes == Compression.ZSTD
    assert records_in(kept) == records_in(content)


def test_log_append_time(harness: BrokerHarness):
    harness.create_topic("t", compression_type="snappy", message_timestamp_type="LogAppendTime")
    harness.now_ms += 5000
    part = part_of(harness.call(produce_request("t", 0, rich_batch(Compression.GZIP))))
    header = BatchHeader.parse(stored(harness)[0])
    assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert part.log_append_time_ms == header.max_timestamp == harness.now_ms
    assert Compression(header.compression) is Compression.SNAPPY


def of_records(*timestamps: int, compression: Compression = Compression.NONE) -> bytes:
    builder = BatchBuilder(compression=compression)
    for timestamp in timestamps:
        builder.append(b"k", b"v", timestamp_ms=timestamp)
    return bytes(builder.build())


def renumbered() -> bytes:
    """Return a batch whose second record claims to be the first."""
    good = batch(b"one", b"two")
    second = good.rindex(b"\x00\x00\x02\x01")
    return sealed(bytearray(good[:second] + b"\x00\x00\x00\x01" + good[second + 4 :]))


ZIPPED = batch(b"one", b"two", compression=Compression.GZIP)


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (with_payload(ZIPPED, b"garbage" * 9), ErrorCode.INVALID_RECORD),
        (with_payload(ZIPPED, ZIPPED[HEADER_SIZE:-4]), ErrorCode.INVALID_RECORD),
        (with_payload(ZIPPED, compress(Compression.GZIP, b"garbage")), ErrorCode.INVALID_RECORD),
        (with_payload(ZIPPED, compress(Compression.GZIP, b"")), ErrorCode.INVALID_RECORD),
        (renumbered(), ErrorCode.INVALID_RECORD),
        (ZIPPED[:-1] + b"\x7f", ErrorCode.CORRUPT_MESSAGE),
        (
            patched(patched(ZIPPED, 57, ">i", 3), 23, ">i", 2),
            ErrorCode.INVALID_RECORD,
        ),
        (patched(ZIPPED, CRC_START, ">h", 5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (
            patched(ZIPPED, CRC_START, ">h", TRANSACTIONAL_FLAG),
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
        (of_records(START_MS, START_MS - 9000, START_MS), ErrorCode.INVALID_TIMESTAMP),
        (
            patched(of_records(START_MS, START_MS + 9000), 35, ">q", START_MS),
            ErrorCode.INVALID_TIMESTAMP,
        ),
        (batch(b"x" * 2_000_000, compression=Compression.GZIP), ErrorCode.NONE),
        (batch(text(2_000_000)), ErrorCode.MESSAGE_TOO_LARGE),
    ],
    ids=[
        "no gzip",
        "cut",
        "no records",
        "empty",
        "numbers",
        "crc",
        "count",
        "codec",
        "transactional",
        "old",
        "new",
        "compresses well",
        "large",
    ],
)
@pytest.mark.parametrize("acks", [-1, 0])
def test_a_batch_with_invalid_records_is_refused(harness: BrokerHarness, sent, error, acks):
    harness.create_topic(
        "t",
        compression_type="zstd",
        message_timestamp_before_max_ms="5000",
        message_timestamp_after_max_ms="5000",
    )
    request = produce_request("t", 0, sent, acks=acks)
    if acks == 0:
        if error:
            with pytest.raises(CloseConnection, match="acks=0"):
                harness.send(request)
        return
    part = part_of(harness.call(request))
    assert ErrorCode(part.error_code) == error
    assert bool(part.error_message) == bool(error)
    assert (harness.fetch("t", 0).high_watermark == 0) == bool(error)


@pytest.mark.parametrize("sent", [Compression.NONE, Compression.ZSTD])
def test_a_batch_that_is_too_large_after_recompression_is_refused(
    harness: BrokerHarness, sent: Compression
):
    harness.create_topic("t", compression_type="uncompressed", max_message_bytes="1000")
    request = produce_request("t", 0, batch(b"x" * 2000, compression=sent))
    assert part_of(harness.call(request)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    request = produce_request("t", 0, batch(b"x" * 800, compression=sent))
    assert part_of(harness.call(request)).error_code == 0


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("sent", [each for each in Compression if each is not Compression.LZ4])
def test_records_that_decompress_to_too_much_are_refused(harness: BrokerHarness, sent, threads):
    """Producers divide a batch upon MESSAGE_TOO_LARGE."""
    harness.create_topic("t", compression_type="lz4", max_message_bytes=str(1 << 20))
    lent = Threads(harness) if threads else None
    many = batch(b"\0" * (RECOMPRESSED_MAX + 1), compression=sent)
    pending = harness.send(produce_request("t", 0, many), session=Session())
    if lent is None:
        while harness.step():
            pass
    else:
        lent.finish_all()
    assert part_of(pending.response).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_records_that_consumers_would_refuse_are_refused(harness: BrokerHarness):
    """Consumers take a batch of this ratio for a decompression bomb."""
    harness.create_topic("t", compression_type="zstd")
    size = 8 << 20
    sent = batch(b"\0" * size, compression=Compression.LZ4)
    part = part_of(harness.call(produce_request("t", 0, sent)))
    assert part.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "with zstd" in part.error_message


@pytest.mark.slow
def test_a_larger_bound_of_batches_allows_larger_records(harness: BrokerHarness):
    harness.create_topic("t", compression_type="snappy", max_message_bytes=str(20 << 20))
    sent = batch(text(1 << 16) * 270, compression=Compression.GZIP)
    assert part_of(harness.call(produce_request("t", 0, sent))).error_code == 0


@pytest.mark.parametrize(
    ("settings", "sent", "error"),
    [
        ({"cleanup_policy": "compact"}, of_records(START_MS), ErrorCode.NONE),
        ({"cleanup_policy": "compact"}, batch(b"no key"), ErrorCode.INVALID_RECORD),
    ],
)
def test_a_compacted_topic_wants_keys(harness: BrokerHarness, settings, sent, error):
    harness.create_topic("t", compression_type="gzip", **settings)
    part = part_of(harness.call(produce_request("t", 0, sent)))
    assert (part.error_code, [each.batch_index for each in part.record_errors]) == (
        error,
        [0] if error else [],
    )


def test_steps_are_short(harness: BrokerHarness):
    harness.create_topic("t", compression_type="gzip")
    sent = batch(text(900_000))
    session = Session()
    pending = harness.send(produce_request("t", 0, sent), session=session)
    steps = 0
    assert session.busy
    while harness.step():
        steps += 1
    assert steps >= 900_000 * 8 // STEP_COST - 1
    harness.sync()
    assert part_of(pending.response).error_code == 0
    assert not session.busy


def slow(seed: int = 0, **identity: int) -> bytes:
    return batch(text(SLOW, seed), **identity)


def send(harness: BrokerHarness, sent: bytes, partition: int = 0, **options: Any) -> Pending:
    options.setdefault("session", Session())
    acks = options.pop("acks", -1)
    return harness.send(produce_request("t", partition, sent, acks=acks), **options)


def test_a_thread_recompresses_a_slow_batch(harness: BrokerHarness):
    harness.create_topic("t", compression_type="gzip")
    threads = Threads(harness)
    session = Session()
    pending = send(harness, slow(), session=session)
    assert len(threads.work) == 1
    harness.step()
    assert (pending.done, session.busy) == (False, True)
    threads.finish()
    assert (pending.done, session.busy) == (False, False)
    harness.sync()
    assert part_of(pending.response).error_code == 0
    assert codecs(harness) == [Compression.GZIP]


def test_small_batches_need_no_thread(harness: BrokerHarness):
    harness.create_topic("t", compression_type="gzip")
    threads = Threads(harness)
    pending = send(harness, batch(b"x" * 16_000, compression=Compression.ZSTD))
    assert not threads.work
    harness.sync()
    assert part_of(pending.response).error_code == 0


def test_a_thread_decompresses_large_batches_and_refuses_damaged_batches(harness: BrokerHarness):
    harness.create_topic("t", compression_type="uncompressed", max_message_bytes=str(4 << 20))
    threads = Threads(harness)
    good = send(harness, slow(compression=Compression.ZSTD))
    damaged = bytearray(slow(compression=Compression.ZSTD))
    damaged[HEADER_SIZE + 1000 :] = bytes(len(damaged) - HEADER_SIZE - 1000)
    bad = send(harness, sealed(damaged))
    assert len(threads.work) == 2
    threads.finish_all()
    harness.sync()
    assert part_of(good.response).error_code == 0
    assert part_of(bad.response).error_code == ErrorCode.INVALID_RECORD


def test_few_batches_are_recompressed_at_a_time_and_the_others_wait_in_order(
    harness: BrokerHarness,
):
    harness.create_topic("t", partitions=1, compression_type="gzip")
    threads = Threads(harness)
    count = BATCHES_MOST + 3
    pendings = [send(harness, slow(number)) for number in range(count)]
    small = send(harness, batch(b"small"))
    assert len(threads.work) == BATCHES_MOST
    assert not small.done
    threads.finish_all()
    harness.sync()
    offsets = [part_of(each.response).base_offset for each in (*pendings, small)]
    assert sorted(offsets) == list(range(count + 1))
    assert offsets[: BATCHES_MOST + 1] == list(range(BATCHES_MOST + 1))


def test_hundreds_that_wait_do_not_nest(harness: BrokerHarness):
    """Each batch starts the next one. Nested calls would exceed the stack."""
    harness.create_topic("t", compression_type="gzip")
    threads = Threads(harness)
    first = [send(harness, slow(number)) for number in range(BATCHES_MOST)]
    small = [send(harness, batch(b"%d" % number)) for number in range(2000)]
    threads.finish_all()
    harness.sync()
    assert {part_of(each.response).error_code for each in (*first, *small)} == {0}
    assert sorted(part_of(each.response).base_offset for each in (*first, *small)) == list(
        range(2000 + BATCHES_MOST)
    )


@pytest.mark.parametrize("acks", [-1, 0])
def test_a_cancelled_produce_still_writes_its_batch(harness: BrokerHarness, acks: int):
    """A program with nothing more to send ends in this way with acks=0."""
    harness.create_topic("t", compression_type="gzip")
    threads = Threads(harness)
    pending = send(harness, slow(), acks=acks)
    pending.cancel()
    threads.finish_all()
    harness.sync()
    assert codecs(harness) == [Compression.GZIP]


def test_failed_work_frees_its_place_for_the_next_batch(
    harness: BrokerHarness, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise no batch would be compressed any more, and no request would get a response."""
    harness.create_topic("t", compression_type="gzip")
    threads = Threads(harness)
    sessions = [Session() for _ in range(BATCHES_MOST)]
    with monkeypatch.context() as patched:
        patched.setattr(recompression, "compress", out_of_memory)
        failed = [send(harness, slow(), session=session) for session in sessions]
        threads.finish_all()
    assert all(isinstance(each.raised, MemoryError) for each in failed)
    assert not any(session.busy for session in sessions)
    good = send(harness, slow())
    threads.finish_all()
    harness.sync()
    assert part_of(good.response).error_code == 0


def out_of_memory(*_: object) -> bytes:
    raise MemoryError


def test_a_topic_that_is_deleted_meanwhile(harness: BrokerHarness):
    harness.create_topic("t", compression_type="gzip")
    threads = Threads(harness)
    pending = send(harness, slow())
    deletion = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
    harness.call(deletion)
    threads.finish_all()
    harness.sync()
    assert part_of(pending.response).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_time_out_of_a_request_begins_when_its_batch_is_appended(harness: BrokerHarness):
    """Otherwise a batch would get REQUEST_TIMED_OUT because of the batches before it."""
    harness.create_topic("t", compression_type="gzip")
    threads = Threads(harness)
    pending = send(harness, slow())
    harness.now_ms += 60_000
    threads.finish_all()
    harness.advance(10)
    harness.sync()
    assert part_of(pending.response).error_code == 0


def test_the_connection_pays_for_threads(harness: BrokerHarness):
    harness.create_topic("t", compression_type="gzip")
    threads = Threads(harness)
    harness.broker.services.quotas.active = True
    session = Session()
    send(harness, slow(), session=session)
    paid = session.unpaid_us
    threads.finish_all()
    assert session.unpaid_us - paid > 1000


def test_partitions_of_one_request(harness: BrokerHarness):
    harness.create_topic("t", partitions=3, compression_type="zstd")
    harness.create_topic("plain")
    data = [
        PartitionProduceData(index=0, records=slow(compression=Compression.GZIP)),
        PartitionProduceData(index=1, records=with_payload(ZIPPED, b"garbage" * 9)),
        PartitionProduceData(index=7, records=batch(b"nowhere")),
        PartitionProduceData(index=2, records=batch(b"two")),
    ]
    plain = [PartitionProduceData(index=0, records=batch(b"plain"))]
    request = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(name="t", partition_data=data),
            TopicProduceData(name="plain", partition_data=plain),
        ],
    )
    response = harness.call(request)
    answers = response.responses
    assert [(part.index, part.error_code) for part in answers[0].partition_responses] == [
        (0, 0),
        (1, ErrorCode.INVALID_RECORD),
        (7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, 0),
    ]
    assert answers[1].partition_responses[0].error_code == 0
    assert codecs(harness) == [Compression.ZSTD]
    assert codecs(harness, "plain") == [Compression.NONE]


@pytest.mark.parametrize("extra", ["headrace_ttl_enable", "headrace_filter_enable"])
def test_topics_that_look_into_records(harness: BrokerHarness, extra: str):
    settings: dict[str, Any] = {"compression_type": "gzip", extra: "true"}
    harness.create_topic("t", **settings)
    builder = BatchBuilder(compression=Compression.SNAPPY)
    for number in range(10):
        headers = [("headrace.ttl-ms", b"1000")] if number % 2 else []
        builder.append(None, b"%d" % number, headers, START_MS)
    assert part_of(harness.call(produce_request("t", 0, bytes(builder.build())))).error_code == 0
    assert codecs(harness) == [Compression.GZIP]
    if extra == "headrace_ttl_enable":
        harness.now_ms += 2000
        assert values(harness.fetch("t", 0).records) == [b"%d" % n for n in range(0, 10, 2)]
        assert codecs(harness)[0] == Compression.GZIP


def test_scheduled_records_have_the_codec_of_the_topic(harness: BrokerHarness):
    harness.create_topic("t", compression_type="gzip", headrace_delay_enable="true")
    builder = BatchBuilder(compression=Compression.LZ4)
    builder.append(None, b"later" * 100, [("headrace.delay-ms", b"1000")], START_MS)
    builder.append(None, b"now" * 100, [], START_MS)
    assert part_of(harness.call(produce_request("t", 0, bytes(builder.build())))).error_code == 0
    assert values(harness.fetch("t", 0).records) == [b"now" * 100]
    harness.advance(2000)
    harness.sync()
    harness.advance(10)
    found = stored(harness)
    assert [
        records_in(each)[-1].value for each in found if not each[CRC_START + 1] & CONTROL_FLAG
    ] == [
        b"now" * 100,
        b"later" * 100,
    ]
    assert {
        each[CRC_START + 1] & COMPRESSION_MASK
        for each in found
        if not each[CRC_START + 1] & CONTROL_FLAG
    } == {Compression.GZIP}


def test_a_recompressed_batch_decompresses_to_the_same_bytes(harness: BrokerHarness):
    harness.create_topic("t", compression_type="lz4")
    sent = slow(compression=Compression.GZIP)
    harness.call(produce_request("t", 0, sent))
    (content,) = stored(harness)
    assert decompress(Compression.LZ4, content[HEADER_SIZE:]) == decompress(
        Compression.GZIP, sent[HEADER_SIZE:]
    )
