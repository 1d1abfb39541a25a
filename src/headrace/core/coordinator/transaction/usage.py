"""The memory that the transactional ids of a coordinator use, and its limit.

A client that is authorized for any transactional id can create many ids, and add every partition to each transaction.
"""

from __future__ import annotations

from typing import Final

from headrace.core.coordinator.transaction.records import TransactionMetadata

MAX_BYTES: Final = 256 << 20
_ID_BYTES: Final = 1_000
_CHARACTER_BYTES: Final = 4
_PARTITION_BYTES: Final = 400
"""The memory of a partition in a transaction, including the name of its topic, in bytes."""


class Usage:
    """The memory that the ids of all shards of a coordinator use, in bytes."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int = MAX_BYTES) -> None:
        """Begin with no memory in use. `limit` is in bytes."""
        self.limit = limit
        self.used = 0

    def has_space(self, transactional_id: str = "", partitions: int = 0) -> bool:
        """Return whether the limit allows one more id (if one is given), and that many more partitions."""
        new_id = weight(transactional_id, 0) if transactional_id else 0
        return self.used + new_id + partitions * _PARTITION_BYTES <= self.limit

    def change(
        self,
        transactional_id: str,
        before: TransactionMetadata | None,
        after: TransactionMetadata | None,
    ) -> None:
        """Count a change of an id's stored state; `before` is None for a new id, `after` for a deleted one."""
        for metadata, sign in ((before, -1), (after, 1)):
            if metadata is not None:
                self.used += sign * weight(transactional_id, len(metadata.partitions))


def weight(transactional_id: str, partitions: int) -> int:
    """Return the memory of an id with that many partitions in its transaction, in bytes."""
    return _ID_BYTES + len(transactional_id) * _CHARACTER_BYTES + partitions * _PARTITION_BYTES
