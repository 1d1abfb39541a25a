"""The files of one log: they are created, take batches, are sealed, synced and removed.

`truncatable_files` adds the removal of a log's end. No request waits for a sync in this module. It notes which files
were created and written, and the next `SyncTask` makes them durable in another thread: the data, the names in the log's
directory, and the name of the directory itself if it is new. A crash before the first sync may leave an incomplete
directory. No produce of its records was acknowledged, and `repair_metadata` completes it.

The directory is created with the first segment, and the first segment with the first batch.
"""

from __future__ import annotations

from typing import Final

from headrace.core.log.config import LogConfig
from headrace.core.log.files.caches import write_cache
from headrace.core.log.files.offset_gaps import GAPS_FILE
from headrace.core.log.files.partition_metadata import METADATA_FILE, owner_in
from headrace.core.log.files.sync import SyncTask
from headrace.core.log.index.leader_epochs import EPOCHS_FILE, LeaderEpochCache
from headrace.core.log.index.sidecars import SIDECARS
from headrace.core.log.offsets import MAX_OFFSET_SPAN
from headrace.core.log.producers.aborted_history import AbortedHistory
from headrace.core.log.recovery.loaded import LoadedLog
from headrace.core.log.segments.replacement import Replacement, install
from headrace.core.log.segments.segment import Segment
from headrace.core.log.segments.segments import Segments
from headrace.core.log.truncation import Cut
from headrace.ports import File, FileSystem

_MAX_UNSYNCED_FILES: Final = 16
CACHES_AFTER_BYTES: Final = 16 << 20
"""Growth of the active segment, in bytes, after which upkeep writes its caches. A start after a crash reads this much.
"""


