"""The codecs of record batches, with Kafka's framings and bounded output.

* gzip: zlib, which is twice as fast here as cramjam.
* snappy: written in the xerial framing of the Java client; read in that framing or as one raw block, as librdkafka
  writes it. (`cramjam.snappy.compress` writes Google's stream format, which no Kafka client reads.)
* lz4: frames with independent blocks at level 1. Java refuses linked blocks, and cramjam's default level is slow.
* zstd: frames, level 3.

What a frame claims about its output is not trusted: output stops at a bound that the caller or the ratio sets. The
members of a gzip stream and the blocks of a snappy frame are bounded too, because each of them may be empty.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Generator
from enum import IntEnum
from typing import Any, Final, Protocol

import cramjam

from headrace.errors import CorruptRecordError
from headrace.types import Buffer

MAX_DECOMPRESSED_SIZE: Final = 64 << 20
MAX_RATIO: Final = 1000
RATIO_FLOOR: Final = 4 << 20
"""The size in bytes below which output is never refused for its ratio: equal records compress without limit."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 << 10
FAST: Final = 1
"""The level of each codec at which a megabyte is compressed in some ten milliseconds."""
MAX_GZIP_MEMBERS: Final = 16
"""The largest number of members in a gzip stream. Clients write one; each costs some microseconds even if it is empty.
"""
_GZIP_CHUNK: Final = 1 << 20
"""The number of bytes that are passed to zlib at a time: it copies the bytes after the end of a member."""
MAX_SNAPPY_BLOCKS: Final = 1 << 14
"""The largest number of blocks in a xerial frame. Clients write a block for every 32 KiB: 64 MiB are 2,048 blocks."""
_SNAPPY_MAX_RATIO: Final = 64
"""The largest ratio of snappy: an element of two or three bytes yields at most 64 bytes. Larger claims are false."""
_INT32: Final = struct.Struct(">i")


class OutputTooLargeError(CorruptRecordError):
    """Compressed data has more output than is allowed."""


class Compression(IntEnum):
    """The codec of a batch. The numbers are those of bits 0 to 2 of the attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def output_bound(compressed_size: int, limit: int = MAX_DECOMPRESSED_SIZE) -> int:
    """Return the largest output of `compressed_size` bytes: the bound by ratio, and at most `limit`."""
    return min(limit, max(RATIO_FLOOR, MAX_RATIO * compressed_size))


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compress the records of a batch. `level` is on the codec's own scale, and ignored for snappy."""
    return _COMPRESSORS[codec](data, level)


def compress_in_pieces(
    codec: Compression, data: Buffer, level: int | None = None
) -> Generator[int, None, bytes]:
    """Compress the records of a batch in pieces. Yields the size of each piece in bytes of `data`.

    A piece takes up to some 20 milliseconds. High levels of zstd have a single piece: a frame in pieces would take as
    much memory as the largest frame.
    """
    if codec is Compression.NONE or (codec is Compression.ZSTD and _is_one_piece(data, level)):
        compressed = compress(codec, data, level)
        yield len(data)
        return compressed
    stream, size = _STREAMS[codec](level)
    parts: list[bytes] = []
    view = memoryview(data)
    for start in range(0, len(view), size):
        piece = view[start : start + size]
        parts.append(stream.compress(piece))
        yield len(piece)
    parts.append(stream.finish())
    return b"".join(parts)


def decompress(codec: Compression, data: Buffer, limit: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """Decompress the records of a batch.

    Args:
        codec: The codec of the batch.
        data: The bytes after the batch header.
        limit: The largest output in bytes. The bound by ratio applies too.

    Raises:
        OutputTooLargeError: The output exceeds the bound.
        CorruptRecordError: The data is damaged.
    """
    if codec == Compression.NONE:
        return bytes(data)
    return _DECOMPRESSORS[codec](data, output_bound(len(data), limit))


def decompress_in_pieces(
    codec: Compression, data: Buffer, limit: int = MAX_DECOMPRESSED_SIZE
) -> Generator[int, None, bytes]:
    """Decompress the records of a batch in pieces, as `decompress` does. Yields the size of each piece.

    A piece has some megabytes. The fast codecs lz4, snappy and zstd have a single piece.
    """
    if codec is Compression.GZIP:
        return (yield from _inflate(data, output_bound(len(data), limit), 4 * _LARGE_PIECE))
    records = decompress(codec, data, limit)
    yield len(records)
    return records


def _too_large(bound: int) -> OutputTooLargeError:
    return OutputTooLargeError(f"a compressed batch exceeds {bound} bytes when decompressed")


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    deflate = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, 31)
    return deflate.compress(data) + deflate.flush()


