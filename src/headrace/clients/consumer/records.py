"""What a consumer hands out, and how it comes out of fetched batches."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, NamedTuple

from headrace.clients.flows.fetch import FetchedPartition
from headrace.records.batch import HEADER_SIZE, BatchHeader, check_batch
from headrace.records.reader import decode_batch, decode_batch_as
from headrace.records.tags import TagFilter
from headrace.types import Buffer, TopicPartition

ABORT_MARKER: Final = 0


class ConsumerRecord(NamedTuple):
    """A record with its place."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Any
    """Bytes, or what the key's serde makes of them; None where there is none."""
    value: Any
    """Bytes, or what the serde makes of them; None where there is none."""
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int
    """Epoch of the leader that wrote the record's batch."""


class FetchedBatches:
    """One partition's part of an answer, decoded batch by batch."""

    __slots__ = (
        "_aborted",
        "_active_aborts",
        "_buffer",
        "_check_crcs",
        "_name",
        "_position",
        "_tags",
    )

    def __init__(
        self,
        name: TopicPartition,
        data: FetchedPartition,
        *,
        check_crcs: bool,
        tags: TagFilter | None = None,
    ) -> None:
        """Decode what a partition gave; of the records only those with any of the tags, if some are given."""
        self._name = tuple(name)
        self._buffer: Buffer = data.records
        self._position = 0
        self._check_crcs = check_crcs
        self._tags = tags
        self._aborted = deque(sorted(data.aborted_transactions, key=lambda entry: entry[1]))
        self._active_aborts: set[int] = set()

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left that could be a batch."""
        return len(self._buffer) - self._position < HEADER_SIZE

    def next_batch(self) -> tuple[BatchHeader, list[ConsumerRecord]] | None:
        """Return the next whole batch, without records if it is control or aborted; None at the end.

        Raises:
            CorruptRecordError: It is damaged; it stays the next.
        """
        remaining = len(self._buffer) - self._position
        if remaining < HEADER_SIZE:
            return None
        header = BatchHeader.parse(self._buffer, self._position)
        if header.size > remaining > 0 and header.batch_length > 0:
            return None  # brokers may cut the last batch off
        if self._check_crcs:
            header = check_batch(self._buffer, self._position)
        start = self._position
        while self._aborted and self._aborted[0][1] <= header.last_offset:
            self._active_aborts.add(self._aborted.popleft()[0])
        records: list[ConsumerRecord] = []
        if header.is_control:
            self._end_transaction(header, start)
        elif not (header.is_transactional and header.producer_id in self._active_aborts):
            epoch = (header.partition_leader_epoch,)
            records = decode_batch_as(
                ConsumerRecord, header, self._buffer, start, before=self._name, after=epoch
            )
            if self._tags is not None:  # the broker may not have done it
                accepts = self._tags.accepts
                records = [record for record in records if accepts(record.headers)]
        self._position = start + header.size
        return header, records

    def _end_transaction(self, header: BatchHeader, start: int) -> None:
        for record in decode_batch(header, self._buffer, start):
            if record.key is not None and record.key[2:4] == ABORT_MARKER.to_bytes(2, "big"):
                self._active_aborts.discard(header.producer_id)
