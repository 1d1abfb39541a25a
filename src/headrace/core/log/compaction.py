"""One round of compaction over one log: keep the last record of each key (`cleanup.policy=compact`).

A log is clean up to an offset, its *first dirty offset*, and dirty from there on: no key is twice in the clean part.
A round:

1. reads the dirty part, as far as it may be compacted, into an `OffsetMap`; when the map is full the round ends there
2. rewrites the log from its start to that offset, segment by segment, leaving out what the map or a delete horizon says
   (`batch_compaction`); neighbours that together stay below `segment.bytes` become one segment
3. hands each group of segments over as a `Replacement`, oldest first, before it goes on with the next

Oldest first is what makes dropping a tombstone safe: when the group that holds it is rewritten, all older records of
its key have been replaced, durably. A round that is given up leaves a log that is right, and not yet clean.

Some batches keep their header without records (`batch_compaction`): the last of each group, because the end of a
segment says where the next begins; those that the state of a live producer rests on, so that it can be read from the
log again; and those that begin a leader epoch. Of transactions see `cleaned_transactions`.

The work is a generator, so that it can be done in steps of bounded size, in any thread, one step at a time. A step
touches nothing but files of its own, sealed segments, which do not change, and `.cleaned` and `.swap` files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.core.log.batch_compaction import Rules
from headrace.core.log.cleaned_transactions import CleanedTransactions
from headrace.core.log.index import SparseIndex
from headrace.core.log.offset_map import OffsetMap
from headrace.core.log.partition_log import PartitionLog
from headrace.core.log.replacement import CLEANED_SUFFIX, Replacement
from headrace.core.log.segment import Segment
from headrace.errors import CorruptRecordError
from headrace.ports import File, FileSystem
from headrace.records.batch import HEADER_SIZE, BatchHeader, check_batch
from headrace.types import NO_TIMESTAMP, Buffer

STEP_BYTES: Final = 128 << 10
"""Bytes read in one step: some ten milliseconds of work on small records."""
_RECORD_COST: Final = 100
"""For how many bytes a record counts at least: compressed ones are small, and as much work."""
_CHUNK: Final = 128 << 10
_WRITE_BYTES: Final = 256 << 10
_SYNC_BYTES: Final = 16 << 20
"""Output is synced in pieces, so that no group commit has to wait behind a gigabyte of it."""
_MAX_OFFSET_SPAN: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A round that is worth it.

    Attributes:
        log: Whose log it is.
        segments: All segments that may be compacted, from the log's first on.
        first_dirty_offset: Where the dirty part begins.
        dirty_ratio: The dirty bytes' share of all that may be compacted.
        overdue: Whether `max.compaction.lag.ms` asks for the round whatever the share.
    """

    log: PartitionLog
    segments: Sequence[Segment]
    first_dirty_offset: int
    dirty_ratio: float
    overdue: bool

    @property
    def end_offset(self) -> int:
        """Where the part ends that may be compacted."""
        return self.segments[-1].end_offset


@dataclass(slots=True)
class CompactionStats:
    """What a round has done so far."""

    bytes_before: int = 0
    bytes_after: int = 0
    records_before: int = 0
    records_after: int = 0
    replaced_segments: int = 0


@dataclass(slots=True)
class _Group:
    """Segments that become one, and what there is of it."""

    sources: Sequence[Segment]
    index: SparseIndex
    position: int = 0
    first_timestamp: int = NO_TIMESTAMP
    file: File | None = None
    pending: list[Buffer] = field(default_factory=list)
    pending_bytes: int = 0
    unsynced_bytes: int = 0

    def add(self, batch: Buffer, header: BatchHeader) -> None:
        """Take note of a batch of the new segment."""
        if not self.position:
            self.first_timestamp = header.max_timestamp
        self.index.add(header.base_offset, self.position, header.max_timestamp)
        self.position += len(batch)


