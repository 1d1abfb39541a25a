"""The model of one log: a list of batches, from which epochs, producers and transactions follow.

`history` has each batch as it was appended, `batches` as it is on the disk: compaction and expiry leave less of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from headrace.core.log import Marker, read_marker
from headrace.records.batch import BatchHeader, check_batch, iterate_headers
from headrace.records.reader import Record, read_records

BATCHES_KEPT = 5
BatchKey = tuple[int, int, int, int]
"""First and last sequence, base offset and last offset of a producer's batch."""


class ViolationError(AssertionError):
    """The log differs from its model."""


def require(condition: object, message: str) -> None:
    """Raise a `ViolationError` unless the condition holds."""
    if not condition:
        raise ViolationError(message)


@dataclass(frozen=True)
class Batch:
    """One batch with its bytes."""

    raw: bytes

    @cached_property
    def header(self) -> BatchHeader:
        return check_batch(self.raw)

    @cached_property
    def records(self) -> list[Record]:
        return [] if self.header.is_control else list(read_records(self.raw))

    @cached_property
    def marker(self) -> Marker | None:
        return read_marker(self.raw) if self.header.is_control else None

    @property
    def base(self) -> int:
        return self.header.base_offset

    @property
    def end(self) -> int:
        return self.header.next_offset

    def __repr__(self) -> str:
        return f"{self.base}..{self.end}"

    @staticmethod
    def split(data: bytes) -> list[Batch]:
        """Return the batches in the content of a segment."""
        return [
            Batch(bytes(data[position : position + header.size]))
            for position, header in iterate_headers(data)
        ]