def _compress_snappy(data: Buffer, _level: int | None) -> bytes:
    return _XERIAL_HEADER + _snappy_blocks(data)


def _snappy_blocks(data: Buffer) -> bytes:
    parts: list[bytes] = []
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _is_one_piece(data: Buffer, level: int | None) -> bool:
    return len(data) <= _LARGE_PIECE or (level is not None and level > _ZSTD_IN_PIECES)


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    frame = cramjam.lz4.Compressor(
        level=FAST if level is None else level, content_checksum=False, block_linked=False
    )
    if len(data) <= _LZ4_BLOCK:
        frame.compress(bytes(data))  # zlib takes no other buffer
    else:
        view = memoryview(data)
        for start in range(
            0, len(view), _LZ4_BLOCK
        ):  # cramjam holds the interpreter lock meanwhile
            frame.compress(bytes(view[start : start + _LZ4_BLOCK]))
    return bytes(frame.finish())


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, 3 if level is None else level))


class _Stream(Protocol):
    """Compresses data in pieces. The output is what the pieces return, followed by what the end returns."""

    def compress(self, piece: Buffer) -> bytes: ...

    def finish(self) -> bytes: ...


class _GzipStream:
    def __init__(self, level: int | None) -> None:
        deflate = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, 31)
        self.compress = deflate.compress
        self.finish = deflate.flush


class _SnappyStream:
    def __init__(self) -> None:
        self._begun = False

    def compress(self, piece: Buffer) -> bytes:
        head, self._begun = b"" if self._begun else _XERIAL_HEADER, True
        return head + _snappy_blocks(piece)

    def finish(self) -> bytes:
        return b"" if self._begun else _XERIAL_HEADER


class _FrameCompressor(Protocol):
    def compress(self, data: bytes, /) -> int: ...

    def finish(self) -> Any: ...


class _FrameStream:
    """A frame of lz4 or zstd, which is returned as a whole at the end."""

    def __init__(self, frame: _FrameCompressor) -> None:
        self._frame = frame

    def compress(self, piece: Buffer) -> bytes:
        self._frame.compress(bytes(piece))  # cramjam takes no other buffer
        return b""

    def finish(self) -> bytes:
        return bytes(self._frame.finish())


def _lz4_frame(level: int | None) -> _FrameStream:
    level = FAST if level is None else level
    return _FrameStream(
        cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    )


def _zstd_frame(level: int | None) -> _FrameStream:
    return _FrameStream(cramjam.zstd.Compressor(3 if level is None else level))


def _decompress_gzip(data: Buffer, bound: int) -> bytes:
    inflating = _inflate(data, bound, bound)
    while True:
        try:
            next(inflating)
        except StopIteration as end:
            inflated: bytes = end.value
            return inflated


def _inflate(data: Buffer, bound: int, most: int) -> Generator[int, None, bytes]:
    """Decompress gzip data. Yields the number of bytes after every `most` bytes of output."""
    view = memoryview(data)
    parts: list[bytes] = []
    position, size, remaining = 0, len(view), bound
    for _ in range(MAX_GZIP_MEMBERS):
        inflate = zlib.decompressobj(31)
        while not inflate.eof:
            chunk = view[position : position + _GZIP_CHUNK]
            if not chunk:
                raise CorruptRecordError("gzip data ends early")
            try:
                part = inflate.decompress(chunk, min(most, remaining) + 1)
            except zlib.error as error:
                raise CorruptRecordError(f"damaged gzip data: {error}") from None
            remaining -= len(part)
            if remaining < 0:
                raise _too_large(bound)
            parts.append(part)
            position += len(chunk) - len(inflate.unused_data) - len(inflate.unconsumed_tail)
            if len(part) > most:
                yield len(part)
        if position == size:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise CorruptRecordError(f"gzip data of more than {MAX_GZIP_MEMBERS} members")