class Compaction:
    """A round under way: `run` a step, take its `replacement` if there is one, until it is `finished`."""

    def __init__(self, files: FileSystem, plan: Plan, *, now_ms: int, max_keys: int) -> None:
        """Take what the steps need from the log; it may go on changing.

        Args:
            files: The file system that has the log.
            plan: What to do.
            now_ms: The time of the round.
            max_keys: Most entries of the offset map.
        """
        self.plan = plan
        self.log = plan.log
        self.stats = CompactionStats()
        self.replacement: Replacement | None = None
        """A group that is ready to be installed before the next step."""
        self.half_done = False
        """Whether a group is installed whose file has yet to get its name: an error now is final for the directory."""
        self.finished = False
        self._files = files
        self._config = plan.log.config
        self._now_ms = now_ms
        self._map = OffsetMap(plan.first_dirty_offset, max_keys)
        self._kept_ends = plan.log.producers.last_offsets
        self._kept_starts = {start for _, start in plan.log.epochs.entries}
        transactions = plan.log.producers.transactions
        self._transactions = CleanedTransactions(
            transactions.aborted_between(plan.segments[0].base_offset, plan.end_offset)
        )
        self._steps = self._work()

    @property
    def clean_end_offset(self) -> int:
        """The log is clean up to here when the round has finished."""
        return self._map.end_offset

    def run(self) -> None:
        """Do one step. Any thread may, but only one at a time.

        Raises:
            OSError: A file could not be read or written.
            CorruptRecordError: A batch is damaged. After an error the round is over.
        """
        budget = STEP_BYTES
        for consumed in self._steps:
            budget -= consumed
            if budget <= 0 or self.replacement is not None:
                return
        self.finished = True

    def _work(self) -> Iterator[int]:
        for segment in self.plan.segments:
            if segment.end_offset > self._map.end_offset and not self._map.is_full:
                yield from self._read_keys(segment)
        rules = Rules(
            self._map.newest,
            self._map.end_offset,
            self._now_ms,
            self._config.delete_retention_ms,
        )
        for sources in self._groups():
            yield from self._rewrite(sources, rules)

    def _read_keys(self, segment: Segment) -> Iterator[int]:
        offset_map = self._map
        for header, batch in _batches(self._files.open(segment.path), segment):
            if header.next_offset > offset_map.end_offset:
                if self._transactions.is_aborted(header):
                    offset_map.end_offset = header.next_offset
                else:
                    offset_map.add_batch(header, batch)
                yield _cost(header)
                if offset_map.end_offset < header.next_offset:
                    return
        offset_map.end_offset = max(offset_map.end_offset, segment.end_offset)

    def _groups(self) -> Iterator[Sequence[Segment]]:
        """Yield the segments that have something below the map's end, in groups that make one segment each."""
        group: list[Segment] = []
        size = 0
        for segment in self.plan.segments:
            if segment.base_offset >= self._map.end_offset:
                break
            span = segment.end_offset - (group[0] if group else segment).base_offset
            if group and (
                size + segment.size > self._config.segment_bytes or span > _MAX_OFFSET_SPAN
            ):
                yield group
                group, size = [], 0
            group.append(segment)
            size += segment.size
        if group:
            yield group

    def _rewrite(self, sources: Sequence[Segment], rules: Rules) -> Iterator[int]:
        group = _Group(sources, SparseIndex(self._config.index_interval_bytes))
        path, end_offset = sources[0].path + CLEANED_SUFFIX, sources[-1].end_offset
        stats = self.stats
        for source in sources:
            for header, batch in _batches(self._files.open(source.path), source):
                keep_empty = (
                    header.next_offset == end_offset
                    or header.base_offset in self._kept_starts
                    or header.last_offset in self._kept_ends
                )
                result = self._transactions.compact(header, batch, rules, keep_empty=keep_empty)
                stats.bytes_before += header.size
                stats.records_before += header.records_count
                if group.file is None and (result is not batch or len(sources) > 1):
                    group.file = self._create(path)
                    yield from self._copy_start(group)
                if result is not None:
                    self._keep(group, result)
                yield _cost(header)
        if group.file is not None:
            self._flush(group)
            group.file.sync()
            # The name of the segment that follows becomes durable too. Else the compacted one could be the last after
            # a crash, and in the last one a gap between offsets means damage.
            self._files.sync_directory(sources[0].directory)
            stats.replaced_segments += len(sources)
            yield from self._hand_over(
                Replacement(
                    sources,
                    group.file,
                    group.index,
                    group.first_timestamp,
                    frozenset(self._transactions.dropped_markers),
                )
            )
        self._transactions.dropped_markers.clear()

    def _hand_over(self, replacement: Replacement) -> Iterator[int]:
        """Have a group installed, by whoever runs the steps, before it gets its name."""
        replacement.make_count(self._files)
        self.replacement = replacement
        yield 0
        self.half_done = True
        replacement.name(self._files)
        self.half_done = False

    def _keep(self, group: _Group, batch: Buffer) -> None:
        header = BatchHeader.parse(batch)
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
        """Write the batches of a segment before the first that changes: only now it is known that one does."""
        source = self._files.open(group.sources[0].path)
        for position in range(0, group.position, _CHUNK):
            chunk = source.read(position, min(_CHUNK, group.position - position))
            self._write(group, chunk)
            yield len(chunk)

    def _write(self, group: _Group, data: Buffer) -> None:
        # Copied: what is handed in is a view of a chunk that would stay in memory as a whole.
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


def _cost(header: BatchHeader) -> int:
    return max(header.size, _RECORD_COST * header.records_count)


def _batches(file: File, segment: Segment) -> Iterator[tuple[BatchHeader, Buffer]]:
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
