from __future__ import annotations

import struct

import pytest

from headrace.errors import CorruptRecordError
from headrace.records.batch import (
    CRC_START,
    HEADER_SIZE,
    BatchHeader,
    TimestampType,
    batch_crc,
    check_batch,
    iterate_headers,
)
from headrace.records.builder import BatchBuilder, build_batch
from headrace.records.compression import Compression

RECORDS = [(b"k", b"v", (), 1000), (None, None, (), 1500), (b"", b"", (), 900)]


def test_the_header_of_a_built_batch_has_its_properties() -> None:
    batch = build_batch(
        RECORDS,
        compression=Compression.LZ4,
        producer_id=7,
        producer_epoch=2,
        base_sequence=2**31 - 2,
        base_offset=40,
        partition_leader_epoch=3,
    )
    header = BatchHeader.parse(batch)
    assert header.size == len(batch)
    assert (header.base_offset, header.last_offset, header.next_offset) == (40, 42, 43)
    assert (header.base_timestamp, header.max_timestamp) == (1000, 1500)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 2**31 - 2)
    assert header.last_sequence == 0
    assert header.records_count == 3
    assert header.compression == Compression.LZ4
    assert header.timestamp_type == TimestampType.CREATE_TIME
    assert not header.is_transactional
    assert not header.is_control
    assert header.crc == batch_crc(batch, 0, len(batch))


def test_flags_of_transactional_and_control_batches() -> None:
    builder = BatchBuilder(transactional=True, control=True)
    builder.append(b"\0\0\0\1", b"", (), 5)
    header = check_batch(builder.build(base_sequence=-1))
    assert header.is_transactional
    assert header.is_control
    assert header.last_sequence == -1


def test_base_offset_and_leader_epoch_are_outside_the_crc() -> None:
    batch = bytearray(build_batch(RECORDS))
    struct.pack_into(">q", batch, 0, 1 << 40)
    struct.pack_into(">i", batch, 12, 99)
    assert check_batch(batch).base_offset == 1 << 40


@pytest.mark.parametrize("position", [*range(CRC_START - 4, CRC_START + 3), HEADER_SIZE, -1])
def test_any_changed_byte_from_the_crc_on_is_found(position: int) -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[position] ^= 0x10
    with pytest.raises(CorruptRecordError):
        check_batch(batch)


def test_a_wrong_magic_is_named() -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[16] = 1
    with pytest.raises(CorruptRecordError, match="magic 1"):
        check_batch(batch)


@pytest.mark.parametrize("length", [-1, 0, 48, 2**31 - 1])
def test_an_impossible_length_is_refused(length: int) -> None:
    batch = bytearray(build_batch(RECORDS))
    struct.pack_into(">i", batch, 8, length)
    with pytest.raises(CorruptRecordError):
        check_batch(batch)


def test_headers_of_several_batches_and_of_half_a_batch_more() -> None:
    batch = build_batch(RECORDS)
    found = list(iterate_headers(batch * 3 + batch[:-1]))
    assert [position for position, _ in found] == [0, len(batch), 2 * len(batch)]
    assert not list(iterate_headers(batch[:60]))


def test_iterating_stops_at_a_length_that_would_loop() -> None:
    batch = bytearray(build_batch(RECORDS))
    struct.pack_into(">i", batch, 8, -12)
    with pytest.raises(CorruptRecordError):
        list(iterate_headers(batch))


def test_a_cut_off_header_is_no_header() -> None:
    with pytest.raises(CorruptRecordError):
        BatchHeader.parse(build_batch(RECORDS)[:60])
