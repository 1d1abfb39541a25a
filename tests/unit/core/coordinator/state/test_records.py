"""The records that are written to `__consumer_offsets`, byte by byte as Kafka writes them."""

from __future__ import annotations

import struct

import pytest

from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import (
    CommittedOffset,
    Generation,
    GenerationRecord,
    GroupRecord,
    OffsetCommit,
    StoredMember,
    decode_latest,
    decode_records,
    encode_records,
)
from headrace.errors import CorruptRecordError
from headrace.records.builder import build_batch
from headrace.records.reader import read_records


def text(value: str) -> bytes:
    return struct.pack(">h", len(value.encode())) + value.encode()


def blob(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


STABLE = Generation(
    number=7,
    state=GroupState.STABLE,
    protocol_type="consumer",
    protocol_name="range",
    leader="m-1",
    state_timestamp_ms=1_234,
    members=(
        StoredMember("m-1", None, "c", "/h", 60_000, 10_000, b"sub", b"assigned"),
        StoredMember("m-2", "static", "c", "/h", 60_000, 10_000, b"", b""),
    ),
)
COMPLETING = STABLE._replace(state=GroupState.COMPLETING_REBALANCE)
EMPTY = Generation(8, GroupState.EMPTY, "consumer", None, None, 5_678)
RECORDS: list[GroupRecord] = [
    OffsetCommit("g", "t", 3, CommittedOffset(42, 5, "note", 99)),
    OffsetCommit("grüße", "t", 0, None),
    GenerationRecord("g", STABLE),
    GenerationRecord("g", COMPLETING),
    GenerationRecord("g", EMPTY),
    GenerationRecord("g", None),
]


def test_records_survive_the_way_to_bytes_and_back():
    assert [record for _, record in decode_records(encode_records(RECORDS, 1_000))] == RECORDS


def test_an_offset_commit_has_kafkas_layout():
    (record,) = read_records(encode_records(RECORDS[:1], 1_000))
    assert record.key == struct.pack(">h", 1) + text("g") + text("t") + struct.pack(">i", 3)
    assert record.value == (struct.pack(">hqi", 3, 42, 5) + text("note") + struct.pack(">q", 99))
    assert (record.timestamp, record.headers) == (1_000, ())


def test_a_generation_has_kafkas_layout():
    (record,) = read_records(encode_records([GenerationRecord("g", STABLE)], 1_000))
    assert record.key == struct.pack(">h", 2) + text("g")
    members = (
        text("m-1") + struct.pack(">h", -1) + text("c") + text("/h")
        + struct.pack(">ii", 60_000, 10_000) + blob(b"sub") + blob(b"assigned")
        + text("m-2") + text("static") + text("c") + text("/h")
        + struct.pack(">ii", 60_000, 10_000) + blob(b"") + blob(b"")
    )  # fmt: skip
    assert record.value == (
        struct.pack(">h", 3) + text("consumer") + struct.pack(">i", 7) + text("range")
        + text("m-1") + struct.pack(">qi", 1_234, 2) + members
    )  # fmt: skip
    assert record.headers == ()


def test_a_generation_without_its_assignment_differs_by_a_header_only():
    stable, completing = (
        next(iter(read_records(encode_records([GenerationRecord("g", generation)], 0))))
        for generation in (STABLE, COMPLETING)
    )
    assert completing.value == stable.value
    assert completing.headers == (("headrace.state", b"CompletingRebalance"),)


def test_records_of_older_brokers_are_understood():
    old_offset = struct.pack(">hq", 1, 10) + text("") + struct.pack(">qq", 20, 30)
    old_group = (
        struct.pack(">h", 0) + text("consumer") + struct.pack(">i", 1) + text("range") + text("m")
        + struct.pack(">i", 1) + text("m") + text("c") + text("/h") + struct.pack(">i", 9_000)
        + blob(b"s") + blob(b"a")
    )  # fmt: skip
    batch = build_batch(
        [
            (
                struct.pack(">h", 0) + text("g") + text("t") + struct.pack(">i", 1),
                old_offset,
                (),
                0,
            ),
            (struct.pack(">h", 2) + text("g"), old_group, (), 0),
        ]
    )
    offset, group = (record for _, record in decode_records(batch))
    assert offset == OffsetCommit("g", "t", 1, CommittedOffset(10, -1, "", 20, 30))
    assert isinstance(group, GenerationRecord)
    assert group.generation is not None
    assert group.generation.members[0].rebalance_timeout_ms == 9_000


def test_records_of_other_kinds_are_not_ours():
    other_key = struct.pack(">h", 4) + text("g")
    batch = build_batch([(other_key, b"\x00\x00", (), 0), (None, b"x", (), 0)])
    assert list(decode_records(batch)) == [(0, None), (1, None)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (struct.pack(">h", 2) + text("g"), struct.pack(">h", 3) + text("consumer")),
        (struct.pack(">h", 2) + text("g"), struct.pack(">h", 99)),
        (struct.pack(">h", 1) + text("g"), struct.pack(">h", 3)),
        (struct.pack(">h", 1) + text("g") + text("t") + bytes(4), b"\x00"),
    ],
)
def test_damaged_records_are_refused(key, value):
    with pytest.raises(CorruptRecordError, match="offset 0"):
        list(decode_records(build_batch([(key, value, (), 0)])))


def test_only_the_latest_record_of_a_key_counts_when_a_group_is_loaded():
    def commit(offset: int | None, partition: int = 0) -> OffsetCommit:
        committed = None if offset is None else CommittedOffset(offset, -1, "", 1_000)
        return OffsetCommit("g", "t", partition, committed)

    batches = b""
    for base, records in ((0, [commit(1), commit(2, 1)]), (2, [commit(3)]), (3, [commit(None, 1)])):
        batch = bytearray(encode_records(records, 1_000))
        batch[:8] = base.to_bytes(8, "big")
        batches += batch
    assert list(decode_latest(batches)) == [(2, commit(3)), (3, commit(None, 1))]
    assert [offset for offset, _ in decode_records(batches)] == [0, 1, 2, 3]
