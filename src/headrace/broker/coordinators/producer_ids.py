"""Unique producer ids, from blocks that are reserved in the metadata store before they are used."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.errors import ApiError, ErrorCode
from headrace.ports import Check, Conflict, MetadataEntry, Put
from headrace.types import MAX_INT64

KEY: Final = "pid_block"
BLOCK_SIZE: Final = 1000
LAST_ID: Final = MAX_INT64
_ATTEMPTS: Final = 10


class _Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored value. All ids below `next_id` are allocated or reserved."""

    next_id: int
    format: int = 1


class ProducerIds:
    """Allocates producer ids.

    A crash loses at most the rest of a block. No id is allocated twice, not even by two brokers.
    """

    __slots__ = ("_end", "_metadata", "_next")

    def __init__(self, metadata: MetadataWriter) -> None:
        self._metadata = metadata
        self._next = 0
        self._end = 0

    def allocate(self) -> int:
        """Return an id that was never allocated before.

        Raises:
            ApiError: No block could be reserved.
        """
        if self._next == self._end:
            self._reserve()
        producer_id = self._next
        self._next += 1
        return producer_id

    def _reserve(self) -> None:
        for _ in range(_ATTEMPTS):
            entry = self._metadata.get(KEY)
            start = _next_id(entry)
            if start + BLOCK_SIZE > LAST_ID:
                raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
            check = Check(KEY, "absent" if entry is None else entry.version)
            value = msgspec.json.encode(_Block(start + BLOCK_SIZE))
            try:
                self._metadata.commit([check], [Put(KEY, value)])
            except Conflict:
                continue
            self._next, self._end = start, start + BLOCK_SIZE
            return
        raise ApiError(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "no block of producer ids could be reserved"
        )


def _next_id(entry: MetadataEntry | None) -> int:
    return 0 if entry is None else msgspec.json.decode(entry.value, type=_Block).next_id