@dataclass
class Producer:
    """A producer: its epoch, the epoch of the coordinator of its last marker, and its last batches."""

    epoch: int = -1
    coordinator_epoch: int = -1
    batches: list[BatchKey] = field(default_factory=list)

    def enter(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch, self.batches = epoch, []


@dataclass
class Transaction:
    """A transaction, from the first offset of its data to its marker. `marker` is None while it is open."""

    producer_id: int
    first: int
    marker: Batch | None = None

    @property
    def is_aborted(self) -> bool:
        return (
            self.marker is not None
            and self.marker.marker is not None
            and not self.marker.marker.committed
        )


@dataclass
class State:
    """The state of a log after a list of batches."""

    epochs: list[tuple[int, int]] = field(default_factory=list)
    producers: dict[int, Producer] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    open: dict[int, Transaction] = field(default_factory=dict)

    @classmethod
    def after(cls, batches: Iterable[Batch]) -> State:
        state = cls()
        for batch in batches:
            state.add(batch)
        return state

    def add(self, batch: Batch) -> None:
        header = batch.header
        if not self.epochs or header.partition_leader_epoch > self.epochs[-1][0]:
            self.epochs.append((header.partition_leader_epoch, batch.base))
        if header.producer_id < 0:
            return
        if header.is_control:
            self._end(batch)
            return
        transactional = header.is_transactional and header.records_count > 0
        if header.base_sequence < 0 and not transactional:
            return
        producer = self.producers.setdefault(header.producer_id, Producer())
        producer.enter(header.producer_epoch)
        if header.base_sequence >= 0:
            key = (header.base_sequence, header.last_sequence, batch.base, batch.end - 1)
            producer.batches = [*producer.batches, key][-BATCHES_KEPT:]
        if transactional and header.producer_id not in self.open:
            transaction = Transaction(header.producer_id, batch.base)
            self.open[header.producer_id] = transaction
            self.transactions.append(transaction)

    def _end(self, batch: Batch) -> None:
        if batch.marker is None:
            return
        marker = batch.marker
        producer = self.producers.setdefault(marker.producer_id, Producer())
        producer.enter(marker.producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        ended = self.open.pop(marker.producer_id, None)
        if ended is not None:
            ended.marker = batch

    def epochs_from(self, start: int) -> list[tuple[int, int]]:
        """Return the epochs of a log that begins at an offset."""
        number = max((n for n, (_, first) in enumerate(self.epochs) if first <= start), default=0)
        return [(epoch, max(first, start)) for epoch, first in self.epochs[number:]]


def end_offset_for(
    epochs: list[tuple[int, int]], epoch: int, log_end_offset: int
) -> tuple[int, int]:
    """Return what OffsetForLeaderEpoch answers (KIP-279)."""
    if not epochs or epoch < 0 or epoch > epochs[-1][0]:
        return -1, -1
    known = [each for each, _ in epochs if each <= epoch]
    following = [first for each, first in epochs if each > epoch]
    return (known[-1] if known else epoch), (following[0] if following else log_end_offset)


class Model:
    """The batches that a log must have."""

    def __init__(self, start: int = 0) -> None:
        """Begin with an empty log at an offset."""
        self.history: list[Batch] = []
        self.batches: list[Batch] = []
        self.empty_end = start
        """The log end offset while there are no batches."""
        self.start = start
        """The log start offset."""
        self.durable_start = start
        """The log start offset that is known to be durable."""
        self.high_watermark = start
        self.floor = start
        """The offset below which nothing may be lost."""
        self.rewritten = 0
        """The offset below which compaction or expiry may have rewritten batches."""
        self.emptied = 0
        """The offset at which the last truncation has left an empty log."""
        self.incomplete = 0
        """The offset below which the newest record of a key may be missing."""
        self.empty_epoch = -1
        """A leader epoch that has begun and has no batch yet, -1 for none."""
        self._state: tuple[int, State] = (0, State())

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else self.empty_end

    @property
    def state(self) -> State:
        """The state after the whole history."""
        count, state = self._state
        for batch in self.history[count:]:
            state.add(batch)
        self._state = len(self.history), state
        return state

    @property
    def epochs(self) -> list[tuple[int, int]]:
        """The leader epochs from the log start offset on."""
        state = self.state
        if self.emptied:
            state = State.after(batch for batch in self.history if batch.base >= self.emptied)
        return state.epochs_from(self.start)

    def add(self, batch: Batch) -> None:
        self.history.append(batch)
        self.batches.append(batch)
        self.empty_epoch = -1

    def truncated_end(self, offset: int) -> int:
        """Return the log end offset that a truncation to an offset leaves."""
        if offset >= self.end:
            return self.end
        ends = (batch.end for batch in self.batches if batch.end <= offset)
        return max((self.start, *ends))

    def cut(self, end: int) -> None:
        """Remove all batches that end after an offset."""
        self.empty_epoch = -1
        if end < self.rewritten:
            # Compaction has removed records in favour of records that are cut off now: no clean election does that.
            self.rewritten = self.incomplete = end
        self.history = [batch for batch in self.history if batch.end <= end]
        self.batches = [batch for batch in self.batches if batch.end <= end]
        if self.end < end:
            self.batches = []  # what remained lay below the log start offset
        if end <= self.start:
            self.emptied = end  # an empty log has no epochs
        self.empty_end = end
        self.floor = min(self.floor, end)
        self._state = (0, State())

    def adopt(self, batches: list[Batch]) -> None:
        """Use the batches that the disk has below `rewritten` after they were checked."""
        self.batches = batches

    def data_of(self, transaction: Transaction) -> Iterator[Batch]:
        """Yield the batches of a transaction that have records on the disk."""
        end = transaction.marker.base if transaction.marker is not None else self.end
        for batch in self.batches:
            header = batch.header
            if (
                header.producer_id == transaction.producer_id
                and header.is_transactional
                and batch.records
                and transaction.first <= batch.base < end
            ):
                yield batch

    def committed_records(self, end: int) -> list[Record]:
        """Return the records that readers of committed records must find below an offset, before compaction."""
        left_out: set[int] = set()
        for transaction in self.state.transactions:
            if transaction.is_aborted:
                assert transaction.marker is not None
                left_out.update(
                    batch.base
                    for batch in self.history
                    if batch.header.producer_id == transaction.producer_id
                    and batch.header.is_transactional
                    and transaction.first <= batch.base < transaction.marker.base
                )
        return [
            record
            for batch in self.history
            if batch.end <= end and batch.base not in left_out
            for record in batch.records
            if record.offset >= self.start
        ]
