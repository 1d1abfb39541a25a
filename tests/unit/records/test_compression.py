from __future__ import annotations

import struct
import tracemalloc
import zlib

import cramjam
import pytest

from headrace.errors import CorruptRecordError
from headrace.records.compression import (
    MAX_GZIP_MEMBERS,
    MAX_SNAPPY_BLOCKS,
    RATIO_FLOOR,
    Compression,
    compress,
    decompress,
    output_bound,
)

CODECS = [codec for codec in Compression if codec != Compression.NONE]
TEXT = b"".join(b'{"flight": %d, "carrier": "UA"}' % number for number in range(5000))


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("data", [b"", b"x", b"ab" * 40_000, TEXT, bytes(range(256)) * 300])
def test_decompression_returns_the_compressed_bytes(codec: Compression, data: bytes) -> None:
    for buffer in (data, bytearray(data), memoryview(data)):
        assert decompress(codec, memoryview(compress(codec, buffer))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_compression_levels_are_used(codec: Compression) -> None:
    assert decompress(codec, compress(codec, TEXT, 5)) == TEXT


def test_lz4_frames_have_independent_blocks() -> None:
    # Java's reader refuses linked blocks. Flag byte: version 01, block independence, no checksums of content.
    frame = compress(Compression.LZ4, TEXT)
    assert frame[:4] == bytes.fromhex("04224d18")
    assert frame[4] & 0b0010_0000
    assert not frame[4] & 0b0000_0100


def test_lz4_with_linked_blocks_is_read_all_the_same() -> None:
    assert decompress(Compression.LZ4, bytes(cramjam.lz4.compress(TEXT))) == TEXT


def test_snappy_is_written_in_xerial_framing() -> None:
    framed = compress(Compression.SNAPPY, TEXT)
    assert framed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    (size,) = struct.unpack_from(">i", framed, 16)
    first = bytes(cramjam.snappy.decompress_raw(framed[20 : 20 + size]))
    assert first == TEXT[: 32 << 10]


def test_raw_snappy_as_librdkafka_writes_it_is_read() -> None:
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(TEXT))) == TEXT


def test_gzip_with_several_members_is_read() -> None:
    assert (
        decompress(
            Compression.GZIP, compress(Compression.GZIP, b"a") + compress(Compression.GZIP, b"b")
        )
        == b"ab"
    )


def test_the_members_of_gzip_data_are_bounded() -> None:
    member = compress(Compression.GZIP, b"a")
    most = MAX_GZIP_MEMBERS
    assert decompress(Compression.GZIP, member * most) == b"a" * most
    with pytest.raises(CorruptRecordError, match="members"):
        decompress(Compression.GZIP, member * (most + 1))


def test_gzip_data_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    # zlib copies the input after the end of a member, so the input is passed in pieces.
    data = compress(Compression.GZIP, TEXT) + compress(Compression.GZIP, b"b")
    for size in (1, 7, 100, len(data)):
        monkeypatch.setattr("headrace.records.compression._GZIP_CHUNK", size)
        assert decompress(Compression.GZIP, data) == TEXT + b"b"
        with pytest.raises(CorruptRecordError, match="exceeds"):
            decompress(Compression.GZIP, data, len(TEXT))


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_data_that_is_too_large_is_refused_with_the_bound(codec: Compression) -> None:
    data = compress(codec, b"x" * 200_000)
    with pytest.raises(CorruptRecordError, match="exceeds 100000 bytes"):
        decompress(codec, data, 100_000)


def test_the_blocks_of_a_snappy_frame_are_bounded() -> None:
    block = bytes(cramjam.snappy.compress_raw(b""))
    framed = struct.pack(">i", len(block)) + block
    head = compress(Compression.SNAPPY, b"")[:16]
    assert decompress(Compression.SNAPPY, head + framed * MAX_SNAPPY_BLOCKS) == b""
    with pytest.raises(CorruptRecordError, match="blocks"):
        decompress(Compression.SNAPPY, head + framed * (MAX_SNAPPY_BLOCKS + 1))


@pytest.mark.parametrize("codec", CODECS)
def test_damaged_data_is_an_error(codec: Compression) -> None:
    good = compress(codec, TEXT)
    for bad in (
        b"",
        b"\x80",
        b"\xff" * 40,
        good[:-3],
        good[: len(good) // 2],
        good + b"junk and more junk",
    ):
        with pytest.raises(CorruptRecordError):
            decompress(codec, bad)


@pytest.mark.parametrize("codec", CODECS)
def test_the_limit_is_exact(codec: Compression) -> None:
    data = compress(codec, TEXT)
    assert decompress(codec, data, len(TEXT)) == TEXT
    with pytest.raises(CorruptRecordError, match="exceeds"):
        decompress(codec, data, len(TEXT) - 1)


def bomb(codec: Compression) -> bytes:
    size = 100 << 20
    if codec == Compression.GZIP:
        deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
        return b"".join(deflate.compress(bytes(1 << 20)) for _ in range(100)) + deflate.flush()
    if codec == Compression.ZSTD:
        # A frame without content size, and run-length blocks of 128 KiB from four bytes each.
        block = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"x"
        return bytes.fromhex("28b52ffd") + b"\x00\x58" + block * 800
    if codec == Compression.LZ4:
        return compress(codec, bytes(80 << 20))
    return struct.pack("<B", 0x80) + b"\x80\x80\x80\x02" + b"\0" * 50 + size.to_bytes(4, "little")


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_is_refused_within_bounded_memory(codec: Compression) -> None:
    data = bomb(codec)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRecordError):
            decompress(codec, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * output_bound(len(data)) + (1 << 20)


def test_a_false_size_in_compressed_data_allocates_no_memory() -> None:
    claim = b"\xff\xff\xff\xff\x0f" + b"\0" * 100  # snappy: 4 GiB to come
    with pytest.raises(CorruptRecordError):
        decompress(Compression.SNAPPY, claim)
    framed = b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 2**31 - 1) + b"x"
    with pytest.raises(CorruptRecordError, match="does not fit"):
        decompress(Compression.SNAPPY, framed)
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"\0\0"
    with pytest.raises(CorruptRecordError, match="block length"):
        decompress(Compression.SNAPPY, framed)


def test_the_bound_grows_with_the_input_up_to_the_limit() -> None:
    assert output_bound(10) == RATIO_FLOOR
    assert output_bound(10_000) == 10_000_000
    assert output_bound(10**9) == 64 << 20
    assert output_bound(10_000, 500) == 500
