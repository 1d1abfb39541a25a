"""The codecs of record batches, with Kafka's framings and bounded output.

* gzip: zlib's, which is twice as fast here as cramjam's.
* snappy: written in the xerial framing that Java writes; read in it or as one raw block, as librdkafka writes it.
  (`cramjam.snappy.compress` is Google's stream format, which no Kafka client reads.)
* lz4: frames with independent blocks at level 1. Java refuses linked blocks, cramjam's default level is slow.
* zstd: frames, level 3.

Nothing that a frame claims about its output is believed: output stops at a bound that the caller or the ratio sets.
The members of a gzip stream and the blocks of a snappy frame are bounded too, because each of them may be empty.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol

import cramjam

from headrace.errors import CorruptRecordError
from headrace.types import Buffer

MAX_DECOMPRESSED_SIZE: Final = 64 << 20
MAX_RATIO: Final = 1000
RATIO_FLOOR: Final = 4 << 20
"""Output below this many bytes is never refused for its ratio: a batch of equal records compresses without limit."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 32 << 10
FAST: Final = 1
"""The level of all codecs at which a megabyte takes some ten milliseconds to be compressed."""
MAX_GZIP_MEMBERS: Final = 16
"""Most members of a gzip stream: clients write one, and each costs a few microseconds however little it holds."""
_GZIP_CHUNK: Final = 1 << 20
"""Bytes that are given to zlib at once: it copies those behind the end of a member."""
MAX_SNAPPY_BLOCKS: Final = 1 << 14
"""Most blocks in a xerial frame: clients write a block for every 32 KiB, and 64 MiB are 2,048 of these."""
_SNAPPY_MAX_RATIO: Final = 64
"""A snappy element of two or three bytes yields at most 64: larger claims are lies."""
_INT32: Final = struct.Struct(">i")


class OutputTooLargeError(CorruptRecordError):
    """Compressed data becomes more bytes than it may."""


class Compression(IntEnum):
    """A batch's codec; the numbers are those of the attributes' bits 0 to 2."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def output_bound(compressed_size: int, limit: int = MAX_DECOMPRESSED_SIZE) -> int:
    """Return how many bytes `compressed_size` bytes may become: the ratio's bound, and at most `limit`."""
    return min(limit, max(RATIO_FLOOR, MAX_RATIO * compressed_size))


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compress a batch's records; `level` is the codec's own scale (ignored for snappy)."""
    return _COMPRESSORS[codec](data, level)


def decompress(codec: Compression, data: Buffer, limit: int = MAX_DECOMPRESSED_SIZE) -> bytes:
    """Decompress a batch's records.

    Args:
        codec: The batch's codec.
        data: The bytes after the batch header.
        limit: Most bytes of output, besides the bound by ratio.

    Raises:
        OutputTooLargeError: The output exceeds the bound.
        CorruptRecordError: The data is damaged.
    """
    if codec == Compression.NONE:
        return bytes(data)
    return _DECOMPRESSORS[codec](data, output_bound(len(data), limit))


def _too_large(bound: int) -> OutputTooLargeError:
    return OutputTooLargeError(f"a compressed batch exceeds {bound} bytes when decompressed")


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    deflate = zlib.compressobj(6 if level is None else level, zlib.DEFLATED, 31)
    return deflate.compress(data) + deflate.flush()


def _compress_snappy(data: Buffer, _level: int | None) -> bytes:
    parts = [_XERIAL_HEADER]
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    frame = cramjam.lz4.Compressor(
        level=1 if level is None else level, content_checksum=False, block_linked=False
    )
    frame.compress(bytes(data))  # it takes no other buffer
    return bytes(frame.finish())


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    return bytes(cramjam.zstd.compress(data, 3 if level is None else level))


def _decompress_gzip(data: Buffer, bound: int) -> bytes:
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
                part = inflate.decompress(chunk, remaining + 1)
            except zlib.error as error:
                raise CorruptRecordError(f"damaged gzip data: {error}") from None
            remaining -= len(part)
            if remaining < 0:
                raise _too_large(bound)
            parts.append(part)
            position += len(chunk) - len(inflate.unused_data)
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
        # cramjam cannot stream with a limit, but it refuses to write past a buffer that it is given. So the buffer
        # grows in steps, each at least four times the last, and the work stays within a third more than one pass.
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
_DECOMPRESSORS: Final[dict[Compression, Callable[[Buffer, int], bytes]]] = {
    Compression.GZIP: _decompress_gzip,
    Compression.SNAPPY: _decompress_snappy,
    Compression.LZ4: _frame_decompressor(cramjam.lz4, "lz4"),
    Compression.ZSTD: _frame_decompressor(cramjam.zstd, "zstd"),
}
