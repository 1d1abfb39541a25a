"""Aborted transactions as compact arrays, and which batches belong to an aborted transaction.

An aborted transaction is kept as long as a record of it may be read. Its entry has the last stable offset after it: all
transactions that are aborted later begin at or after that offset, so a search can end there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator
from typing import Final, NamedTuple

_FIELDS: Final = 4
_FIRST, _MARKER, _STABLE = 1, 2, 3
"""The indexes of the fields that are searched: first offset, offset of the marker, last stable offset."""


class AbortedTransaction(NamedTuple):
    """An aborted transaction, as in Kafka's transaction index. `last_offset` is the offset of its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class AbortedTransactions:
    """Aborted transactions in the order of their markers. An entry takes 32 bytes."""

    __slots__ = ("fields",)

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self.fields: array[int] = array("q")
        """The four fields of the first entry, then the four fields of the second, and so on."""
        for entry in entries:
            self.fields.extend(entry)

    @classmethod
    def of(cls, fields: array[int]) -> AbortedTransactions:
        """Return the entries with these fields. The array is not copied."""
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
        """Add an entry whose marker follows the markers of all others."""
        self.fields.extend(entry)

    def number_at(self, offset: int) -> int:
        """Return the number of the first entry whose marker is at or after an offset."""
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
        """Return the entries whose markers lie between two offsets."""
        return self.part(self.number_at(base_offset), self.number_at(end_offset))

    def between(
        self,
        offset: int,
        end_offset: int,
        *,
        most: int | None = None,
        producers: Container[int] | None = None,
    ) -> list[AbortedTransaction]:
        """Return the transactions with a batch from `offset` on and below `end_offset`, in the order of their markers.

        Args:
            offset: The beginning of the range.
            end_offset: The end of the range.
            most: If there are more than this number, return only those with the least first offsets, one more than this
                number. None for all.
            producers: Only transactions of these producers; None for those of all.
        """
        first = self.number_at(offset)
        # Last stable offsets never fall: the first entry whose last stable offset is at or after the end is the last
        # one to look at.
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
        """Return the least first offset of the entries from a number on. There has to be one."""
        return min(self.fields[number * _FIELDS + _FIRST :: _FIELDS])


class AbortedRanges:
    """Finds out which batches belong to aborted transactions."""

    __slots__ = ("_ranges",)

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """Group transactions by producer. The transactions of one producer do not overlap."""
        self._ranges: dict[int, list[tuple[int, int]]] = {}
        for entry in aborted:
            ranges = self._ranges.setdefault(entry.producer_id, [])
            ranges.append((entry.first_offset, entry.last_offset))

    def hold(self, producer_id: int, offset: int) -> bool:
        """Return whether the transactional batch of a producer at an offset was aborted."""
        ranges = self._ranges.get(producer_id)
        if ranges is None:
            return False
        number = bisect_right(ranges, offset, key=lambda entry: entry[0]) - 1
        return number >= 0 and offset < ranges[number][1]
