"""The largest and smallest values of every 32-bit and 64-bit field, in everything that a broker does with a batch.

The fields of a batch are drawn from the ends of their ranges. The batch goes through append, fetch, time lookups,
compaction, the removal of expired records, retention, a kill and a clean restart. A refused batch gets an error of
Kafka. An acknowledged batch can be read with the same offsets, keys and values. Its timestamps are the sum of base
timestamp and delta, wrapped to 64 bits. No batch may raise an exception in a round of compaction, or in a tick.
"""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headrace.errors import ErrorCode
from headrace.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from headrace.records.batch import CRC_POSITION, CRC_START, HEADER, BatchHeader, iterate_headers
from headrace.records.compression import Compression, compress
from headrace.records.reader import Record, read_records
from headrace.records.varint import encode_varint, wrap
from headrace.storage.memory_files import MemoryFileSystem
from tests.fixtures.broker_harness import START_MS, BrokerHarness, produce_request

pytestmark = pytest.mark.slow  # not in `make check`

INT32, INT64 = 2**31, 2**63
EVER = str(INT64 - 1)
HOUR_MS = 3_600_000


def ends(*further: int, limit: int = INT64) -> st.SearchStrategy[int]:
    """Draw numbers near the ends of a signed type, near zero, and near others."""
    near = [-limit, -limit // 2, -1, 0, limit // 2, limit - 1, *further]
    values = sorted({each + shift for each in near for shift in (-1, 0, 1)})
    return st.sampled_from([each for each in values if -limit <= each < limit])


TIMES = ends(START_MS, START_MS - HOUR_MS, -86_400_000)
SPANS = ends(1, HOUR_MS).filter(lambda value: value >= 0)
BYTES = st.sampled_from([None, b"", b"v"])


@st.composite
def batches(draw: st.DrawFn, *, with_keys: bool) -> bytes:
    """Build a batch whose header contradicts its records, as far as a producer can do that."""
    count = draw(st.integers(1, 4))
    base = draw(TIMES)
    rows = b""
    for number in range(count):
        key = draw(st.sampled_from([b"a", b"b", b"c"] if with_keys else [None, b"", b"a"]))
        value = draw(BYTES)
        headers = b"\x00"
        if draw(st.booleans()):
            name = draw(st.sampled_from([b"headrace.ttl-ms", b"other"]))
            digits = draw(st.sampled_from([b"0", b"1000", b"253402300799999", b"9" * 19]))
            content = digits if name != b"other" else b""
            headers = encode_varint(1) + field(name) + field(content)
        delta = draw(st.one_of(st.just(number), TIMES))
        body = b"\x00" + encode_varint(delta) + encode_varint(number)
        body += field(key) + field(value) + headers
        rows += encode_varint(len(body)) + body
    producer_id = draw(st.sampled_from([-1, -1, 0, INT64 - 1]))
    epoch = draw(st.sampled_from([0, 32767])) if producer_id >= 0 else -1
    sequence = draw(st.sampled_from([0, INT32 - 2, INT32 - 1])) if producer_id >= 0 else -1
    codec = draw(st.sampled_from([Compression.NONE, Compression.GZIP]))
    if codec is not Compression.NONE:
        rows = bytes(compress(codec, rows))
    newest = draw(st.one_of(st.just(base), TIMES))
    batch = bytearray(
        HEADER.pack(
            0,
            HEADER.size - 12 + len(rows),
            draw(ends(limit=INT32)),
            2,
            0,
            int(codec),
            count - 1,
            base,
            newest,
            producer_id,
            epoch,
            sequence,
            count,
        )
    )
    batch += rows
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)


def field(content: bytes | None) -> bytes:
    return encode_varint(-1) if content is None else encode_varint(len(content)) + content


REFUSALS = {
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
}


class Harness:
    """A broker with a topic, and the acknowledged records."""

    def __init__(self, policy: str, times: dict[str, int]) -> None:
        configs: dict[str, Any] = {key: str(value) for key, value in times.items()}
        self.harness = BrokerHarness(files=MemoryFileSystem())
        self.harness.create_topic(
            "t",
            cleanup_policy=policy,
            segment_bytes="400",
            min_cleanable_dirty_ratio="0.01",
            headrace_ttl_enable="false" if policy == "compact" else "true",
            message_timestamp_before_max_ms=EVER,
            message_timestamp_after_max_ms=EVER,
            **configs,
        )
        self.kept: dict[int, tuple[int, bytes | None, bytes | None]] = {}

    def produce(self, batch: bytes) -> None:
        pending = self.harness.call(produce_request("t", 0, batch))
        part = pending.responses[0].partition_responses[0]
        if part.error_code:
            assert part.error_code in REFUSALS, part
            return
        header = BatchHeader.parse(batch)
        for number, record in enumerate(read_records(batch)):
            assert -INT64 <= record.timestamp < INT64
            assert record.timestamp == wrap(record.timestamp)
            place = part.base_offset + number
            # A batch with the sequence of an earlier batch counts as its retry.
            self.kept.setdefault(place, (record.timestamp, record.key, record.value))
        assert header.records_count

    def read(self) -> dict[int, Record]:
        found: dict[int, Record] = {}
        partition = self.harness.broker.services.partitions.require("t", 0)
        offset = partition.log_start_offset
        while offset < partition.high_watermark:
            part = self.harness.fetch("t", offset)
            assert part.error_code == 0
            data = bytes(part.records)
            for record in read_records(data):
                if record.offset >= offset:
                    found[record.offset] = record
            last = [header for _, header in iterate_headers(data)][-1]
            assert last.next_offset > offset
            offset = last.next_offset
        return found

    def lookup(self, timestamp: int) -> None:
        rows = [ListOffsetsPartition(partition_index=0, timestamp=timestamp)]
        topics = [ListOffsetsTopic(name="t", partitions=rows)]
        part = self.harness.call(ListOffsetsRequest(topics=topics)).topics[0].partitions[0]
        assert part.error_code == 0
        end = self.harness.broker.services.partitions.require("t", 0).high_watermark
        assert -1 <= part.offset <= end

    def check(self) -> None:
        for record in self.read().values():
            assert self.kept[record.offset] == (record.timestamp, record.key, record.value)
        for timestamp in (-3, -2, -1, 0, 1, START_MS, INT64 - 1):
            self.lookup(timestamp)
        assert not self.harness.broker.failed
        assert not self.harness.journal.events("error"), self.harness.journal.lines[-1]


