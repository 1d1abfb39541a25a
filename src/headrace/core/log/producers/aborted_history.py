"""The aborted transactions of one log: what memory holds of them, and what is read when somebody asks.

The entries whose markers lie in the active segment are in memory. When that is sealed, they go into its `.txnindex`
file, and a summary stays: most questions need no more. Files that are read go through a cache which all logs share.

A segment is sealed when it has `MAX_IN_SEGMENT` aborted transactions: a file of half a megabyte, which is read, checked
and searched in less than 2 ms. When all active segments together have `MAX_IN_MEMORY`, segments are sealed at
`LEAST_IN_SEGMENT` already. So the sum over all logs has a bound, too.
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
"""With how many aborted transactions a segment is sealed."""
LEAST_IN_SEGMENT: Final = 256
"""The same while there are too many in memory."""
MAX_IN_MEMORY: Final = 2 << 20
"""So many aborted transactions of active segments are in memory (64 MiB) before segments are sealed earlier."""
MAX_CACHED: Final = 512 << 10
"""How many aborted transactions of sealed segments are in memory because they were asked for: 16 MiB."""
_MAX_CARRIED: Final = 64
_FIRST_OFFSET: Final = attrgetter("first_offset")


class AbortedPart:
    """Summary of a sealed segment in which the markers of aborted transactions lie."""

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
        """Summarize the entries of a segment, of which there is one at least."""
        first, last = entries[0], entries[-1]
        self.base_offset = base_offset
        self.end_offset = end_offset
        self.count = len(entries)
        self.first_marker = first.last_offset
        self.last_marker = last.last_offset
        self.last_stable_offset = last.last_stable_offset
        """After the last marker: whatever was aborted in later segments begins there or later."""
        self.least_first_offset = entries.least_first_offset()
        self.carried = _carried(entries, base_offset)
        """Those that began in earlier segments, if they are few; None otherwise."""
        self.unsaved: AbortedTransactions | None = entries
        """All entries until they are in the file; then None."""


def _carried(entries: AbortedTransactions, base_offset: int) -> AbortedTransactions | None:
    first_offsets = entries.fields[1::4]
    numbers = [number for number, first in enumerate(first_offsets) if first < base_offset]
    if len(numbers) > _MAX_CARRIED:
        return None
    return AbortedTransactions(entries[number] for number in numbers)


class AbortedCache:
    """What several logs share: entries that were read from files, and the count of all that are in memory."""

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
        """Begin with nothing.

        Args:
            most_cached: How many entries are kept that were read from files.
            most_in_memory: At how many entries of active segments these are sealed earlier.
            most_in_segment: At how many entries each is sealed otherwise.
        """
        self._cached: dict[AbortedPart, AbortedTransactions] = {}
        self._count = 0
        self._most_cached = most_cached
        self._most_in_memory = most_in_memory
        self._most_in_segment = most_in_segment
        self.held = 0
        """How many entries active segments have."""
        self.loads = 0
        """How many files were read."""

    def __len__(self) -> int:
        return self._count

    @property
    def most_in_segment(self) -> int:
        """With how many aborted transactions a segment is to be sealed now."""
        few = min(LEAST_IN_SEGMENT, self._most_in_segment)
        return self._most_in_segment if self.held < self._most_in_memory else few

    def get(self, part: AbortedPart) -> AbortedTransactions | None:
        """Return the entries of a part if they are here; the part was used then."""
        entries = self._cached.pop(part, None)
        if entries is not None:
            self._cached[part] = entries
        return entries

    def put(self, part: AbortedPart, entries: AbortedTransactions) -> None:
        """Keep the entries of a part, and drop those of the parts that were not used for the longest time."""
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
    """The aborted transactions of one log, by the offsets of their markers."""

    __slots__ = ("_active", "_directory", "_files", "_parts", "cache")

    def __init__(
        self,
        files: FileSystem | None = None,
        directory: str = "",
        cache: AbortedCache | None = None,
    ) -> None:
        """Begin without any.

        Args:
            files: The file system of the log; None if nothing is ever sealed.
            directory: The log's directory.
            cache: Shared with other logs; None for one of its own.
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
        """The summaries of sealed segments that have markers of aborted transactions; not to be changed."""
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
        """Whether the active segment is to be sealed before one more is aborted."""
        return len(self._active) >= self.cache.most_in_segment

    def copy(self) -> AbortedHistory:
        """Return the same history with a small cache of its own: another thread may ask it."""
        copied = AbortedHistory(self._files, self._directory, AbortedCache(most_cached=1))
        copied._active = self._active.part(0)
        copied._parts = list(self._parts)
        return copied

    # Changes

    def append(self, entry: AbortedTransaction) -> None:
        """Add one whose marker lies in the active segment, behind all others."""
        self._active.append(entry)
        self.cache.held += 1

    def add_known(self, base_offset: int, end_offset: int, entries: AbortedTransactions) -> None:
        """Add what the file of the next sealed segment says."""
        if entries:
            part = AbortedPart(base_offset, end_offset, entries)
            part.unsaved = None
            self._parts.append(part)

    def seal(self, base_offset: int, end_offset: int) -> None:
        """Take note that the active segment was sealed."""
        if self._active:
            self._parts.append(AbortedPart(base_offset, end_offset, self._active))
            self._replace_active(AbortedTransactions())

    def replace(self, base_offset: int, end_offset: int, entries: AbortedTransactions) -> None:
        """Take note that compaction has made one segment of several, and which entries stay."""
        first = self._part_at(base_offset)
        end = self._part_at(end_offset)
        for part in self._parts[first:end]:
            self.cache.forget(part)
        made = [AbortedPart(base_offset, end_offset, entries)] if entries else []
        self._parts[first:end] = made

    def start_at(self, offset: int) -> None:
        """Forget those whose markers lie below the log's start, as far as that spares memory."""
        gone = self._part_at(offset)
        for part in self._parts[:gone]:
            self.cache.forget(part)
        del self._parts[:gone]
        if number := self._active.number_at(offset):
            self._replace_active(self._active.part(number))

    def close(self) -> None:
        """Give back what the log has of what logs share."""
        for part in self._parts:
            self.cache.forget(part)
        self._replace_active(AbortedTransactions())

    def _replace_active(self, entries: AbortedTransactions) -> None:
        self.cache.held += len(entries) - len(self._active)
        self._active = entries

    def _part_at(self, offset: int) -> int:
        """Return the number of the first part with a marker at or behind an offset."""
        return bisect_left(self._parts, offset, key=lambda part: part.last_marker)

    # Files

    def save(self, base_offset: int, end_offset: int) -> None:
        """Write the file of a segment if anything was aborted in the log, and files that have yet to be written."""
        if not self:
            return
        number = self._part_at(base_offset)
        if number == len(self._parts) or self._parts[number].base_offset != base_offset:
            # Of an active segment, or of a sealed one without any.
            entries = self._active.marked_within(base_offset, end_offset)
            self._write(base_offset, end_offset, entries)
        self.save_sealed()

    def save_sealed(self) -> None:
        """Write the files of sealed segments that have yet to be written."""
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
        """Return what is to stand in the file of the active segment."""
        return encode_aborted(self._active, base_offset, end_offset)

    # Questions

    def between(
        self,
        offset: int,
        end_offset: int,
        *,
        most: int | None = None,
        producers: Container[int] | None = None,
    ) -> list[AbortedTransaction]:
        """Return those that have something from `offset` on and below `end_offset`, by their first offsets.

        Args:
            offset: Where the range begins.
            end_offset: Where it ends.
            most: When there are more, only the first ones are returned, one more than this; None for all.
            producers: Whose transactions; None for those of all.

        Raises:
            StorageError: A file is not there or damaged.
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
                    end_offset = found[-1].first_offset + 1  # what begins later is one too many
            if part.last_stable_offset >= end_offset:
                break
        else:
            found += self._active.between(offset, end_offset, most=most, producers=producers)
        found.sort(key=_FIRST_OFFSET)
        return found if most is None else found[: most + 1]

    def marked_within(self, base_offset: int, end_offset: int) -> AbortedTransactions:
        """Return those whose markers lie in the sealed segments between two offsets.

        Raises:
            StorageError: A file is not there or damaged.
        """
        merged = AbortedTransactions()
        for part in self._parts[self._part_at(base_offset) : self._part_at(end_offset)]:
            merged.fields.extend(self._entries(part).fields)
        return merged

    def count_within(self, base_offset: int, end_offset: int) -> int:
        """Return how many markers of aborted transactions lie in the sealed segments between two offsets."""
        parts = self._parts[self._part_at(base_offset) : self._part_at(end_offset)]
        return sum(part.count for part in parts)

    def least_first_offset(self, offset: int) -> int | None:
        """Return an offset at or below the first offsets of all whose markers are not below `offset`; None without any.

        Of a sealed segment all count if one does: no file is read.
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
                f"{path} is missing or damaged: it tells which transactions were aborted, and without it no records "
                "are given to readers of committed ones. The next start of the broker makes it again from the segments."
            )
        return known.entries