def _decompress_snappy_block(block: Buffer, bound: int, used: int = 0) -> bytes:
    try:
        claimed = cramjam.snappy.decompress_raw_len(block)
        if claimed > bound - used:
            raise _too_large(bound)
        if claimed > _SNAPPY_MAX_RATIO * len(block):
            raise CorruptRecordError("a snappy block claims more than it can hold")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise CorruptRecordError(f"damaged snappy data: {error}") from None


def _decompress_snappy(data: Buffer, bound: int) -> bytes:
    view = memoryview(data)
    if bytes(view[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, bound)
    parts: list[bytes] = []
    position, end, used = len(_XERIAL_HEADER), len(view), 0
    while position < end:
        if len(parts) == MAX_SNAPPY_BLOCKS:
            raise CorruptRecordError(f"snappy data of more than {MAX_SNAPPY_BLOCKS} blocks")
        if position + 4 > end:
            raise CorruptRecordError("snappy data ends inside a block length")
        (size,) = _INT32.unpack_from(view, position)
        position += 4
        if not 0 < size <= end - position:
            raise CorruptRecordError(f"snappy block of {size} bytes does not fit")
        part = _decompress_snappy_block(view[position : position + size], bound, used)
        parts.append(part)
        used += len(part)
        position += size
    return b"".join(parts)


class _FrameModule(Protocol):
    def decompress_into(self, data: Buffer, output: bytearray, /) -> int: ...


def _frame_decompressor(module: _FrameModule, name: str) -> Callable[[Buffer, int], bytes]:
    def decompress_frame(data: Buffer, bound: int) -> bytes:
        # cramjam cannot stream with a limit, but it never writes past a given buffer. So the buffer grows in steps,
        # each at least four times the last. The work stays within a third more than one pass.
        size = min(bound, max(16 << 10, 8 * len(data)))
        while True:
            output = bytearray(size)
            try:
                written = module.decompress_into(data, output)
            except cramjam.DecompressionError as error:
                if "failed to write whole buffer" not in str(error):
                    raise CorruptRecordError(f"damaged {name} data: {error}") from None
                if size == bound:
                    raise _too_large(bound) from None
                size = min(bound, 4 * size)
            else:
                return bytes(memoryview(output)[:written])

    return decompress_frame


_COMPRESSORS: Final[dict[Compression, Callable[[Buffer, int | None], bytes]]] = {
    Compression.NONE: lambda data, _level: bytes(data),
    Compression.GZIP: _compress_gzip,
    Compression.SNAPPY: _compress_snappy,
    Compression.LZ4: _compress_lz4,
    Compression.ZSTD: _compress_zstd,
}
_LZ4_BLOCK: Final = 64 << 10
_PIECE: Final = 256 << 10
_LARGE_PIECE: Final = 1 << 20
_ZSTD_IN_PIECES: Final = 9
"""The highest level of zstd at which a frame may come in pieces."""
_STREAMS: Final[dict[Compression, Callable[[int | None], tuple[_Stream, int]]]] = {
    Compression.GZIP: lambda level: (_GzipStream(level), _PIECE),
    Compression.SNAPPY: lambda _level: (_SnappyStream(), _LARGE_PIECE),
    Compression.LZ4: lambda level: (_lz4_frame(level), _PIECE),
    Compression.ZSTD: lambda level: (_zstd_frame(level), _LARGE_PIECE),
}
"""The classes that compress in pieces, and the size of a piece in bytes."""
_DECOMPRESSORS: Final[dict[Compression, Callable[[Buffer, int], bytes]]] = {
    Compression.GZIP: _decompress_gzip,
    Compression.SNAPPY: _decompress_snappy,
    Compression.LZ4: _frame_decompressor(cramjam.lz4, "lz4"),
    Compression.ZSTD: _frame_decompressor(cramjam.zstd, "zstd"),
}
