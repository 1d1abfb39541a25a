"""The files beside a segment: their bytes are a promise, and a damaged file counts as missing."""

from __future__ import annotations

import pytest

from headrace.core.log import AbortedTransaction
from headrace.core.log.index.aborted_transactions import AbortedTransactions
from headrace.core.log.index.expiry_index import ExpiryIndex
from headrace.core.log.index.sidecars import SEGMENT_FILE, SIDECARS
from headrace.core.log.index.sparse_index import SparseIndex
from headrace.core.log.index.transaction_index import decode_aborted, encode_aborted
from headrace.records.expiry import Expiry

INDEX = bytes.fromhex(
    "48524958" "0200" "0000" "c800000000000000" "0700000000000000" "0b00000000000000" "e803000000000000"
    "8403000000000000" "02000000"
    "0700000000000000" "0900000000000000" "0000000000000000" "9600000000000000"
    "e803000000000000" "b004000000000000" "11b8ecc9"
)  # fmt: skip
TTLINDEX = bytes.fromhex(
    "4852544c" "0100" "0000" "0700000000000000" "a49c000000000000" "03000000"
    "0000000000000000" "6400000000000000" "409c000000000000"
    "0500000000000000" "0000000000000000" "0200000000000000"
    "0900000000000000" "ffffffffffffff7f" "0300000000000000" "2c2eea78"
)  # fmt: skip
TXNINDEX = bytes.fromhex(
    "48525458" "0001" "0000" "0000000000000007" "000000000000000b" "00000001"
    "0000000000000003" "0000000000000008" "0000000000000009" "000000000000000a" "2e0ad908"
)  # fmt: skip


def test_a_sparse_index_has_the_documented_bytes() -> None:
    index = SparseIndex(100)
    index.add(7, 0, 1000)
    index.add(9, 150, 1200)
    index.add(10, 160, 900, 1)
    assert index.encode(size=200, base_offset=7, end_offset=11, first_timestamp=1000) == INDEX
    part = SparseIndex.decode(INDEX, base_offset=7, interval=100)
    assert part is not None
    assert part[1:] == (200, 11, 1000)
    assert (part.entries.offsets, part.entries.positions) == (index.offsets, index.positions)


def test_an_expiry_index_has_the_documented_bytes() -> None:
    index = ExpiryIndex()
    index.note(0, 100, Expiry(5, 9))
    index.note(40_000, 40_100, Expiry(2, 3))
    assert index.encode(7) == TTLINDEX
    read = ExpiryIndex.decode(TTLINDEX, base_offset=7, size=40_100)
    assert read.encode(7) == TTLINDEX


def test_a_transaction_index_has_the_documented_bytes() -> None:
    entries = AbortedTransactions([AbortedTransaction(3, 8, 9, 10)])
    assert encode_aborted(entries, 7, 11) == TXNINDEX
    known = decode_aborted(TXNINDEX, 7)
    assert known is not None
    assert (known.end_offset, list(known.entries)) == (11, list(entries))


@pytest.mark.parametrize("content", [INDEX, TTLINDEX, TXNINDEX])
def test_a_damaged_file_counts_as_missing(content: bytes) -> None:
    (sidecar,) = (each for each in SIDECARS if each.decode(content) is not None)
    assert sidecar.decode(None) is None
    for size in range(len(content)):
        assert sidecar.decode(content[:size]) is None
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        assert sidecar.decode(bytes(damaged)) is None


def test_the_files_of_a_segment_are_recognised_by_name() -> None:
    for suffix in (".log", ".index", ".txnindex", ".ttlindex"):
        match = SEGMENT_FILE.fullmatch("00000000000000000007" + suffix)
        assert match is not None
        assert match.groups() == ("00000000000000000007", suffix)
    assert SEGMENT_FILE.fullmatch("00000000000000000007.snapshot") is None
    assert SEGMENT_FILE.fullmatch("7.log") is None
