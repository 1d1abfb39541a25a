"""The `.txnindex` file of a segment: the aborted transactions whose markers lie in it.

A cache like the index, with a check sum and what it speaks for. From the segment with the first aborted transaction on
each segment has one, if only an empty one: then one that is missing is no reason to believe that nothing was aborted.
"""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Final, NamedTuple

from crc32c import crc32c

from headrace.core.log.aborted_transactions import AbortedTransactions

TXNINDEX_SUFFIX: Final = ".txnindex"

_MAGIC: Final = b"HRTX"
_VERSION: Final = 1
_HEADER: Final = struct.Struct(">4sHHqqI")
"""Magic, version, unused, base offset, end offset, number of entries."""
_ENTRY_SIZE: Final = 32
"""Producer id, first offset, offset of the marker, last stable offset, big-endian: the order of Kafka's."""
_CRC: Final = struct.Struct(">I")


class AbortedContent(NamedTuple):
    """The aborted transactions whose markers lie in a segment below `end_offset`."""

    end_offset: int
    entries: AbortedTransactions


def encode_aborted(entries: AbortedTransactions, base_offset: int, end_offset: int) -> bytes:
    """Return the file for a segment, given the aborted transactions whose markers lie in it."""
    header = _HEADER.pack(_MAGIC, _VERSION, 0, base_offset, end_offset, len(entries))
    content = header + _big_endian(entries.fields[:]).tobytes()
    return content + _CRC.pack(crc32c(content))


def decode_aborted(content: bytes | None, base_offset: int) -> AbortedContent | None:
    """Return what a file says, None unless it is sound and about the segment."""
    if content is None or len(content) < _HEADER.size + _CRC.size:
        return None
    body = memoryview(content)[: -_CRC.size]
    magic, version, _, indexed_base, end_offset, count = _HEADER.unpack_from(body)
    if (
        (magic, version, indexed_base) != (_MAGIC, _VERSION, base_offset)
        or len(body) != _HEADER.size + _ENTRY_SIZE * count
        or _CRC.unpack_from(content, len(body))[0] != crc32c(body)
    ):
        return None
    fields = array("q")
    fields.frombytes(body[_HEADER.size :])
    return AbortedContent(end_offset, AbortedTransactions.of(_big_endian(fields)))


def _big_endian(fields: array[int]) -> array[int]:
    """Swap the bytes of an array between this machine's order and that of the file."""
    if sys.byteorder == "little":
        fields.byteswap()
    return fields
