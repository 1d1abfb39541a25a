"""Unique producer ids, from blocks that are reserved in the metadata store before they are used."""

from __future__ import annotations

from functools import partial
from typing import Final

import msgspec

from headrace.broker.metadata.commit_lane import CommitError
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.ports import Conflict, MetadataEntry, Put, check_of
from headrace.types import MAX_INT64

KEY: Final = "pid_block"
BLOCK_SIZE: Final = 1000
LAST_ID: Final = MAX_INT64
_NO_BLOCK: Final = "no block of producer ids could be reserved"


class _Block(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored value. All ids below `next_id` are allocated or reserved."""

    next_id: int
    format: int = 1


_DECODER: Final = msgspec.json.Decoder(_Block)
"""The decoder of stored values. A decoder that is made by a request leaves garbage."""


class ProducerIds:
    """Allocates producer ids.

    The next block is reserved when half of a block is used, so that requests rarely wait for the metadata store. A
    crash loses at most the rest of a block and the next block. No id is allocated twice, not even by two brokers.
    """

    __slots__ = ("_end", "_following", "_is_reserving", "_metadata", "_next", "_waiting")

    def __init__(self, metadata: MetadataWriter) -> None:
        self._metadata = metadata
        self._next = 0
        self._end = 0
        self._following: int | None = None
        """The first id of the next block; None if no block is reserved."""
        self._is_reserving = False
        self._waiting: list[Deferred[ApiError | None]] = []
        """Resolved when the present reservation has succeeded or failed."""

    def wait(self) -> Deferred[ApiError | None] | None:
        """Wait until `allocate` has an id.

        Returns:
            None if there is an id now. Otherwise the value is None when there is an id, or the error.
        """
        if self._next < self._end or self._has_id():
            return None
        ready: Deferred[ApiError | None] = Deferred()
        self._waiting.append(ready)
        self._reserve()
        return ready

    def allocate(self) -> int:
        """Return an id that was never allocated before.

        Raises:
            ApiError: COORDINATOR_LOAD_IN_PROGRESS: no block is reserved yet; see `wait`.
        """
        if self._next == self._end and not self._has_id():
            self._reserve()
            if not self._has_id():
                raise ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, _NO_BLOCK)
        producer_id = self._next
        self._next += 1
        if self._following is None and self._end - self._next <= BLOCK_SIZE // 2:
            self._reserve()
        return producer_id

    def _has_id(self) -> bool:
        if self._next == self._end and self._following is not None:
            self._next, self._end = self._following, self._following + BLOCK_SIZE
            self._following = None
        return self._next < self._end

    def _reserve(self) -> None:
        """Reserve the next block, unless a reservation is in flight."""
        if self._is_reserving:
            return
        entry = self._metadata.image.get(KEY)
        try:
            start = _next_id(entry)
        except ApiError as error:
            self._finish(error)
            return
        self._is_reserving = True
        put = Put(KEY, msgspec.json.encode(_Block(start + BLOCK_SIZE)))
        stored = self._metadata.commit([check_of(KEY, entry)], [put])
        stored.on_done(partial(self._reserved, start, entry))

    def _reserved(self, start: int, known: MetadataEntry | None, error: CommitError) -> None:
        self._is_reserving = False
        if error is None:
            self._following = start
            self._finish(None)
        elif not isinstance(error, Conflict):
            self._finish(error)
        elif self._metadata.image.get(KEY) != known:  # another broker has reserved this block
            self._reserve()
        else:
            self._finish(ApiError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, _NO_BLOCK))

    def _finish(self, error: ApiError | None) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            each.resolve(error)


def _next_id(entry: MetadataEntry | None) -> int:
    """Return the first id that no broker has reserved.

    Raises:
        ApiError: The entry cannot be read, or all ids are used up.
    """
    try:
        start = 0 if entry is None else _DECODER.decode(entry.value).next_id
    except msgspec.MsgspecError as error:
        raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{KEY}: {error}") from error
    if start + BLOCK_SIZE > LAST_ID:
        raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "all producer ids are used up")
    return start
