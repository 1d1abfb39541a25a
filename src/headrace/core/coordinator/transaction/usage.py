"""The memory of a coordinator's transactional ids, and its bound.

A client that may use any transactional id can create many, and add every partition to the transaction of each.
"""

from __future__ import annotations

from typing import Final

from headrace.core.coordinator.transaction.records import TransactionMetadata

MAX_BYTES: Final = 256 << 20
_ID_BYTES: Final = 1_000
_CHARACTER_BYTES: Final = 4
_PARTITION_BYTES: Final = 400
"""Bytes of a partition in a transaction, including the name of its topic."""


class Usage:
    """The bytes that all shards of a coordinator take together."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = MAX_BYTES) -> None:
        """Allow so many bytes."""
        self.limit = limit
        self.used = 0

    def has_room(self, transactional_id: str = "", partitions: int = 0) -> bool:
        """Whether there is room for one more id, or for more partitions in a transaction."""
        new_id = weight(transactional_id, 0) if transactional_id else 0
        return self.used + new_id + partitions * _PARTITION_BYTES <= self.limit

    def change(
        self,
        transactional_id: str,
        before: TransactionMetadata | None,
        after: TransactionMetadata | None,
    ) -> None:
        """Take note of what has become of an id; None where it is not known."""
        for metadata, sign in ((before, -1), (after, 1)):
            if metadata is not None:
                self.used += sign * weight(transactional_id, len(metadata.partitions))


def weight(transactional_id: str, partitions: int) -> int:
    """Return how many bytes an id takes with so many partitions in its transaction."""
    return _ID_BYTES + len(transactional_id) * _CHARACTER_BYTES + partitions * _PARTITION_BYTES
