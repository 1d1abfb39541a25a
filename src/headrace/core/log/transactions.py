"""The transactions of one log: which are open, up to where all is decided, and which were aborted.

A transaction is open in a log from its producer's first transactional batch to the marker that ends it. Below the first
offset of the first open one everything is decided, and that is what `read_committed` consumers see. A marker counts
only once the high watermark has passed it: before, a crash may take it away again.

An aborted transaction is remembered as long as a record of it may be read, with the last stable offset after it. All
that were aborted later begin at or after that offset, so a search may end there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

_FIELDS, _MARKER = 4, 2
"""Fields of an entry, and the number of the marker's offset among them."""
NEVER: Final = 2**63 - 1
"""The first unstable offset of a log without undecided transactions."""


class AbortedTransaction(NamedTuple):
    """An aborted transaction, as in Kafka's transaction index; `last_offset` is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedTransactions:
    """The aborted transactions of a log, by the offset of their markers: 32 bytes each, for there may be many."""

    __slots__ = ("_fields",)

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._fields: array[int] = array("q")
        self.extend(entries)

    def __len__(self) -> int:
        return len(self._fields) // _FIELDS

    def __getitem__(self, number: int) -> AbortedTransaction:
        first = number * _FIELDS
        return AbortedTransaction(*self._fields[first : first + _FIELDS])

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(self.__getitem__, range(len(self)))

    def append(self, entry: AbortedTransaction) -> None:
        """Add one whose marker follows those of all others."""
        self._fields.extend(entry)

    def extend(self, entries: Iterable[AbortedTransaction]) -> None:
        """Add several, in the order of their markers."""
        for entry in entries:
            self._fields.extend(entry)

    def number_at(self, offset: int) -> int:
        """Return the number of the first one whose marker is not below an offset."""
        fields = self._fields
        return bisect_left(
            range(len(self)), offset, key=lambda number: fields[number * _FIELDS + _MARKER]
        )

    def forget_first(self, count: int) -> None:
        """Forget the oldest ones."""
        del self._fields[: count * _FIELDS]

    def marked_within(self, base_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return those whose markers lie between two offsets."""
        return [
            self[number]
            for number in range(self.number_at(base_offset), self.number_at(end_offset))
        ]


class Transactions:
    """The transactions of one log. Without any, all there is to it is one comparison."""

    __slots__ = ("_start_offset", "aborted", "decided", "first_unstable_offset", "open")

    def __init__(self) -> None:
        self._start_offset = 0
        self.aborted = AbortedTransactions()
        """By the offset of their markers."""
        self.decided: deque[tuple[int, int]] = deque()
        """Marker and first offset of those whose marker the high watermark has not passed yet."""
        self.first_unstable_offset = NEVER
        """Where the first transaction begins that is open, or not durably decided."""
        self.open: dict[int, int] = {}
        """First offset by producer id, in ascending order."""

    def begin(self, producer_id: int, offset: int) -> None:
        """Take note of a transactional batch; nothing happens if it is not the transaction's first."""
        if producer_id not in self.open:
            self.open[producer_id] = offset
            self.first_unstable_offset = min(self.first_unstable_offset, offset)

    def end(self, producer_id: int, offset: int, *, committed: bool) -> None:
        """Take note of a marker; one that ends nothing changes nothing."""
        first_offset = self.open.pop(producer_id, None)
        if first_offset is None:
            return
        if not committed:
            stable = next(iter(self.open.values()), offset + 1)
            entry = AbortedTransaction(producer_id, first_offset, offset, stable)
            self.aborted.append(entry)
        self.decided.append((offset, first_offset))

    def high_watermark_moved(self, high_watermark: int) -> None:
        """Count the markers below the high watermark; call it when there are `decided` ones."""
        decided = self.decided
        while decided and decided[0][0] < high_watermark:
            decided.popleft()
        self._find_first_unstable()

    def start_at(self, offset: int) -> None:
        """Forget what lies below the log's start."""
        self._start_offset = offset
        self.aborted.forget_first(self.aborted.number_at(offset))
        self._find_first_unstable()

    def restore(self, open_transactions: Iterable[tuple[int, int]]) -> None:
        """Begin with these open ones: producer id and first offset."""
        self.open = dict(sorted(open_transactions, key=lambda entry: entry[1]))
        self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        first = min((first for _, first in self.decided), default=NEVER)
        first = min(first, next(iter(self.open.values()), NEVER))
        self.first_unstable_offset = max(first, self._start_offset)

    def aborted_between(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return those that have something from `offset` on and below `end_offset`, by their first offsets."""
        found: list[AbortedTransaction] = []
        aborted = self.aborted
        for number in range(aborted.number_at(offset), len(aborted)):
            entry = aborted[number]
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.last_stable_offset >= end_offset:
                break
        return sorted(found, key=lambda entry: entry.first_offset)

    def forget_aborted(self, markers: Collection[int]) -> None:
        """Forget aborted transactions of which compaction has left nothing, not even the marker."""
        if markers:
            self.aborted = AbortedTransactions(
                entry for entry in self.aborted if entry.last_offset not in markers
            )


class AbortedRanges:
    """Tells which batches belong to aborted transactions."""

    __slots__ = ("_ranges",)

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Arrange them by producer; the transactions of one do not overlap."""
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for entry in aborted:
            ranges = self._ranges.setdefault(entry.producer_id, [])
            ranges.append((entry.first_offset, entry.last_offset))

    def hold(self, producer_id: int, offset: int) -> bool:
        """Whether the transactional batch of a producer at an offset was aborted."""
        ranges = self._ranges.get(producer_id)
        if ranges is None:
            return False
        number = bisect_right(ranges, offset, key=lambda entry: entry[0]) - 1
        return number >= 0 and offset < ranges[number][1]
