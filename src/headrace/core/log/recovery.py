"""Opening a log's directory: what is there, what is torn, what is damaged.

After a clean shutdown the files are as they were closed and the caches beside them are used. After a crash everything
above the recovery point is read through and checked. The first bad batch there is the torn tail of writes that were
never acknowledged as durable: it is cut off, with everything after it. Below the recovery point nothing is ever cut.
What is there is known to be on the disk, so the caches may speak for it; what they do not know is read from the batch
headers. Damage that shows is a reason not to open the log; other damage shows to whoever reads it.

Every step can be interrupted and repeated: later segments are removed newest first, then the torn one is cut, and
what was checked is synced before it counts as durable. An index that speaks for more than what is safe is removed
before that, durably: it may describe what is cut off now, and nobody could tell once other batches lie there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from headrace.core.log.aborted_history import AbortedHistory
from headrace.core.log.aborted_index import decode_aborted
from headrace.core.log.config import LogConfig
from headrace.core.log.control_batch import read_marker
from headrace.core.log.index import IndexedPart, SparseIndex
from headrace.core.log.leader_epochs import LeaderEpochCache
from headrace.core.log.producer_entry import BatchEntry
from headrace.core.log.producer_state import SEQUENCE_MASK, ProducerState
from headrace.core.log.replacement import finish_replacements
from headrace.core.log.scan import Header, SegmentScan
from headrace.core.log.segment import Segment
from headrace.core.log.shared import Shared
from headrace.core.log.snapshots import ProducerSnapshots
from headrace.core.log.sync import SyncTask
from headrace.core.log.transactions import NEVER
from headrace.errors import StorageError
from headrace.ports import File, FileSystem, Journal
from headrace.records.batch import (
    CONTROL_FLAG,
    LOG_APPEND_TIME_FLAG,
    LOG_OVERHEAD,
    TRANSACTIONAL_FLAG,
)
from headrace.types import NO_TIMESTAMP, TopicPartition

EPOCHS_FILE: Final = "leader-epoch-checkpoint"

_NAMED: Final = re.compile(r"(\d{20})\.(log|index|txnindex|ttlindex|snapshot)")
_REPETITIONS_MS: Final = 3_600_000
"""How long after a start a producer may repeat what it wrote before."""
_LEFTOVERS: Final = (".tmp", ".deleted")


@dataclass(slots=True)
class RecoveryReport:
    """What opening a log had to do; all zero after a clean shutdown."""

    scanned_bytes: int = 0
    truncated_bytes: int = 0
    removed_segments: int = 0
    reason: str = ""


@dataclass(slots=True)
class LoadedLog:
    """A log as recovery hands it over: at least one segment unless the directory is empty."""

    segments: list[Segment]
    epochs: LeaderEpochCache
    producers: ProducerState
    end_offset: int
    snapshots: ProducerSnapshots
    shared: Shared
    caches_current: bool
    unsynced: SyncTask | None
    """What was checked, to be synced before anybody hears of it; None after a clean shutdown."""
    report: RecoveryReport = field(default_factory=RecoveryReport)

    def tell(self, journal: Journal | None, topic_partition: TopicPartition) -> None:
        """Write down what was cut off, if anything was."""
        if self.report.reason and journal is not None:
            journal.warning(
                "torn_log_tail_cut_off",
                partition=str(topic_partition),
                reason=self.report.reason,
                truncated_bytes=self.report.truncated_bytes,
                removed_segments=self.report.removed_segments,
                log_end_offset=self.end_offset,
            )


class LogLoader:
    """Loads one log directory. Use once: `LogLoader(...).load()`."""

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
        self._report = RecoveryReport()
        self._producers = self._no_producers()
        self._epochs = LeaderEpochCache()
        self._snapshots = ProducerSnapshots(files, directory)
        self._has_txnindex = False
        self._rebuilt = False
        """Whether all batches were walked because nothing else told which transactions were aborted."""
        self._epochs_end = 0
        """The checkpoint of epochs knows those of all batches below this offset."""
        self._producers_end = 0
        """The snapshot of producers knows all batches below this offset."""

    def load(self) -> LoadedLog:
        """Open, check and repair the log.

        Raises:
            StorageError: Data below the recovery point is missing or damaged; nothing was changed.
        """
        try:
            return self._load()
        except BaseException:
            self._producers.close()
            raise

    def _load(self) -> LoadedLog:
        segments = self._without_missing_start(self._find_segments())
        first_scanned = self._first_to_scan(segments)
        unscanned, scanned = segments[:first_scanned], segments[first_scanned:]
        start_offset = self._log_start_offset or 0
        self._load_epochs(unscanned)
        if scanned:
            known = max(scanned[0].base_offset, self._recovery_point)
        else:
            known = unscanned[-1].end_offset if unscanned else start_offset
        self._load_producers(segments, unscanned, known)
        kept = self._scan(segments, first_scanned)
        end_offset = kept[-1].end_offset if kept else start_offset
        if end_offset < self._recovery_point and start_offset < self._recovery_point:
            raise self._lost(end_offset)
        if end_offset < start_offset:
            # All of it was deleted already, and what followed never reached the disk. Offsets do not go back.
            self._remove_from(kept, 0)
            kept, end_offset = [], start_offset
            self._restore_producers(end_offset, end_offset)
        unsynced = self._tidy(kept, first_scanned, end_offset)
        return LoadedLog(
            kept,
            self._epochs,
            self._producers,
            end_offset,
            self._snapshots,
            self._shared,
            caches_current=self._clean and first_scanned == len(segments) and not self._rebuilt,
            unsynced=unsynced,
            report=self._report,
        )

    # What is there

    def _find_segments(self) -> list[Segment]:
        bases: list[int] = []
        snapshots: list[int] = []
        indexes: list[int] = []
        caches = dict.fromkeys(("index", "txnindex", "ttlindex"), indexes)
        by_kind = {"log": bases, "snapshot": snapshots, **caches}
        for name in finish_replacements(self._files, self._directory, self._owner):
            match = _NAMED.fullmatch(name)
            if match is not None:
                by_kind[match[2]].append(int(match[1]))
                self._has_txnindex |= match[2] == "txnindex"
            elif name.endswith(_LEFTOVERS):
                self._files.remove(f"{self._directory}/{name}")
        self._snapshots = ProducerSnapshots(self._files, self._directory, snapshots)
        segments = [self._segment(base) for base in bases]
        for base in set(indexes).difference(bases):
            self._segment(base).remove_names()
        while len(bases) > 1 and bases[1] <= (self._log_start_offset or 0):
            # A deletion was under way: the log start offset is written first, then the files go.
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
        """Return the segments if they hold the log start; what follows a hole that was never synced is dropped."""
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
        """Return the number of the first segment to read through; `len(segments)` for none."""
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
        """Whether a clean shutdown left the segment like this: its index fits, and all of it is known to be synced.

        Most partitions of a broker that is killed were not written to since its start; they need not be read.
        """
        active.file = self._files.open(active.path)
        active.size = active.file.size
        if active.load_index() and active.end_offset <= self._recovery_point:
            return True
        active.unload()
        active.size, active.end_offset, active.indexed_size = 0, active.base_offset, 0
        return False

    # What is remembered

    def _load_epochs(self, unscanned: list[Segment]) -> None:
        """Restore the epochs; the scan begins where the checkpoint still has them all, or before."""
        content = self._files.read_file(f"{self._directory}/{EPOCHS_FILE}")
        self._epochs, self._epochs_end = LeaderEpochCache.decode(content)
        for segment in unscanned:
            if segment.end_offset > self._epochs_end:
                for _, header in _headers(segment):
                    self._epochs.assign(header[2], header[0])

    def _load_producers(
        self, segments: list[Segment], unscanned: list[Segment], offset: int
    ) -> None:
        """Restore the newest sound snapshot that is safe, and replay the headers after it."""
        self._restore_producers(offset, segments[0].base_offset if segments else offset)
        if self._producers.aborted_from >= 0 and not self._load_aborted(segments):
            self._producers.close()
            self._producers = self._no_producers()
            self._producers_end = 0
            self._rebuilt = True
        for segment in unscanned:
            if segment.end_offset > self._producers_end:
                for position, header in _headers(segment):
                    self._replay(segment.reopen(), position, header)
                if segment is not segments[-1]:
                    self._seal_aborted(segment)
                    self._producers.transactions.aborted.save_sealed()  # it is not kept in memory

    def _no_producers(self) -> ProducerState:
        aborted = AbortedHistory(self._files, self._directory, self._shared.aborted)
        return ProducerState(self._config.max_producer_ids, aborted, self._shared.producers)

    def _seal_aborted(self, segment: Segment) -> None:
        """Take note that what was aborted until now has its marker in a segment, or in those before it."""
        self._producers.transactions.aborted.seal(segment.base_offset, segment.end_offset)

    def _restore_producers(self, offset: int, start_offset: int) -> None:
        """Restore the newest sound snapshot at or below an offset, unless batches are gone that followed it.

        A crash may leave an old snapshot while the segments after it were deleted. What it says of a producer's last
        sequence would refuse the next batch; a producer of which nothing is known may begin anywhere.
        """
        restored = self._snapshots.restore(self._producers, offset)
        if restored is not None and restored < start_offset:
            self._producers.close()
            self._producers, restored = self._no_producers(), None
        self._producers_end = restored or 0

    def _load_aborted(self, segments: list[Segment]) -> bool:
        """Load the aborted transactions that the snapshot knew of; false if a file of them is not there or unsound."""
        first, end = self._producers.aborted_from, self._producers_end
        aborted = self._producers.transactions.aborted
        following = [segment.base_offset for segment in segments[1:]] + [NEVER]
        for segment, next_offset in zip(segments, following, strict=True):
            if segment.base_offset < end and next_offset > first:
                content = self._files.read_file(segment.txnindex_path)
                known = decode_aborted(content, segment.base_offset)
                if known is None or known.end_offset < min(next_offset, end):
                    return False
                if next_offset <= end:
                    aborted.add_known(segment.base_offset, next_offset, known.entries)
                else:
                    for entry in known.entries.marked_within(segment.base_offset, end):
                        aborted.append(entry)
        return True

    def _known_part(self, segment: Segment, size: int) -> IndexedPart:
        """Return the part of a segment that need not be read: all caches know it, and all of it is safe."""
        nothing = IndexedPart(
            SparseIndex(self._config.index_interval_bytes), 0, segment.base_offset, NO_TIMESTAMP
        )
        safe = min(self._recovery_point, self._epochs_end, self._producers_end)
        if safe <= segment.base_offset:
            return nothing
        indexed = segment.read_index()
        known = None if indexed is None else indexed.below(safe)
        if known is None or not known.entries or known.size > size:
            return nothing
        if known is indexed:
            segment.indexed_size = known.size
        return known

    def _replay(self, file: File, position: int, header: Header) -> None:
        """Let the producers know of a batch."""
        base_offset, attributes, delta = header[0], header[5], header[6]
        producer_id, sequence = header[9], header[11]
        if producer_id < 0 or base_offset < self._producers_end:
            return
        if attributes & CONTROL_FLAG and sequence < 0:
            marker = read_marker(file.read(position, LOG_OVERHEAD + header[1]))
            if marker is not None:
                self._producers.end_transaction(marker, base_offset, self._written_ms(header[8]))
            return
        # What compaction has left without records was of a transaction that has ended.
        transactional = bool(attributes & TRANSACTIONAL_FLAG and header[12])
        if sequence < 0 and not transactional:
            return
        append_time_ms = header[8] if header[5] & LOG_APPEND_TIME_FLAG else NO_TIMESTAMP
        batch = BatchEntry(
            sequence,
            (sequence + delta) & SEQUENCE_MASK,
            base_offset,
            base_offset + delta,
            append_time_ms,
        )
        at_ms = self._written_ms(header[8])
        self._producers.update(producer_id, header[10], batch, at_ms, transactional=transactional)

    def _written_ms(self, timestamp: int) -> int:
        """Return when a batch was written, as far as its timestamp tells: it may be the time of an event.

        A producer that seems to have been idle for long is remembered for an hour all the same: a batch that it repeats
        meanwhile is recognised.
        """
        forgotten_ms = self._now_ms - self._config.producer_id_expiration_ms
        return min(max(timestamp, forgotten_ms + _REPETITIONS_MS), self._now_ms)

    # What is sound

    def _scan(self, segments: list[Segment], first: int) -> list[Segment]:
        """Check the segments from `first` on and return those to keep, the last one cut if it was torn."""
        for number in range(first, len(segments)):
            segment = segments[number]
            scan = self._scan_segment(segment)
            if scan.fault:
                self._check_torn(segment, scan.position, scan.fault)
                self._remove_from(segments, number + 1)
                self._cut(segment, scan.position)
                return segments[: number + 1]
            if segment is not segments[-1]:
                self._seal_aborted(segment)
        return segments

    def _scan_segment(self, segment: Segment) -> SegmentScan:
        file = self._files.open(segment.path)
        index, size, end_offset, first_timestamp = self._known_part(segment, file.size)
        self._epochs.truncate_to_end(end_offset)
        self._report.scanned_bytes += file.size - size
        scan = self._reader(file, size, end_offset, self._epochs)
        for position, header in self._sound_batches(segment, file, scan):
            if not position:
                first_timestamp = header[8]
            index.add(header[0], position, header[8], header[5] & CONTROL_FLAG)
            self._replay(file, position, header)
        segment.adopt(file, index, scan.position, scan.next_offset, first_timestamp)
        segment.cut_expiries(size)
        return scan

    def _reader(
        self, file: File, position: int, offset: int, epochs: LeaderEpochCache
    ) -> SegmentScan:
        return SegmentScan(
            file, position, offset, recovery_point=self._recovery_point, epochs=epochs
        )

    def _sound_batches(
        self, segment: Segment, file: File, scan: SegmentScan
    ) -> Iterator[tuple[int, Header]]:
        """Yield the batches up to the first fault; a sealed segment that ends too early has one, too."""
        yield from scan.batches()
        following = segment.end_offset
        if following == segment.base_offset:
            return  # the active segment
        if scan.gap and self._is_compacted(segment, file, scan):
            yield from scan.batches(gaps_allowed=True)
        _check_overlap(segment, scan)
        if not scan.fault and scan.next_offset < following:
            scan.fault = f"it ends at offset {scan.next_offset}, the next begins at {following}"

    def _is_compacted(self, segment: Segment, file: File, scan: SegmentScan) -> bool:
        """Whether a gap was left by compaction: it leaves whole segments, which end where they did before.

        Base offsets are outside the CRC, and a wrong one looks like a gap until more of the segment is read.
        """
        epochs = LeaderEpochCache(self._epochs.entries)
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

    # What is repaired

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
        """Drop what describes offsets that are gone, and return what makes the checked data durable."""
        self._epochs.truncate_to_end(end_offset)
        if self._epochs_end > end_offset:
            path = f"{self._directory}/{EPOCHS_FILE}"
            self._files.write_file(path, self._epochs.encode(end_offset))
        stale = self._snapshots.remove_above(end_offset)
        self._save_aborted(segments, 0 if self._rebuilt else first_scanned)
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
                self._files.remove(segment.index_path)
        if not segments and not stale:
            return None
        return SyncTask(self._files, unsynced, self._directory, end_offset)

    def _save_aborted(self, segments: list[Segment], first: int) -> None:
        """Write the aborted transactions of the segments that were read; a file may speak of what is cut off now."""
        aborted = self._producers.transactions.aborted
        if not aborted and not self._has_txnindex:
            return
        for segment in segments[first:]:
            if segment.end_offset <= aborted.first_marker:
                continue
            if segment is segments[-1]:
                content = aborted.content_of_active(segment.base_offset, segment.end_offset)
                self._files.write_file(segment.txnindex_path, content)
            else:
                aborted.save(segment.base_offset, segment.end_offset)


def _headers(segment: Segment) -> Iterator[tuple[int, Header]]:
    """Yield (position, header) of all batches of a segment that is known to be sound."""
    loaded = segment.loaded
    for batch in segment.walk(0, segment.size):
        yield batch.position, tuple(segment.header_at(batch.position))
    if not loaded:
        segment.unload()


def _check_overlap(segment: Segment, scan: SegmentScan) -> None:
    if scan.next_offset > segment.end_offset:
        raise StorageError(
            f"{segment.path} overlaps the next segment: it ends at offset {scan.next_offset}, the next begins at "
            f"{segment.end_offset}. Restore the partition from a backup, or delete its topic."
        )
