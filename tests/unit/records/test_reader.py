from __future__ import annotations

import struct

import pytest
from crc32c import crc32c

from headrace.errors import CorruptRecordError
from headrace.records.batch import HEADER_SIZE, BatchHeader
from headrace.records.builder import BatchBuilder, build_batch
from headrace.records.compression import Compression
from headrace.records.reader import Record, decode_batch, read_batch, read_records
from headrace.records.varint import decode_varint, encode_varint

RECORDS = [
    (b"key", b"value", (("trace", b"\x01"), ("empty", b""), ("null", None)), 1_700_000_000_000),
    (None, None, (), 1_699_999_999_000),
    (b"", b"x" * 300, (("é", b"\xc3\xa9"),), 1_700_000_100_000),
]


def resealed(batch: bytes | bytearray) -> bytes:
    """Return a batch with corrected length and CRC."""
    fixed = bytearray(batch)
    struct.pack_into(">i", fixed, 8, len(fixed) - 12)
    struct.pack_into(">I", fixed, 17, crc32c(memoryview(fixed)[21:]))
    return bytes(fixed)


def with_body(body: bytes, count: int = 1) -> bytes:
    batch = bytearray(build_batch([(None, None, (), 0)] * count))[:HEADER_SIZE] + body
    return resealed(batch)


@pytest.mark.parametrize("compression", list(Compression))
def test_records_survive_encoding_and_decoding(compression: Compression) -> None:
    batch = build_batch(RECORDS, compression=compression, base_offset=10)
    found = list(read_records(batch))
    assert found == [
        Record(10 + number, timestamp, key, value, tuple(headers))
        for number, (key, value, headers, timestamp) in enumerate(RECORDS)
    ]


def test_several_batches_and_a_truncated_tail() -> None:
    batch = build_batch(RECORDS)
    data = batch + batch[:-1]
    assert len(list(read_records(data, tolerate_truncated=True))) == 3
    assert len(list(read_records(batch + batch[:20], tolerate_truncated=True))) == 3
    with pytest.raises(CorruptRecordError):
        list(read_records(data))


def test_log_append_time_is_every_records_time() -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[22] |= 8
    struct.pack_into(">q", batch, 35, 77)
    assert {record.timestamp for record in read_records(resealed(batch))} == {77}


def test_control_batches_are_left_out_unless_wanted() -> None:
    builder = BatchBuilder(control=True)
    builder.append(b"\0\0\0\1", b"\0\0\0\0\0\0", (), 5)
    data = builder.build() + build_batch(RECORDS)
    assert len(list(read_records(data))) == 3
    assert len(list(read_records(data, include_control=True))) == 4


def test_a_flipped_bit_is_found() -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[-1] ^= 1
    with pytest.raises(CorruptRecordError):
        read_batch(batch)


@pytest.mark.parametrize("count", [-1, 2, 4, 1000, 2**31 - 1])
def test_a_wrong_record_count_in_the_header_is_an_error(count: int) -> None:
    batch = bytearray(build_batch(RECORDS))
    struct.pack_into(">i", batch, 57, count)
    with pytest.raises(CorruptRecordError):
        read_batch(resealed(batch))


def test_an_unknown_codec_is_an_error() -> None:
    batch = bytearray(build_batch(RECORDS))
    batch[22] |= 7
    with pytest.raises(CorruptRecordError, match="compression 7"):
        read_batch(resealed(batch))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x02\x00",  # ends inside
        encode_varint(-1) + b"\0" * 10,  # negative length
        encode_varint(5) + b"\0" * 5,  # shorter than any record
        encode_varint(100) + b"\0" * 10,  # longer than the batch
        encode_varint(6) + b"\0\0\0" + encode_varint(-2) + b"\1\0",  # key of -2 bytes
        encode_varint(6) + b"\0\0\0" + encode_varint(40) + b"\1\0",  # key beyond the record
        encode_varint(6) + b"\0\0\0\1\1" + encode_varint(-1),  # -1 headers
        encode_varint(6) + b"\0\0\0\1\1" + encode_varint(50),  # 50 headers in no bytes
        encode_varint(8) + b"\0\0\0\1\1\2" + encode_varint(-1) + b"\0",  # header without key
        encode_varint(7) + b"\0\0\0\1\1\0\0",  # a byte too much in the record
        encode_varint(6) + b"\0\0\0\1\1\0" + b"\0",  # a byte too much after it
        b"\xff\xff\xff\xff\xff\xff\xff",  # varint without end
        encode_varint(12) + b"\0" + b"\xff" * 11 + b"\0",  # varlong without end
    ],
)
def test_malformed_records_are_an_error(body: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        read_batch(with_body(body))


def test_decompressed_size_is_bounded() -> None:
    batch = build_batch([(None, bytes(100_000), (), 0)], compression=Compression.ZSTD)
    header = BatchHeader.parse(batch)
    assert len(decode_batch(header, batch, 0, 100_100)) == 1
    with pytest.raises(CorruptRecordError, match="exceeds"):
        decode_batch(header, batch, 0, 99_999)
    with pytest.raises(CorruptRecordError, match="exceeds"):
        list(read_records(batch, max_decompressed_size=5))


def test_header_names_that_are_no_utf_8_survive() -> None:
    name = b"\xff\xfe".decode("utf-8", "surrogateescape")
    batch = build_batch([(None, None, ((name, b""),), 0)])
    assert next(read_records(batch)).headers == ((name, b""),)


def test_the_builder_stops_at_its_size() -> None:
    builder = BatchBuilder(max_bytes=1000)
    assert builder.append(None, b"x" * 2000)  # the first always fits: its receiver decides
    assert not builder.append(None, b"x")
    builder = BatchBuilder(max_bytes=1000)
    taken = 0
    while builder.append(b"key", b"value", (("h", b"v"),), taken):
        taken += 1
    assert len(builder) == taken
    assert 900 < len(builder.build()) == builder.size <= 1000
    assert [record.timestamp for record in read_records(builder.build())] == list(range(taken))


@pytest.mark.parametrize("value", [0, 1, -1, 63, -64, 64, 2**31 - 1, -(2**31), 8191, -8193])
def test_varints_are_decoded(value: int) -> None:
    encoded = encode_varint(value)
    assert decode_varint(b"\xaa" + encoded, 1) == (value, 1 + len(encoded))
    assert decode_varint(encoded, 0, 10) == (value, len(encoded))


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 2**40])
def test_long_varlongs_are_decoded_only_with_a_larger_size_limit(value: int) -> None:
    encoded = encode_varint(value)
    assert decode_varint(encoded, 0, 10) == (value, len(encoded))
    with pytest.raises(CorruptRecordError):
        decode_varint(encoded, 0)


@pytest.mark.parametrize(
    "encoded", [b"", b"\x80", b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x7f"]
)
def test_a_varint_without_an_end_is_an_error(encoded: bytes) -> None:
    with pytest.raises(CorruptRecordError):
        decode_varint(encoded, 0)
