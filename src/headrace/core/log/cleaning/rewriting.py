"""Rewriting sealed segments without some of their records: the common part of both kinds of cleaning.

A round hands each group of neighbouring segments over as a `Replacement` before it continues with the next group. The
kind of cleaning decides what remains of a batch. Some batches keep their header without records: the last one of each
group, because the end of a segment says where the next begins; batches in the state of a live producer, so that the
state can be read from the log again; and batches that begin a leader epoch.

The work is a generator, so that it is done in steps of bounded size, in any thread, one step at a time. A step only
uses files of its own, sealed segments, which do not change, and `.cleaned` and `.swap` files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.core.log.index.aborted_transactions import AbortedTransactions
from headrace.core.log.index.expiry_index import ExpiryIndex
from headrace.core.log.index.sparse_index import SparseIndex
from headrace.core.log.offsets import MAX_OFFSET_SPAN
from headrace.core.log.partition_log import PartitionLog
from headrace.core.log.segments.replacement import Replacement, cleaned_path
from headrace.core.log.segments.segment import Segment
from headrace.errors import CorruptRecordError
from headrace.ports import File, FileSystem
from headrace.records.batch import HEADER_SIZE, BatchHeader, check_batch
from headrace.records.expiry import expiry_of_batch
from headrace.types import NO_TIMESTAMP, Buffer

STEP_BYTES: Final = 128 << 10
"""Bytes read in one step: some ten milliseconds of work on small records."""
_RECORD_COST: Final = 100
"""The least number of bytes that a record counts for: compressed records are small, but as much work."""
_CHUNK: Final = 128 << 10
_WRITE_BYTES: Final = 256 << 10
_SYNC_BYTES: Final = 16 << 20
"""Output is synced in pieces of this size, so that a group commit never waits for a gigabyte of it."""


@dataclass(slots=True)
class RewritingStats:
    """The work of a round so far."""

    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    replaced_segments: int = 0


@dataclass(slots=True)
class _Group:
    """Segments that become one, and the state of the new segment."""

    sources: Sequence[Segment]
    index: SparseIndex
    position: int = 0
    first_timestamp: int = NO_TIMESTAMP
    expiries: ExpiryIndex | None = None
    file: File | None = None
    pending: list[Buffer] = field(default_factory=list)
    pending_bytes: int = 0
    unsynced_bytes: int = 0

    def note_expiry(self, batch: Buffer, header: BatchHeader) -> None:
        """Note when the records of the next batch expire."""
        if self.expiries is None:
            self.expiries = ExpiryIndex()
        expiry = expiry_of_batch(header, batch, briefly=False)
        self.expiries.note(self.position, self.position + len(batch), expiry)

    def add(self, batch: Buffer, header: BatchHeader) -> None:
        """Add a batch to the index of the new segment."""
        if not self.position:
            self.first_timestamp = header.max_timestamp
        self.index.add(header.base_offset, self.position, header.max_timestamp, header.is_control)
        self.position += len(batch)


class Rewriting:
    """A running round. Call `run`, take its `replacement` if there is one, and repeat until it is `finished`."""

    def __init__(self, files: FileSystem, log: PartitionLog, segments: Sequence[Segment]) -> None:
        """Copy what the steps need of the log, which may change meanwhile.

        Args:
            files: The file system that has the log.
            log: The log.
            segments: The sealed segments of the log to rewrite.
        """
        self.log = log
        self.segments = segments
        self.stats = RewritingStats()
        self.replacement: Replacement | None = None
        """A group that has to be installed before the next step; None without one."""
        self.learned: list[tuple[Segment, ExpiryIndex]] = []
        """Expiry indexes of segments that stay as they are."""
        self.finished = False
        self._handed_over: Replacement | None = None
        """The last group, until its file has its final name; then None."""
        self._files = files
        self._config = log.config
        self._kept_ends = log.producers.last_offsets
        self._kept_starts = deque(start for _, start in log.epochs.entries)
        self._aborted = log.producers.transactions.aborted.copy()
        self._most_aborted = log.producers.transactions.aborted.cache.most_in_segment
        self._steps = self.work()

    @property
    def half_done(self) -> bool:
        """Whether a group is installed whose file has no final name yet. The next `run` begins with the renaming."""
        return self._handed_over is not None and self.replacement is None

    @property
    def clean_end_offset(self) -> int | None:
        """The offset up to which the log is compacted after the round; None if the round does not compact."""
        return None

    def work(self) -> Iterator[int]:
        """Do the round. Yields how many bytes were read since the last time."""
        raise NotImplementedError

    def retained_part(
        self, header: BatchHeader, batch: Buffer, *, keep_empty: bool
    ) -> Buffer | None:
        """Return the remaining part of the next batch: the batch itself if all of it remains, None if nothing does.

        Args:
            header: The header of the batch.
            batch: The bytes of the batch. Their CRC has been checked.
            keep_empty: Whether the header stays when no record does.
        """
        raise NotImplementedError

    def begin_segment(self, segment: Segment) -> None:
        """Prepare for the batches of a segment."""

    def take_dropped_markers(self) -> frozenset[int]:
        """Return the offsets of the markers of aborted transactions that the last group has lost."""
        return frozenset()

    def run(self) -> None:
        """Run one step. Any thread may call this, but only one at a time.

        Raises:
            OSError: A file could not be read or written.
            CorruptRecordError: A batch is damaged. After an error the round has ended, unless it is `half_done`.
        """
        if self._handed_over is not None:
            self._handed_over.name(self._files)
            self._handed_over = None
        budget = STEP_BYTES
        for consumed in self._steps:
            budget -= consumed
            if budget <= 0 or self.replacement is not None:
                return
        self.finished = True

    def groups(self, segments: Iterable[Segment]) -> Iterator[Sequence[Segment]]:
        """Yield groups of neighbouring segments. Each group becomes one segment."""
        group: list[Segment] = []
        size = aborted = 0
        for segment in segments:
            span = segment.end_offset - (group[0] if group else segment).base_offset
            count = self._aborted.count_within(segment.base_offset, segment.end_offset)
            if group and (
                size + segment.size > self._config.segment_bytes
                or span > MAX_OFFSET_SPAN
                or segment.base_offset != group[-1].end_offset
                or aborted + count > self._most_aborted
            ):
                yield group
                group, size, aborted = [], 0, 0
            group.append(segment)
            size += segment.size
            aborted += count
        if group:
            yield group

    def rewrite(self, sources: Sequence[Segment]) -> Iterator[int]:
        """Rewrite neighbouring segments into one, and hand it over. Yields the bytes that were read."""
        group = _Group(sources, SparseIndex(self._config.index_interval_bytes))
        path = cleaned_path(sources[0], self.log.owner)
        end_offset = sources[-1].end_offset
        stats = self.stats
        for source in sources:
            self.begin_segment(source)
            for header, batch in batches(self._files.open(source.path), source):
                keep_empty = (
                    self._begins_epoch(header)
                    or header.next_offset == end_offset
                    or header.last_offset in self._kept_ends
                )
                result = self.retained_part(header, batch, keep_empty=keep_empty)
                stats.bytes_before += header.size
                stats.records_before += header.records_count
                if group.file is None and (result is not batch or len(sources) > 1):
                    group.file = self._create(path)
                    yield from self._copy_start(group)
                if result is not None:
                    self._keep(group, result)
                yield cost(header)
        if group.file is not None:
            self._flush(group)
            group.file.sync()
            # The name of the next segment becomes durable too. Otherwise the compacted segment could be the last one
            # after a crash, and in the last segment a gap between offsets means damage.
            self._files.sync_directory(sources[0].directory)
            stats.replaced_segments += len(sources)
            aborted = self._aborted_after(sources)
            yield from self._hand_over(
                Replacement(
                    sources,
                    group.file,
                    group.index,
                    group.first_timestamp,
                    aborted,
                    group.expiries,
                    self.log.owner,
                )
            )
        else:
            self.take_dropped_markers()
            if group.expiries is not None:
                self.learned.append((sources[0], group.expiries))

    def _begins_epoch(self, header: BatchHeader) -> bool:
        """Return whether a batch is the first one at or after the beginning of a leader epoch."""
        starts, count = self._kept_starts, len(self._kept_starts)
        while starts and starts[0] <= header.last_offset:
            starts.popleft()
        return len(starts) != count

    def _aborted_after(self, sources: Sequence[Segment]) -> AbortedTransactions:
        """Return the aborted transactions that end in segments and are still listed."""
        dropped = self.take_dropped_markers()
        known = self._aborted.marked_within(sources[0].base_offset, sources[-1].end_offset)
        if not dropped:
            return known
        return AbortedTransactions(entry for entry in known if entry.last_offset not in dropped)

    def _hand_over(self, replacement: Replacement) -> Iterator[int]:
        """Hand a group over to be installed, before its file gets its final name."""
        replacement.make_count(self._files)
        self.replacement = self._handed_over = replacement
        yield 0

    def _keep(self, group: _Group, batch: Buffer) -> None:
        header = BatchHeader.parse(batch)
        if self._config.expires:
            group.note_expiry(batch, header)
        group.add(batch, header)
        self.stats.bytes_after += header.size
        self.stats.records_after += header.records_count
        if group.file is not None:
            self._write(group, batch)

    def _create(self, path: str) -> File:
        file = self._files.open(path, create=True)
        file.truncate(0)
        return file

    def _copy_start(self, group: _Group) -> Iterator[int]:
        """Write the batches before the first one that changes. Until that batch was read, no file was needed."""
        source = self._files.open(group.sources[0].path)
        for position in range(0, group.position, _CHUNK):
            chunk = source.read(position, min(_CHUNK, group.position - position))
            self._write(group, chunk)
            yield len(chunk)

    def _write(self, group: _Group, data: Buffer) -> None:
        # A copy: `data` is a view of a chunk that would stay in memory as a whole.
        group.pending.append(bytes(data))
        group.pending_bytes += len(data)
        if group.pending_bytes >= _WRITE_BYTES:
            self._flush(group)

    def _flush(self, group: _Group) -> None:
        assert group.file is not None
        group.file.append(group.pending)
        group.unsynced_bytes += group.pending_bytes
        group.pending, group.pending_bytes = [], 0
        if group.unsynced_bytes >= _SYNC_BYTES:
            group.file.sync()
            group.unsynced_bytes = 0


def cost(header: BatchHeader) -> int:
    """Return the work of a batch in bytes."""
    return max(header.size, _RECORD_COST * header.records_count)


def batches(file: File, segment: Segment) -> Iterator[tuple[BatchHeader, Buffer]]:
    """Yield (header, bytes) of all batches of a sealed segment, after checking them."""
    position, size, next_offset = 0, file.size, segment.base_offset
    chunk, chunk_start = memoryview(b""), 0
    while position < size:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = memoryview(file.read(position, _CHUNK)), position, 0
        header = BatchHeader.parse(chunk, at)
        if at + header.size > len(chunk) and position + header.size <= size:
            wanted = max(_CHUNK, header.size)
            chunk, chunk_start, at = memoryview(file.read(position, wanted)), position, 0
        batch = chunk[at : at + max(header.size, HEADER_SIZE)]
        check_batch(batch)
        # The base offset is outside the CRC.
        if header.base_offset < next_offset or header.next_offset > segment.end_offset:
            raise CorruptRecordError(f"{segment.path}: base offset {header.base_offset} is wrong")
        yield header, batch
        position += header.size
        next_offset = header.next_offset
    if next_offset != segment.end_offset:
        raise CorruptRecordError(f"{segment.path} ends at offset {next_offset}")
