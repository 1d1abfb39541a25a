"""Opening a log's directory: finding its files, cutting off a torn end, refusing damage.

After a clean shutdown the files are as they were closed, and the caches beside them are used. After a crash everything
above the recovery point is read and checked. The first bad batch there is a torn write, which was never acknowledged as
durable. It is cut off with everything after it. Below the recovery point nothing is ever cut: all of it is known to be
on the disk. Caches are trusted there, and what they do not know is read from the batch headers. Damage that is found is
a reason not to open the log. Damage that is not found here is found by readers.

Every step can be interrupted and repeated: (1) Later segments are removed, newest first. (2) The torn segment is cut.
(3) An index that describes more than the synced part is removed: it may describe batches that were cut off, and later
batches at the same offsets would hide that. (4) All checked data and all changes are synced before they count as
durable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from headrace.core.log.config import LogConfig
from headrace.core.log.files.offset_gaps import GAPS_FILE
from headrace.core.log.files.paths import LOG_SUFFIX
from headrace.core.log.files.sync import SyncTask
from headrace.core.log.index.leader_epochs import LeaderEpochCache
from headrace.core.log.index.sidecars import SEGMENT_FILE
from headrace.core.log.index.sparse_index import SPARSE_INDEX, IndexedPart, SparseIndex
from headrace.core.log.index.transaction_index import TRANSACTION_INDEX
from headrace.core.log.producers.snapshots import SNAPSHOT_SUFFIX, ProducerSnapshots
from headrace.core.log.recovery.cached_state import CachedState
from headrace.core.log.recovery.loaded import LoadedLog, RecoveryReport
from headrace.core.log.recovery.segment_scan import SegmentScan
from headrace.core.log.segments.replacement import finish_replacements
from headrace.core.log.segments.segment import Segment
from headrace.core.log.shared import Shared
from headrace.errors import StorageError
from headrace.ports import File, FileSystem
from headrace.records.batch import (
    ATTRIBUTES,
    BASE_OFFSET,
    CONTROL_FLAG,
    MAX_TIMESTAMP,
    HeaderFields,
)
from headrace.types import NO_TIMESTAMP

_SNAPSHOT_FILE: Final = re.compile(rf"(\d{{20}}){re.escape(SNAPSHOT_SUFFIX)}")
_LEFTOVERS: Final = (".tmp", ".deleted")
"""Suffixes of files that an interrupted write or an earlier version left."""


class LogLoader:
    """Loads one log directory. A loader is used once: `LogLoader(...).load()`."""

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        config: LogConfig,
        *,
        now_ms: int,
        clean: bool,
        recovery_point: int,
        log_start_offset: int | None = None,
        high_watermark: int | None = None,
        owner: str = "",
        shared: Shared | None = None,
    ) -> None:
        self._files = files
        self._shared = Shared() if shared is None else shared
        self._owner = owner
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._clean = clean
        self._recovery_point = recovery_point
        self._log_start_offset = log_start_offset
        self._high_watermark = high_watermark
        self._report = RecoveryReport()
        self._state = CachedState(files, directory, config, self._shared, now_ms)
        self._has_txnindex = False
        """Whether the directory has any `.txnindex` file."""
        self._has_gaps = False
        """Whether offsets may be missing in the last segment."""
        self._has_files = False
        """Whether the directory has any file."""

    def load(self) -> LoadedLog:
        """Open, check and repair the log.

        Raises:
            StorageError: Data below the recovery point is missing or damaged. Nothing was changed.
        """
        try:
            return self._load()
        except BaseException:
            self._state.close()
            raise

    def _load(self) -> LoadedLog:
        segments = self._without_missing_start(self._find_segments())
        first_scanned = self._first_to_scan(segments)
        unscanned, scanned = segments[:first_scanned], segments[first_scanned:]
        start_offset = self._log_start_offset or 0
        self._state.load_epochs(unscanned)
        if scanned:
            known = max(scanned[0].base_offset, self._recovery_point)
        else:
            known = unscanned[-1].end_offset if unscanned else start_offset
        self._state.load_producers(segments, unscanned, known)
        kept = self._scan(segments, first_scanned)
        end_offset = kept[-1].end_offset if kept else start_offset
        if end_offset < self._recovery_point and start_offset < self._recovery_point:
            raise self._lost(end_offset)
        if end_offset < start_offset:
            # All records were deleted already, and what followed never reached the disk. Offsets never go back.
            self._remove_from(kept, 0)
            kept, end_offset = [], start_offset
            self._state.forget_producers(end_offset)
        if self._high_watermark is not None:
            self._state.find_undecided(kept, self._high_watermark)
        unsynced = self._tidy(kept, first_scanned, end_offset)
        return LoadedLog(
            kept,
            self._state.epochs,
            self._state.producers,
            start_offset,
            self._high_watermark,
            end_offset,
            self._state.snapshots,
            self._shared,
            caches_current=self._clean
            and first_scanned == len(segments)
            and not self._state.rebuilt,
            has_gaps=self._has_gaps,
            unsynced=unsynced,
            report=self._report,
        )

    # Finding segments

    def _find_segments(self) -> list[Segment]:
        bases: list[int] = []
        snapshots: list[int] = []
        sidecars: set[int] = set()
        names = finish_replacements(self._files, self._directory, self._owner)
        self._has_files = bool(names)
        for name in names:
            if match := SEGMENT_FILE.fullmatch(name):
                base_offset, suffix = int(match[1]), match[2]
                if suffix == LOG_SUFFIX:
                    bases.append(base_offset)
                else:
                    sidecars.add(base_offset)
                    self._has_txnindex |= suffix == TRANSACTION_INDEX.suffix
            elif match := _SNAPSHOT_FILE.fullmatch(name):
                snapshots.append(int(match[1]))
            elif name == GAPS_FILE:
                self._has_gaps = True
            elif name.endswith(_LEFTOVERS):
                self._files.remove(f"{self._directory}/{name}")
        self._state.snapshots = ProducerSnapshots(self._files, self._directory, snapshots)
        segments = [self._segment(base) for base in bases]
        for base in sidecars.difference(bases):
            self._segment(base).remove_names()
        while len(bases) > 1 and bases[1] <= (self._log_start_offset or 0):
            # A deletion was interrupted: the log start offset is written first, then the files are removed.
            segments.pop(0).remove()
            del bases[0]
        for segment, following in zip(segments, bases[1:], strict=False):
            segment.measure(following)
        return segments

    def _segment(self, base_offset: int) -> Segment:
        return Segment(
            self._files,
            self._directory,
            base_offset,
            interval=self._config.index_interval_bytes,
            created_ms=self._now_ms,
        )

    def _without_missing_start(self, segments: list[Segment]) -> list[Segment]:
        """Return the segments if they hold the log start offset.

        Segments after a gap that was never synced are removed.
        """
        start_offset = self._log_start_offset
        if not segments or start_offset is None or segments[0].base_offset <= start_offset:
            return segments
        if self._clean or self._recovery_point > start_offset:
            raise StorageError(
                f"{self._directory} begins at offset {segments[0].base_offset}, but its records from {start_offset} on "
                "were not deleted: segment files are missing. Restore the partition from a backup, or delete its "
                "topic to give up its data."
            )
        self._report.reason = f"{self._directory}: the first segment never reached the disk"
        self._remove_from(segments, 0)
        return []

    def _first_to_scan(self, segments: list[Segment]) -> int:
        """Return the number of the first segment to read through, `len(segments)` for none."""
        if not segments:
            return 0
        active = segments[-1]
        if self._clean:
            active.file = self._files.open(active.path)
            active.size = active.file.size
            return len(segments) if active.load_index() else len(segments) - 1
        for number, segment in enumerate(segments[:-1]):
            if segment.end_offset > self._recovery_point:
                return number
        return len(segments) if self._is_as_closed(active) else len(segments) - 1

    def _is_as_closed(self, active: Segment) -> bool:
        """Return whether the segment is as a clean shutdown left it: its index fits, and all data is synced.

        Most partitions of a killed broker were not written to since its start. They need not be read.
        """
        active.file = self._files.open(active.path)
        active.size = active.file.size
        if active.load_index() and active.end_offset <= self._recovery_point:
            return True
        active.unload()
        active.size, active.end_offset, active.indexed_size = 0, active.base_offset, 0
        return False

    def _known_part(self, segment: Segment, size: int) -> IndexedPart:
        """Return the part of a segment that need not be read: all caches describe it, and all of it is durable."""
        nothing = IndexedPart(
            SparseIndex(self._config.index_interval_bytes), 0, segment.base_offset, NO_TIMESTAMP
        )
        safe = min(self._recovery_point, self._state.end_offset)
        if safe <= segment.base_offset:
            return nothing
        indexed = segment.read_index()
        known = None if indexed is None else indexed.below(safe)
        if known is None or not known.entries or known.size > size:
            return nothing
        if known is indexed:
            segment.indexed_size = known.size
        return known

    # Checking

    def _scan(self, segments: list[Segment], first: int) -> list[Segment]:
        """Check the segments from `first` on, and return the segments to keep. The last one is cut if it was torn."""
        for number in range(first, len(segments)):
            segment = segments[number]
            scan = self._scan_segment(segment)
            if scan.fault:
                self._check_torn(segment, scan.position, scan.fault)
                self._remove_from(segments, number + 1)
                self._cut(segment, scan.position)
                return segments[: number + 1]
            if segment is not segments[-1]:
                self._state.seal_aborted(segment)
        return segments

    def _scan_segment(self, segment: Segment) -> SegmentScan:
        file = self._files.open(segment.path)
        index, size, end_offset, first_timestamp = self._known_part(segment, file.size)
        self._state.epochs.truncate_to_end(end_offset)
        self._report.scanned_bytes += file.size - size
        scan = self._reader(file, size, end_offset, self._state.epochs)
        for position, header in self._sound_batches(segment, file, scan):
            if not position:
                first_timestamp = header[MAX_TIMESTAMP]
            index.add(
                header[BASE_OFFSET],
                position,
                header[MAX_TIMESTAMP],
                header[ATTRIBUTES] & CONTROL_FLAG,
            )
            self._state.replay(file, position, header)
        segment.adopt(file, index, scan.position, scan.next_offset, first_timestamp)
        segment.expiries.cut(size)
        return scan

    def _reader(
        self, file: File, position: int, offset: int, epochs: LeaderEpochCache
    ) -> SegmentScan:
        return SegmentScan(
            file, position, offset, recovery_point=self._recovery_point, epochs=epochs
        )

    def _sound_batches(
        self, segment: Segment, file: File, scan: SegmentScan
    ) -> Iterator[tuple[int, HeaderFields]]:
        """Yield the batches up to the first fault. A sealed segment that ends too early has a fault too."""
        yield from scan.batches(gaps_allowed=self._has_gaps)
        following = segment.end_offset
        if following == segment.base_offset:
            return  # the active segment
        if scan.gap and self._is_compacted(segment, file, scan):
            yield from scan.batches(gaps_allowed=True)
        _check_overlap(segment, scan)
        if not scan.fault and scan.next_offset < following:
            scan.fault = f"it ends at offset {scan.next_offset}, the next begins at {following}"

    def _is_compacted(self, segment: Segment, file: File, scan: SegmentScan) -> bool:
        """Return whether compaction left a gap. It leaves whole segments, which end where they ended before.

        Base offsets are outside the CRC. A wrong one looks like a gap until more of the segment is read.
        """
        epochs = LeaderEpochCache(self._state.epochs.entries)
        rest = self._reader(file, scan.position, scan.next_offset, epochs)
        for _ in rest.batches(gaps_allowed=True):
            pass
        _check_overlap(segment, rest)
        return not rest.fault and rest.next_offset == segment.end_offset

    def _check_torn(self, segment: Segment, position: int, reason: str) -> None:
        offset = segment.end_offset
        if self._clean or offset < self._recovery_point:
            raise StorageError(
                f"{segment.path} is damaged at byte {position} (offset {offset}): {reason}. The data there was "
                f"safely stored (up to offset {self._recovery_point}), so this is no torn write. Restore the "
                "partition from a backup, or delete its topic to give up its data."
            )
        if not self._report.reason:
            self._report.reason = f"{segment.path} at byte {position}: {reason}"

    def _lost(self, end_offset: int) -> StorageError:
        return StorageError(
            f"{self._directory} ends at offset {end_offset}, but was safely stored up to {self._recovery_point}: "
            "segment files are missing or cut. Restore the partition from a backup, or delete its topic to give up "
            "its data."
        )

    # Repairing

    def _remove_from(self, segments: list[Segment], first: int) -> None:
        if first >= len(segments):
            return
        for segment in reversed(segments[first:]):
            self._report.truncated_bytes += segment.size or self._files.open(segment.path).size
            self._report.removed_segments += 1
            segment.remove()
        self._files.sync_directory(self._directory)

    def _cut(self, segment: Segment, position: int) -> None:
        assert segment.file is not None
        self._report.truncated_bytes += segment.file.size - position
        segment.file.truncate(position)
        segment.file.sync()

    def _tidy(
        self, segments: list[Segment], first_scanned: int, end_offset: int
    ) -> SyncTask | None:
        """Remove what describes offsets that are gone, and return the task that makes the checked data durable."""
        self._state.cut_epochs(end_offset)
        self._state.snapshots.remove_above(end_offset)
        read = segments if self._state.rebuilt else segments[first_scanned:]
        self._state.save_aborted(read, has_files=self._has_txnindex)
        if self._clean:
            return None
        unsynced: list[File] = []
        for number, segment in enumerate(segments[first_scanned:], first_scanned):
            assert segment.file is not None
            if number < len(segments) - 1:
                segment.file.sync()
                segment.write_index()
                segment.unload()
                continue
            unsynced.append(segment.file)
            if not segment.indexed_size:
                self._files.remove(segment.sidecar_path(SPARSE_INDEX))
        if not self._has_files:
            return None
        # Also without segments: a process that was killed may have removed them without a sync.
        return SyncTask(self._files, unsynced, self._directory, end_offset)


def _check_overlap(segment: Segment, scan: SegmentScan) -> None:
    if scan.next_offset > segment.end_offset:
        raise StorageError(
            f"{segment.path} overlaps the next segment: it ends at offset {scan.next_offset}, the next begins at "
            f"{segment.end_offset}. Restore the partition from a backup, or delete its topic."
        )
