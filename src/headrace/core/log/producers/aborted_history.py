"""The aborted transactions of one log, in memory and in files.

Entries whose markers lie in the active segment are in memory. When the segment is sealed, they are written to its
`.txnindex` file, and a summary stays in memory, which most lookups need only. Entries that are read from files are
kept in a cache that all logs share.

A segment is sealed when it has `MAX_IN_SEGMENT` aborted transactions. That is a file of half a megabyte, which is read,
checked and searched in less than 2 ms. When all active segments together have `MAX_IN_MEMORY`, segments are sealed at
`LEAST_IN_SEGMENT` already. So the sum over all logs is bounded too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterator
from operator import attrgetter
from typing import Final

from headrace.core.log.files.caches import write_cache
from headrace.core.log.index.aborted_transactions import AbortedTransaction, AbortedTransactions
from headrace.core.log.index.transaction_index import (
    TRANSACTION_INDEX,
    decode_aborted,
    encode_aborted,
)
from headrace.errors import StorageError
from headrace.ports import FileSystem

MAX_IN_SEGMENT: Final = 16_384
"""The number of aborted transactions with which a segment is sealed."""
LEAST_IN_SEGMENT: Final = 256
"""The number of aborted transactions with which a segment is sealed while there are too many in memory."""
MAX_IN_MEMORY: Final = 2 << 20
"""The number of aborted transactions of active segments in memory (64 MiB) from which on segments are sealed earlier.
"""
MAX_CACHED: Final = 512 << 10
"""The largest number of aborted transactions in the cache of entries that were read from files: 16 MiB."""
_MAX_CARRIED: Final = 64
_FIRST_OFFSET: Final = attrgetter("first_offset")


class AbortedPart:
    """The summary of a sealed segment with markers of aborted transactions."""

    __slots__ = (
        "base_offset",
        "carried",
        "count",
        "end_offset",
        "first_marker",
        "last_marker",
        "last_stable_offset",
        "least_first_offset",
        "unsaved",
    )

    def __init__(self, base_offset: int, end_offset: int, entries: AbortedTransactions) -> None:
        """Summarize the entries of a segment. There has to be at least one."""
        first, last = entries[0], entries[-1]
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.count = len(entries)
        self.first_marker = first.last_offset
        self.last_marker = last.last_offset
        self.last_stable_offset = last.last_stable_offset
        """The last stable offset after the last marker. Transactions aborted in later segments begin there or later."""
        self.least_first_offset = entries.least_first_offset()
        self.carried = _carried(entries, base_offset)
        """The transactions that began in earlier segments; None if there are more than a few."""
        self.unsaved: AbortedTransactions | None = entries
        """All entries until they are written to the file, then None."""


def _carried(entries: AbortedTransactions, base_offset: int) -> AbortedTransactions | None:
    first_offsets = entries.fields[1::4]
    numbers = [number for number, first in enumerate(first_offsets) if first < base_offset]
    if len(numbers) > _MAX_CARRIED:
        return None
    return AbortedTransactions(entries[number] for number in numbers)


class AbortedCache:
    """Entries that were read from files, and the number of entries in memory, for several logs together."""

    __slots__ = (
        "_cached",
        "_count",
        "_most_cached",
        "_most_in_memory",
        "_most_in_segment",
        "held",
        "loads",
    )

    def __init__(
        self,
        most_cached: int = MAX_CACHED,
        most_in_memory: int = MAX_IN_MEMORY,
        most_in_segment: int = MAX_IN_SEGMENT,
    ) -> None:
        """Begin with an empty cache.

        Args:
            most_cached: The largest number of entries in the cache.
            most_in_memory: The number of entries of all active segments from which on segments are sealed earlier.
            most_in_segment: The number of entries at which a segment is sealed otherwise.
        """
        self._cached: dict[AbortedPart, AbortedTransactions] = {}
        self._count = 0
        self._most_cached = most_cached
        self._most_in_memory = most_in_memory
        self._most_in_segment = most_in_segment
        self.held = 0
        """The number of entries of active segments."""
        self.loads = 0
        """The number of files that were read."""

    def __len__(self) -> int:
        return self._count

    @property
    def most_in_segment(self) -> int:
        """The number of aborted transactions with which a segment is sealed now."""
        few = min(LEAST_IN_SEGMENT, self._most_in_segment)
        return self._most_in_segment if self.held < self._most_in_memory else few

    def get(self, part: AbortedPart) -> AbortedTransactions | None:
        """Return the entries of a part if they are in the cache, and note that they are used."""
        entries = self._cached.pop(part, None)
        if entries is not None:
            self._cached[part] = entries
        return entries

    def put(self, part: AbortedPart, entries: AbortedTransactions) -> None:
        """Add the entries of a part, and drop the entries that were not used for the longest time."""
        self._cached[part] = entries
        self._count += len(entries)
        while self._count > self._most_cached and len(self._cached) > 1:
            self.forget(next(iter(self._cached)))

    def forget(self, part: AbortedPart) -> None:
        """Drop the entries of a part."""
        entries = self._cached.pop(part, None)
        if entries is not None:
            self._count -= len(entries)


class AbortedHistory:
    """The aborted transactions of one log, in the order of their markers."""

    __slots__ = ("_active", "_directory", "_files", "_parts", "cache")

    def __init__(
        self,
        files: FileSystem | None = None,
        directory: str = "",
        cache: AbortedCache | None = None,
    ) -> None:
        """Begin without aborted transactions.

        Args:
            files: The file system of the log; None if no segment is ever sealed.
            directory: The log's directory.
            cache: The cache that this log shares with others; None for one of its own.
        """
        self._active = AbortedTransactions()
        self._directory = directory
        self._files = files
        self._parts: list[AbortedPart] = []
        self.cache = AbortedCache() if cache is None else cache

    def __bool__(self) -> bool:
        return bool(self._active or self._parts)

    def __len__(self) -> int:
        return len(self._active) + sum(part.count for part in self._parts)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for part in self._parts:
            yield from self._entries(part)
        yield from self._active

    @property
    def parts(self) -> list[AbortedPart]:
        """The summaries of sealed segments with markers of aborted transactions. Callers must not change the list."""
        return self._parts

    @property
    def first_marker(self) -> int:
        """The offset of the first marker, -1 without one."""
        if self._parts:
            return self._parts[0].first_marker
        return self._active[0].last_offset if self._active else -1

    @property
    def last_marker(self) -> int:
        """The offset of the last marker, -1 without one."""
        if self._active:
            return self._active[-1].last_offset
        return self._parts[-1].last_marker if self._parts else -1

    @property
    def is_full(self) -> bool:
        """Whether the active segment has to be sealed before another transaction is aborted."""
        return len(self._active) >= self.cache.most_in_segment

    def copy(self) -> AbortedHistory:
        """Return a copy with a small cache of its own, for another thread."""
        copied = AbortedHistory(self._files, self._directory, AbortedCache(most_cached=1))
        copied._active = self._active.part(0)
        copied._parts = list(self._parts)
        return copied

    # Changes

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry whose marker lies in the active segment, after all other markers."""
        self._active.append(entry)
        self.cache.held += 1

    def add_known(self, base_offset: int, end_offset: int, entries: AbortedTransactions) -> None:
        """Add the entries in the file of the next sealed segment."""
        if entries:
            part = AbortedPart(base_offset, end_offset, entries)
            part.unsaved = None
            self._parts.append(part)

    def seal(self, base_offset: int, end_offset: int) -> None:
        """Note that the active segment was sealed."""
        if self._active:
            self._parts.append(AbortedPart(base_offset, end_offset, self._active))
            self._replace_active(AbortedTransactions())

    def replace(self, base_offset: int, end_offset: int, entries: AbortedTransactions) -> None:
        """Note that compaction has made one segment of several, and which entries remain."""
        first = self._part_at(base_offset)
        end = self._part_at(end_offset)
        for part in self._parts[first:end]:
            self.cache.forget(part)
        made = [AbortedPart(base_offset, end_offset, entries)] if entries else []
        self._parts[first:end] = made

    def start_at(self, offset: int) -> None:
        """Forget entries whose markers lie below the log start offset, as far as that saves memory."""
        gone = self._part_at(offset)
        for part in self._parts[:gone]:
            self.cache.forget(part)
        del self._parts[:gone]
        if number := self._active.number_at(offset):
            self._replace_active(self._active.part(number))

    def close(self) -> None:
        """Release what the log holds of the shared cache."""
        for part in self._parts:
            self.cache.forget(part)
        self._replace_active(AbortedTransactions())

    def _replace_active(self, entries: AbortedTransactions) -> None:
        self.cache.held += len(entries) - len(self._active)
        self._active = entries

    def _part_at(self, offset: int) -> int:
        """Return the number of the first part with a marker at or after an offset."""
        return bisect_left(self._parts, offset, key=lambda part: part.last_marker)

    # Writing files

    def save(self, base_offset: int, end_offset: int) -> None:
        """Write the file of a segment if the log has aborted transactions, and all files that are not written yet."""
        if not self:
            return
        number = self._part_at(base_offset)
        if number == len(self._parts) or self._parts[number].base_offset != base_offset:
            # The segment is active, or sealed without aborted transactions.
            entries = self._active.marked_within(base_offset, end_offset)
            self._write(base_offset, end_offset, entries)
        self.save_sealed()

    def save_sealed(self) -> None:
        """Write the files of sealed segments that are not written yet."""
        for part in self._parts:
            entries = part.unsaved
            if entries is not None and self._write(part.base_offset, part.end_offset, entries):
                part.unsaved = None
                self.cache.put(part, entries)

    def _write(self, base_offset: int, end_offset: int, entries: AbortedTransactions) -> bool:
        if self._files is None:
            return False
        path = TRANSACTION_INDEX.path(self._directory, base_offset)
        return write_cache(self._files, path, encode_aborted(entries, base_offset, end_offset))

    def content_of_active(self, base_offset: int, end_offset: int) -> bytes:
        """Return the content of the file of the active segment."""
        return encode_aborted(self._active, base_offset, end_offset)

    # Lookups

    def between(
        self,
        offset: int,
        end_offset: int,
        *,
        most: int | None = None,
        producers: Container[int] | None = None,
    ) -> list[AbortedTransaction]:
        """Return the transactions with a batch from `offset` on and below `end_offset`, by first offset.

        Args:
            offset: The beginning of the range.
            end_offset: The end of the range.
            most: If there are more than this number, return only the first ones, one more than this number. None for
                all.
            producers: Only transactions of these producers; None for those of all.

        Raises:
            StorageError: A file is missing or damaged.
        """
        found: list[AbortedTransaction] = []
        for number in range(self._part_at(offset), len(self._parts)):
            part = self._parts[number]
            if part.least_first_offset < end_offset:
                carried = part.carried if end_offset <= part.base_offset else None
                entries = self._entries(part) if carried is None else carried
                found += entries.between(offset, end_offset, most=most, producers=producers)
                if most is not None and len(found) > most + 1:
                    found = sorted(found, key=_FIRST_OFFSET)[: most + 1]
                    end_offset = (
                        found[-1].first_offset + 1
                    )  # transactions that begin later are more than wanted
            if part.last_stable_offset >= end_offset:
                break
        else:
            found += self._active.between(offset, end_offset, most=most, producers=producers)
        found.sort(key=_FIRST_OFFSET)
        return found if most is None else found[: most + 1]

    def marked_within(self, base_offset: int, end_offset: int) -> AbortedTransactions:
        """Return the entries whose markers lie in the sealed segments between two offsets.

        Raises:
            StorageError: A file is missing or damaged.
        """
        merged = AbortedTransactions()
        for part in self._parts[self._part_at(base_offset) : self._part_at(end_offset)]:
            merged.fields.extend(self._entries(part).fields)
        return merged

    def count_within(self, base_offset: int, end_offset: int) -> int:
        """Return the number of markers of aborted transactions in the sealed segments between two offsets."""
        parts = self._parts[self._part_at(base_offset) : self._part_at(end_offset)]
        return sum(part.count for part in parts)

    def least_first_offset(self, offset: int) -> int | None:
        """Return an offset at or below the first offsets of all transactions whose markers are at or after `offset`.

        If one entry of a sealed segment counts, all entries of the segment do: so no file is read. None without such
        entries.
        """
        firsts = [part.least_first_offset for part in self._parts[self._part_at(offset) :]]
        number = self._active.number_at(offset)
        if number < len(self._active):
            firsts.append(self._active.least_first_offset(number))
        return min(firsts, default=None)

    def _entries(self, part: AbortedPart) -> AbortedTransactions:
        entries = part.unsaved
        if entries is None:
            entries = self.cache.get(part)
        if entries is None:
            entries = self._load(part)
            self.cache.put(part, entries)
        return entries

    def _load(self, part: AbortedPart) -> AbortedTransactions:
        assert self._files is not None, "without files nothing is saved"
        path = TRANSACTION_INDEX.path(self._directory, part.base_offset)
        self.cache.loads += 1
        known = decode_aborted(self._files.read_file(path), part.base_offset)
        if (
            known is None
            or len(known.entries) != part.count
            or known.entries[-1].last_offset != part.last_marker
        ):
            raise StorageError(
                f"{path} is missing or damaged. It lists aborted transactions, without which read_committed consumers "
                "get no records. The next start of the broker rebuilds it from the segments."
            )
        return known.entries