class LogFiles:
    """Creates, seals, syncs and removes the files of one log."""

    __slots__ = (
        "_created",
        "_epochs",
        "_has_gaps",
        "_is_new",
        "_metadata",
        "_names_unsynced",
        "_producers",
        "_shared",
        "_snapshot_at",
        "_snapshots",
        "_synced_offset",
        "_task",
        "_unsynced",
        "_unwritten",
        "cached_end_offset",
        "directory",
        "files",
        "owner",
        "segments",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        loaded: LoadedLog,
        segments: Segments,
        *,
        metadata: bytes | None,
    ) -> None:
        """Begin with the files that recovery has loaded.

        Args:
            files: The file system.
            directory: The log's directory.
            loaded: The result of the recovery.
            segments: The segments in `loaded`, or a first segment that has no file yet.
            metadata: Content of `partition.metadata`; None for no such file.
        """
        self.files = files
        self._metadata = metadata
        self.owner = owner_in(metadata)
        """The id of the log's topic in hexadecimal, "" without `metadata`."""
        self._epochs = loaded.epochs
        self._producers = loaded.producers
        self._shared = loaded.shared
        self._snapshots = loaded.snapshots
        self._snapshot_at = -1, 0
        """The base offset and the size of the segment in which the last snapshot of the producers was written; -1
        before one."""
        self._unwritten = 0
        """Bytes of the segments that were sealed since the last snapshot of the producers."""
        self._created = bool(loaded.segments)
        self._has_gaps = loaded.has_gaps
        """Whether the file exists that allows gaps between offsets in the last segment."""
        self._is_new = False
        """Whether the name of the directory itself has yet to be synced."""
        self._names_unsynced = False
        self._unsynced: list[File] = []
        """The files with unsynced data, without the file of the active segment."""
        self._task: SyncTask | None = None
        self._synced_offset = segments.active.end_offset
        self.cached_end_offset = segments.active.end_offset if loaded.caches_current else None
        """The log end offset when the caches were written, None if there are no current caches."""
        self.directory = directory
        self.segments = segments

    # Creating

    def create(self, segment: Segment) -> None:
        """Create the file of a segment, and before the first one the directory of the log.

        Raises:
            OSError: The file could not be created. The call can be repeated.
        """
        if not self._created:
            self._create_directory()
        self.segments.open_segments.require_space()
        segment.create()
        self._names_unsynced = True

    def _create_directory(self) -> None:
        self.files.make_directory(self.directory)
        self._is_new = True
        if self._metadata is not None:
            file = self.files.open(self._metadata_path, create=True)
            file.truncate(0)
            file.append([self._metadata])
            file.close()  # the sync opens it again; with durability `os` there may be no sync
        self._created = True

    @property
    def _metadata_path(self) -> str:
        return f"{self.directory}/{METADATA_FILE}"

    # Writing

    def prepare(
        self, config: LogConfig, size: int, max_timestamp: int, last_offset: int, now_ms: int
    ) -> Segment:
        """Return the segment for the next batch, after checks that `append` makes only roughly.

        Args:
            config: The current settings.
            size: The size of the batch in bytes. A batch larger than `segment.bytes`, built by the broker, gets a
                segment of its own.
            max_timestamp: The largest timestamp of the batch.
            last_offset: The last offset of the batch.
            now_ms: The wall clock.

        Raises:
            OSError: A segment could not be created. The log is unchanged.
        """
        segment = self.segments.active
        if not segment.loaded:
            self.create(segment)
        elif segment.size and (
            segment.size + size > config.segment_bytes
            or last_offset - segment.base_offset > MAX_OFFSET_SPAN
            or segment.is_older(config.segment_ms, max_timestamp, now_ms)
        ):
            self.roll(config, now_ms)
        elif segment.file is None:
            self.segments.open_segments.require_space()
            segment.reopen()
        return self.segments.active

    def allow_gaps(self) -> None:
        """Create the file without which a recovery takes a gap between offsets for damage.

        Raises:
            OSError: The file could not be created. The call can be repeated.
        """
        if not self._has_gaps:
            self.files.open(f"{self.directory}/{GAPS_FILE}", create=True).close()
            self._has_gaps = self._names_unsynced = True

    def roll(self, config: LogConfig, now_ms: int) -> None:
        """Seal the active segment and begin the next one. An empty active segment stays.

        Raises:
            OSError: The next segment could not be created. The log is unchanged.
        """
        sealed = self.segments.active
        if not sealed.size:
            return
        segment = self._segment(sealed.end_offset, config, now_ms)
        segment.open_segments = self.segments.open_segments
        self.create(segment)
        if self._synced_offset < sealed.end_offset:
            self._unsynced.append(sealed.reopen())
        self.segments.add(segment)
        self._aborted.seal(sealed.base_offset, sealed.end_offset)
        if len(self._unsynced) > _MAX_UNSYNCED_FILES:
            # With durability `os` nothing syncs this log, so its open files would add up.
            self._unsynced.pop(0).sync()
        self._write_caches(sealed, with_producers=self._is_worth_a_snapshot(sealed))

    # Caches

    def maybe_write_caches(self) -> None:
        """Write the caches that are missing, and all caches if the active segment has grown by `CACHES_AFTER_BYTES`."""
        self._aborted.save_sealed()
        segment = self.segments.active
        if segment.size - segment.indexed_size >= CACHES_AFTER_BYTES:
            self.write_caches(segment)

    def _is_worth_a_snapshot(self, sealed: Segment) -> bool:
        """Return whether the segments sealed since the last snapshot have as many bytes as the next snapshot would.

        Otherwise a client that fills segments with small batches would cause a large snapshot for each of them.
        """
        base_offset, size = self._snapshot_at
        if base_offset == sealed.base_offset:
            self._unwritten -= size
        self._unwritten += sealed.size
        return self._unwritten >= self._producers.snapshot_size

    def write_caches(self, segment: Segment) -> None:
        """Write the caches that describe the log up to the end of `segment`, so that the next opening reads less."""
        self._write_caches(segment, with_producers=True)

    def _write_caches(self, segment: Segment, *, with_producers: bool) -> None:
        end_offset = segment.end_offset
        segment.write_sidecars()
        self.write_aborted(segment)
        if with_producers:
            self._snapshots.write(self._producers, end_offset)
            self._snapshot_at, self._unwritten = (segment.base_offset, segment.size), 0
        write_cache(self.files, f"{self.directory}/{EPOCHS_FILE}", self._epochs.encode(end_offset))
        self.cached_end_offset = end_offset if with_producers else None

    def write_aborted(self, segment: Segment) -> None:
        """Write the aborted transactions that end in a segment, if the log has any."""
        self._aborted.save(segment.base_offset, segment.end_offset)

    @property
    def _aborted(self) -> AbortedHistory:
        return self._producers.transactions.aborted

    def install(self, replacement: Replacement, interval: int) -> None:
        """Replace segments by the compacted segment that was made from them; see `replacement`.

        Raises:
            OSError: The replacement is incomplete. After a restart the log can be used again.
        """
        base_offset, end_offset = replacement.first.base_offset, replacement.sources[-1].end_offset
        self._snapshots.remove_before(end_offset)
        install(self.files, self.segments, replacement, interval=interval)
        self._aborted.replace(base_offset, end_offset, replacement.aborted)

    # Durability

    def start_sync(self) -> SyncTask | None:
        """Return the task that makes everything written so far durable; see `PartitionLog.start_sync`."""
        end_offset = self.segments.active.end_offset
        if end_offset == self._synced_offset and not (self._unsynced or self._names_unsynced):
            return None
        active = self.segments.active
        file_list, self._unsynced = self._unsynced, []
        if active.file is not None and active.file not in file_list:
            file_list.append(active.file)
        writes_metadata = self._is_new and self._metadata is not None
        self._task = SyncTask(
            self.files,
            file_list,
            self.directory if self._names_unsynced else None,
            end_offset,
            new_directory=self._is_new,
            metadata_path=self._metadata_path if writes_metadata else None,
        )
        self._names_unsynced = self._is_new = False
        active.remember_end()
        return self._task

    def unsynced_files(self) -> list[File]:
        """Return the segment files with unsynced data."""
        active = self.segments.active
        return [*self._unsynced, *([] if active.file is None else [active.file])]

    def synced(self, offset: int) -> None:
        """Note that a task has run without error: everything below `offset` is durable."""
        self._task = None
        self._synced_offset = offset
        self.segments.active.synced_offset = offset
        self.segments.open_segments.trim()

    def put_back(self, task: SyncTask) -> None:
        """Make what a failed task was to sync part of the next task."""
        self._task = None
        if not task.abandoned:
            self._unsynced = list(dict.fromkeys((*task.file_list, *self._unsynced)))
            self._names_unsynced |= task.directory is not None
            self._is_new |= task.is_new

    # Removing

    def drop_oldest(self, count: int) -> list[Segment]:
        """Remove the oldest segments from the list. Their files stay until `purge`.

        First the state of their producers is stored in a snapshot: no later opening can read it from the batches.
        """
        dropped = self.segments.drop_oldest(count)
        if self._snapshots.newest_offset < self.segments.start_offset:
            self._snapshots.write(self._producers, self.segments.active.end_offset)
        return dropped

    def purge(self) -> None:
        """Remove the files of dropped segments. The caller has made the new log start offset durable."""
        if self.segments.has_doomed:
            if self._names_unsynced or self._task is not None:
                # The names of the remaining segments are the only trace of their offsets, so they are synced first.
                self.files.sync_directory(self.directory)
            self.segments.purge()
        self._snapshots.remove_below(self.segments.start_offset)

    # Caches and segments at a truncation

    def begin_at(self, base_offset: int, config: LogConfig, now_ms: int) -> None:
        """Begin an empty log below its end offset, because its first batch holds that offset."""
        self.segments.cut_end(0, self._segment(base_offset, config, now_ms))

    def _segment(self, base_offset: int, config: LogConfig, now_ms: int) -> Segment:
        return Segment(
            self.files,
            self.directory,
            base_offset,
            interval=config.index_interval_bytes,
            created_ms=now_ms,
        )

    def save_epochs(self, end_offset: int) -> None:
        """Make the leader epochs durable that remain if the log is cut at an offset.

        A full disk may refuse this file, or before it a checkpoint that `LogManager.truncate` lowers. In both cases no
        batch is removed yet. A lower recovery point or clean offset does no harm.

        Raises:
            OSError: The file could not be written.
        """
        epochs = LeaderEpochCache(self._epochs.entries)
        epochs.truncate_to_end(end_offset)
        self.files.write_file(f"{self.directory}/{EPOCHS_FILE}", epochs.encode(end_offset))

    def _remove_caches(self, cut: Cut, end_offset: int) -> None:
        """Remove durably what describes batches from a cut on."""
        self._snapshots.remove_above(end_offset)
        for sidecar in SIDECARS:
            self.files.remove(cut.segment.sidecar_path(sidecar))
        if cut.segment is not self.segments.active:
            self.allow_gaps()  # compaction may have left some, and a crash may make the segment the last one
        self.files.sync_directory(self.directory)

    def abandon(self) -> None:
        """Close all files. A sync that runs meanwhile may fail."""
        if self._task is not None:
            self._task.abandoned = True
            self._task = None
        self.segments.unload()
        self._producers.close()
        self._unsynced.clear()


def repair_metadata(files: FileSystem, directory: str, content: bytes | None) -> None:
    """Write `partition.metadata` durably if a crash came between the first batch of a log and its sync."""
    path = f"{directory}/{METADATA_FILE}"
    if content is not None and files.read_file(path) != content:
        files.write_file(path, content)
