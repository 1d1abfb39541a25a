"""Compression and decompression in pieces have the same results as in one step."""

from __future__ import annotations

import gzip
import random
from collections.abc import Generator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import CorruptRecordError
from headrace.records.compression import (
    Compression,
    OutputTooLargeError,
    compress,
    compress_in_pieces,
    decompress,
    decompress_in_pieces,
)
from tests.effort import examples

MIB = 1 << 20


def all_of(pieces: Generator[int, None, bytes]) -> tuple[bytes, list[int]]:
    """Return the joined pieces, and the size of each piece."""
    sizes = []
    while True:
        try:
            sizes.append(next(pieces))
        except StopIteration as end:
            return end.value, sizes


def text(size: int) -> bytes:
    """Return bytes that compress to about a half."""
    return random.Random(size).randbytes(size // 2).hex().encode().ljust(size, b".")


@pytest.mark.parametrize("codec", list(Compression))
@pytest.mark.parametrize("size", [0, 1, 1000, 65_536, 65_537, MIB, 3 * MIB + 5])
@pytest.mark.parametrize("level", [None, 1, 9])
def test_the_bytes_are_those_of_compression_at_once(codec: Compression, size: int, level):
    data = text(size)
    compressed, sizes = all_of(compress_in_pieces(codec, memoryview(data), level))
    assert sum(sizes) == size
    assert codec is Compression.NONE or max(sizes, default=0) <= MIB
    if codec is Compression.ZSTD and size > MIB:
        assert decompress(codec, compressed) == data  # a frame that does not say its size
    else:
        assert compressed == compress(codec, data, level)
    back, sizes = all_of(decompress_in_pieces(codec, compressed))
    assert back == data
    assert codec is not Compression.GZIP or max(sizes, default=0) <= 4 * MIB + 1


def test_high_levels_of_zstd_have_one_piece():
    """A frame in pieces needs as much memory as the largest frame, so high levels have one piece."""
    _, sizes = all_of(compress_in_pieces(Compression.ZSTD, text(MIB + 1), 10))
    assert sizes == [MIB + 1]


@pytest.mark.parametrize("codec", [each for each in Compression if each])
def test_the_limit_is_the_same(codec: Compression):
    size = 6 * MIB
    compressed = compress(codec, text(size), 1)
    assert len(all_of(decompress_in_pieces(codec, compressed, size))[0]) == size
    with pytest.raises(OutputTooLargeError):
        all_of(decompress_in_pieces(codec, compressed, size - 1))


@given(
    members=st.lists(st.integers(0, 6 * MIB), max_size=4),
    cut=st.integers(0, 40),
)
@settings(max_examples=examples(20), deadline=None)
def test_gzip_of_several_members_that_may_end_early(members: list[int], cut: int):
    compressed = b"".join(gzip.compress(bytes(size), 1, mtime=0) for size in members)
    whole, cut = compressed, min(cut, len(compressed))
    compressed = compressed[: len(compressed) - cut]
    if cut or not members:
        outcomes: list[bytes | None] = []
        for attempt in (
            lambda: decompress(Compression.GZIP, compressed),
            lambda: all_of(decompress_in_pieces(Compression.GZIP, compressed))[0],
        ):
            try:
                outcomes.append(attempt())
            except CorruptRecordError:
                outcomes.append(None)
        assert outcomes[0] == outcomes[1]
    else:
        found, _ = all_of(decompress_in_pieces(Compression.GZIP, whole))
        assert len(found) == sum(members)
