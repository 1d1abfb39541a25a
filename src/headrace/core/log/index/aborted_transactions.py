"""Aborted transactions as compact arrays, and which batches belong to one.

An aborted transaction is remembered as long as a record of it may be read, with the last stable offset after it. All
transactions that were aborted later begin at or after that offset, so a search may end there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator
from typing import Final, NamedTuple

_FIELDS: Final = 4
_FIRST, _MARKER, _STABLE = 1, 2, 3
"""The numbers of the fields that searches look at."""


class AbortedTransaction(NamedTuple):
    """An aborted transaction, as in Kafka's transaction index; `last_offset` is its marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedTransactions:
    """Aborted transactions by the offsets of their markers: 32 bytes each."""

    __slots__ = ("fields",)

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self.fields: array[int] = array("q")
        """The four fields of the first entry, those of the second, and so on."""
        for entry in entries:
            self.fields.extend(entry)

    @classmethod
    def of(cls, fields: array[int]) -> AbortedTransactions:
        """Return the entries with these fields; the array is not copied."""
        entries = cls()
        entries.fields = fields
        return entries

    def __len__(self) -> int:
        return len(self.fields) // _FIELDS

    def __getitem__(self, number: int) -> AbortedTransaction:
        first = range(len(self))[number] * _FIELDS
        return AbortedTransaction(*self.fields[first : first + _FIELDS])

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(self.__getitem__, range(len(self)))

    def append(self, entry: AbortedTransaction) -> None:
        """Add one whose marker follows those of all others."""
        self.fields.extend(entry)

    def number_at(self, offset: int) -> int:
        """Return the number of the first one whose marker is not below an offset."""
        return self._search(_MARKER, 0, offset)

    def _search(self, field: int, first: int, value: int) -> int:
        fields = self.fields
        return bisect_left(
            range(len(self)), value, first, key=lambda number: fields[number * _FIELDS + field]
        )

    def part(self, first: int, end: int | None = None) -> AbortedTransactions:
        """Return a copy of the entries from one number to another."""
        stop = None if end is None else end * _FIELDS
        return self.of(self.fields[first * _FIELDS : stop])

    def marked_within(self, base_offset: int, end_offset: int) -> AbortedTransactions:
        """Return those whose markers lie between two offsets."""
        return self.part(self.number_at(base_offset), self.number_at(end_offset))

    def between(
        self,
        offset: int,
        end_offset: int,
        *,
        most: int | None = None,
        producers: Container[int] | None = None,
    ) -> list[AbortedTransaction]:
        """Return those that have something from `offset` on and below `end_offset`, by their markers.

        Args:
            offset: Where the range begins.
            end_offset: Where it ends.
            most: When there are more, only those with the least first offsets are returned, one more than this; None
                for all.
            producers: Whose transactions; None for those of all.
        """
        first = self.number_at(offset)
        # Last stable offsets never fall: the first entry that has one at the end or behind it is the last that counts.
        last = self._search(_STABLE, first, end_offset)
        first_offsets = self.fields[first * _FIELDS + _FIRST : (last + 1) * _FIELDS : _FIELDS]
        if most is not None and len(first_offsets) > most + 1:
            end_offset = min(end_offset, sorted(first_offsets)[most] + 1)
        numbers = [
            number
            for number, first_offset in enumerate(first_offsets, first)
            if first_offset < end_offset
        ]
        if producers is not None:
            fields = self.fields
            numbers = [number for number in numbers if fields[number * _FIELDS] in producers]
        return [self[number] for number in numbers]

    def least_first_offset(self, number: int = 0) -> int:
        """Return the least first offset of the entries from a number on, of which there is one at least."""
        return min(self.fields[number * _FIELDS + _FIRST :: _FIELDS])


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
