"""The `.txnindex` file of a segment: the aborted transactions whose markers lie in the segment.

The file is a cache with a checksum, like the sparse index. From the segment with the first aborted transaction on, each
segment has such a file, if only an empty one. So a missing file does not mean that nothing was aborted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.core.log.index.aborted_transactions import AbortedTransactions
from headrace.core.log.index.sidecar import Sidecar

TRANSACTION_INDEX: Final = Sidecar(
    ".txnindex", b"HRTX", 1, header_fields=2, columns=1, entry_numbers=4, byte_order=">"
)
"""Header: base offset, end offset.

Fields of an entry, in Kafka's order: producer id, first offset, offset of the marker, last stable offset.
"""


class AbortedContent(NamedTuple):
    """The aborted transactions whose markers lie in a segment below `end_offset`."""

    end_offset: int
    entries: AbortedTransactions


def encode_aborted(entries: AbortedTransactions, base_offset: int, end_offset: int) -> bytes:
    """Return the file of a segment, from the aborted transactions whose markers lie in it."""
    return TRANSACTION_INDEX.encode((base_offset, end_offset), (entries.fields,))


def decode_aborted(content: bytes | None, base_offset: int) -> AbortedContent | None:
    """Return the content of a file, None unless it is sound and describes the segment."""
    decoded = TRANSACTION_INDEX.decode(content)
    if decoded is None:
        return None
    (indexed_base, end_offset), (fields,) = decoded
    if indexed_base != base_offset:
        return None
    return AbortedContent(end_offset, AbortedTransactions.of(fields))
