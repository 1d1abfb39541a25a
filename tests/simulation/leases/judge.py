"""The checker of a run: every write to the rows, every record that is handled, and the end state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from headrace.core.lease.lease import Lease, LeaseKey
from tests.simulation.leases.stream import Shard, Stream


class ViolationError(AssertionError):
    """A promise was broken."""


class Books:
    """The checker's state of one shard."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.first = 0
        """Its first record that the group has to see."""
        self.handled: list[int] = []
        """By record: in which epoch it was handled last, or 0."""
        self.prefix = 0
        """So many records were handled without a gap."""
        self.taken_at: dict[int, int] = {}
        """By epoch: which record it began with."""
        self.next: dict[int, int] = {}
        self.checkpoint = 0

    @property
    def is_finished(self) -> bool:
        return self.shard.closed and self.prefix >= len(self.shard.times)


class Judge:
    """Raises `ViolationError` as soon as a promise is broken."""

    def __init__(
        self, streams: Mapping[str, Stream], counts: Counter[str], tell: Callable[[str], None]
    ) -> None:
        self._streams = streams
        self._counts = counts
        self._tell = tell
        self._books: dict[tuple[str, str], Books] = {}
        self.rows: dict[LeaseKey, Lease] = {}
        self.clean: set[tuple[LeaseKey, int]] = set()
        """Leases that ended as they should, by epoch: nothing of them may come again."""
        self._begun: dict[str, int] = {}
        """By stream: the latest time at which a LATEST group began, of the rows before the first was taken."""
        self._taken: set[str] = set()

    def books(self, stream: str, shard: str) -> Books:
        """Return what is known of a shard."""
        books = self._books.get((stream, shard))
        if books is None:
            books = self._books[stream, shard] = Books(self._streams[stream].shards[shard])
        return books

    # Writes

    def created(self, lease: Lease, *, is_ghost: bool) -> None:
        """Watch a row that is created."""
        stream = lease.key.stream
        stamp = lease.checkpoint.timestamp_ms
        if stamp is not None and stream not in self._taken:
            self._begun[stream] = max(self._begun.get(stream, stamp), stamp)
        books = self.books(stream, lease.key.shard)
        if stamp is not None:
            books.first = books.shard.index_after(lease.checkpoint)
            books.prefix = max(books.prefix, books.first)
        if lease.checkpoint.is_end and not is_ghost and not books.is_finished:
            self._accuse(f"{lease.key} was created as finished, and is not")

    def written(self, before: Lease, after: Lease) -> None:
        """Watch a row that is changed."""
        key = after.key
        books = self.books(key.stream, key.shard)
        if after.checkpoint.is_before(before.checkpoint):
            self._accuse(f"the checkpoint of {key} goes back: {before.checkpoint} -> {after}")
        if before.checkpoint != after.checkpoint:
            self._check_checkpoint(books, after)
        if after.epoch != before.epoch and after.owner is not None:
            self._taken.add(key.stream)
            books.taken_at[after.epoch] = self._index(books, after)

    def _check_checkpoint(self, books: Books, lease: Lease) -> None:
        index = self._index(books, lease)
        books.checkpoint = max(books.checkpoint, index)
        if index > books.prefix:
            self._accuse(f"{lease} passes over record {books.prefix}")
        if not lease.checkpoint.is_end:
            return
        if not books.is_finished:
            self._accuse(f"{lease} is no end: the shard has {len(books.shard.times)} records")
        for child in books.shard.children:
            key = lease.key._replace(shard=child.shard)
            if key not in self.rows and child.shard not in self._streams[key.stream].gone:
                self._accuse(f"{lease.key} is marked as finished before {child.shard} has a lease")

    def _index(self, books: Books, lease: Lease) -> int:
        return max(books.first, books.shard.index_after(lease.checkpoint))

    # Records

    def handled(self, who: str, lease: Lease, index: int) -> None:
        """Watch a record that a member handles."""
        key, epoch = lease.key, lease.epoch
        row = self.rows.get(key)
        if row is None or (row.owner, row.epoch) != (who, epoch):
            self._accuse(f"{who} handles a record of {key} in epoch {epoch}, but it is {row}")
        books = self.books(key.stream, key.shard)
        expected = books.next.get(epoch, books.taken_at.get(epoch))
        if index != expected:
            self._accuse(f"{who} handles record {index} of {key}, not {expected}")
        books.next[epoch] = index + 1
        for parent in books.shard.parents & self._streams[key.stream].shards.keys():
            if not self.books(key.stream, parent).is_finished:
                self._accuse(f"{key} is read before its parent {parent} is finished")
        self._count(books, lease, index)

    def _count(self, books: Books, lease: Lease, index: int) -> None:
        handled = books.handled
        handled.extend([0] * (index + 1 - len(handled)))
        self._counts["records"] += 1
        if handled[index]:
            self._counts["again"] += 1
            if (lease.key, handled[index]) in self.clean:
                self._accuse(f"record {index} of {lease.key} again, after a clean end of {lease}")
            if index < books.checkpoint and index < books.taken_at[lease.epoch]:
                self._accuse(f"record {index} of {lease.key} again, before the checkpoint")
        handled[index] = lease.epoch
        while books.prefix < len(handled) and handled[books.prefix]:
            books.prefix += 1

    # The end

    def is_over(self) -> bool:
        """Whether everything was handled, and every end is written."""
        for name, stream in self._streams.items():
            begun = self._begun.get(name)
            for shard in stream.shards.values():
                books = self.books(name, shard.shard)
                if any(
                    (begun is None or at >= begun)
                    and (index >= len(books.handled) or not books.handled[index])
                    for index, at in enumerate(shard.times)
                ):
                    return False
                row = self.rows.get(LeaseKey("g", name, shard.shard))
                if row is not None and shard.closed and not row.checkpoint.is_end:
                    return False
        return True

    def missing(self) -> list[str]:
        """Return what was not handled."""
        lines = []
        for (stream, shard), books in self._books.items():
            row = self.rows.get(LeaseKey("g", stream, shard))
            if books.prefix < len(books.shard.times) or (
                books.shard.closed and row is not None and not row.checkpoint.is_end
            ):
                lines.append(f"{shard}: {books.prefix} of {len(books.shard.times)}, {row}")
        return lines

    def _accuse(self, problem: str) -> None:
        self._tell(f"VIOLATION {problem}")
        raise ViolationError(problem)