CONFIGS = st.fixed_dictionaries(
    {
        "retention_ms": st.one_of(SPANS, st.just(-1)),
        "retention_bytes": st.one_of(SPANS, st.just(-1)),
        "delete_retention_ms": SPANS,
        "segment_ms": SPANS.filter(lambda value: value > 0),
        "min_compaction_lag_ms": st.sampled_from([0, 0, 1, INT64 - 1]),
        "max_compaction_lag_ms": SPANS.filter(lambda value: value > 0),
    }
)
FEW = settings(  # each example makes a broker, and shrinking would make hundreds
    max_examples=int(os.environ.get("HEADRACE_EXTREMES", "60")),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)


def live(world: Harness, produced: list[bytes], waits: list[int]) -> None:
    for number, batch in enumerate(produced):
        world.produce(batch)
        if number % 3 == 2:
            world.harness.advance(HOUR_MS)
    for wait in waits:
        world.check()
        world.harness.advance(wait)
        world.check()
    world.harness.crash()
    world.check()
    world.harness.restart()
    world.harness.advance(HOUR_MS)
    world.check()


@FEW
@given(st.lists(batches(with_keys=True), min_size=1, max_size=8), CONFIGS)
def test_any_field_at_its_end_is_read_again_on_a_compacted_topic(
    produced: list[bytes], configs: dict[str, int]
) -> None:
    if configs["min_compaction_lag_ms"] > configs["max_compaction_lag_ms"]:
        configs["min_compaction_lag_ms"] = 0
    world = Harness("compact", configs)
    live(world, produced, [HOUR_MS, HOUR_MS])
    newest = {key: offset for offset, (_, key, _) in sorted(world.kept.items())}
    found = world.read()
    for offset in newest.values():
        if world.kept[offset][2] is not None:  # a tombstone is removed after its retention
            assert offset in found


@FEW
@given(st.lists(batches(with_keys=False), min_size=1, max_size=8), CONFIGS)
def test_any_field_at_its_end_is_read_again_on_a_topic_with_expiring_records(
    produced: list[bytes], configs: dict[str, int]
) -> None:
    configs = {key: value for key, value in configs.items() if "compaction" not in key}
    live(Harness("delete", configs), produced, [HOUR_MS, 3 * HOUR_MS])


def test_a_tombstone_from_before_1970_is_kept_for_ever_with_its_neighbours() -> None:
    world = Harness("compact", {"delete_retention_ms": INT64 - 1})
    header = BatchHeader.parse(edge_batch())
    assert header.base_timestamp < 0
    live(world, [edge_batch() for _ in range(20)], [HOUR_MS])
    rounds = world.harness.journal.events("info").count("log_compacted")
    assert rounds
    values = {record.key: record.value for record in world.read().values()}
    assert values == {b"alice": b"1", b"bob": None}


def test_a_batch_kept_for_ever_has_the_time_of_its_newest_record_after_each_round() -> None:
    world = Harness("compact", {"delete_retention_ms": INT64 - 1})
    for number in range(6):
        world.produce(edge_batch(b"alice %d" % number, b"bob %d" % number, later=86_401_000))
    for _ in range(3):  # the first round moves the base timestamp, the next ones drop `last`
        world.produce(edge_batch(b"zoe", b"yann"))
        world.harness.advance(HOUR_MS)
    log = world.harness.broker.services.partitions.require("t", 0).log
    newest: dict[int, int] = {}
    for segment in log.segments.all:
        for batch in segment.walk(0, segment.size):
            newest |= dict.fromkeys(
                range(batch.base_offset, batch.next_offset), batch.max_timestamp
            )
    for record in world.read().values():
        assert newest[record.offset] >= record.timestamp


def edge_batch(first: bytes = b"alice", second: bytes = b"bob", later: int = 0) -> bytes:
    """Build a batch from before 1970 with a record, a tombstone, and with `later` a record that is overwritten."""
    base = -86_400_000
    entries = [(first, b"1", later), (second, None, 0)]
    if later:
        entries.append((b"last", b"x", 0))
    rows = b""
    for number, (key, value, delta) in enumerate(entries):
        body = b"\x00" + encode_varint(delta) + encode_varint(number)
        body += field(key) + field(value) + b"\x00"
        rows += encode_varint(len(body)) + body
    last = len(entries) - 1
    header = (0, HEADER.size - 12 + len(rows), 0, 2, 0, 0, last, base, base + later, -1, -1, -1)
    batch = bytearray(HEADER.pack(*header, len(entries))) + rows
    struct.pack_into(">I", batch, CRC_POSITION, crc32c(memoryview(batch)[CRC_START:]))
    return bytes(batch)
