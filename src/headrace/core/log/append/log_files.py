"""The files of one log: how they come into being, take batches, are sealed, made durable, and removed.

Nothing is synced while requests wait for it. Creations and appends are noted, and the next `SyncTask` makes them
durable, in another thread: the data, the names in the log's directory, and the name of the directory itself when it is
new. What a crash leaves of a log that was never synced, nobody was told of; `repair_metadata` completes it.

The directory is created with the first segment, and that with the first batch.
"""

from __future__ import annotations

from typing import Final

from headrace.core.log.config import LogConfig
from headrace.core.log.files.caches import write_cache
from headrace.core.log.files.partition_metadata import METADATA_FILE, owner_in
from headrace.core.log.files.sync import SyncTask
from headrace.core.log.index.leader_epochs import EPOCHS_FILE
from headrace.core.log.offsets import MAX_OFFSET_SPAN
from headrace.core.log.producers.aborted_history import AbortedHistory
from headrace.core.log.recovery.loaded import LoadedLog
from headrace.core.log.segments.replacement import Replacement, install
from headrace.core.log.segments.segment import Segment
from headrace.core.log.segments.segments import Segments
from headrace.ports import File, FileSystem

_MAX_UNSYNCED_FILES: Final = 16
CACHES_AFTER_BYTES: Final = 16 << 20
"""After how much growth of the active segment upkeep writes its caches: what a start after a crash has to walk."""


class LogFiles:
    """Creates, seals, syncs and removes the files of one log; `segments` are what it has."""

    __slots__ = (
        "_created",
        "_epochs",
        "_is_new",
        "_metadata",
        "_names_unsynced",
        "_producers",
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
        """Take over what was loaded.

        Args:
            files: The file system.
            directory: The log's directory.
            loaded: What was found in it.
            segments: The same segments, or a first one that is not created yet.
            metadata: Content of `partition.metadata`.
        """
        self.files = files
        self._metadata = metadata
        self.owner = owner_in(metadata)
        """The id of the log's topic in hexadecimal, "" without `metadata`."""
        self._epochs = loaded.epochs
        self._producers = loaded.producers
        self._snapshots = loaded.snapshots
        self._snapshot_at = -1, 0
        """The segment in which the last snapshot of the producers was written, and its size then."""
        self._unwritten = 0
        """Bytes of sealed segments since then."""
        self._created = bool(loaded.segments)
        self._is_new = False
        """Whether the name of the directory itself is not synced."""
        self._names_unsynced = False
        self._unsynced: list[File] = []
        """Files with data that is not synced, but for that of the active segment."""
        self._task: SyncTask | None = None
        self._synced_offset = segments.active.end_offset
        self.cached_end_offset = segments.active.end_offset if loaded.caches_current else None
        """The log's end when the caches were written, None if they are not there."""
        self.directory = directory
        self.segments = segments

    # Creating

    def create(self, segment: Segment) -> None:
        """Create a segment's file, and before the first one the log's directory.

        Raises:
            OSError: It could not be created; the next attempt begins again.
        """
        if not self._created:
            self._create_directory()
        self.segments.open_segments.require_room()
        segment.create()
        self._names_unsynced = True

    def _create_directory(self) -> None:
        self.files.make_directory(self.directory)
        self._is_new = True
        if self._metadata is not None:
            file = self.files.open(self._metadata_path, create=True)
            file.truncate(0)
            file.append([self._metadata])
            file.close()  # the sync opens it again: with durability `os` there may never be one
        self._created = True

    @property
    def _metadata_path(self) -> str:
        return f"{self.directory}/{METADATA_FILE}"

    # Writing

    def prepare(
        self, config: LogConfig, size: int, max_timestamp: int, last_offset: int, now_ms: int
    ) -> Segment:
        """Return the segment for the next batch, after looking more closely than an append does.

        Args:
            config: The settings now.
            size: The batch's; one of the broker's own that is larger than a segment gets a segment of its own.
            max_timestamp: Its largest timestamp.
            last_offset: Where it will end.
            now_ms: The wall clock.

        Raises:
            OSError: A segment could not be created; the log is as before.
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
            self.segments.open_segments.require_room()
            segment.reopen()
        return self.segments.active

    def roll(self, config: LogConfig, now_ms: int) -> None:
        """Seal the active segment and begin the next; nothing happens while it is empty.

        Raises:
            OSError: The next segment could not be created; the log is as before.
        """
        sealed = self.segments.active
        if not sealed.size:
            return
        segment = Segment(
            self.files,
            self.directory,
            sealed.end_offset,
            interval=config.index_interval_bytes,
            created_ms=now_ms,
        )
        segment.open_segments = self.segments.open_segments
        self.create(segment)
        if self._synced_offset < sealed.end_offset:
            self._unsynced.append(sealed.reopen())
        self.segments.add(segment)
        self._aborted.seal(sealed.base_offset, sealed.end_offset)
        if len(self._unsynced) > _MAX_UNSYNCED_FILES:
            # Nobody syncs this log (durability `os`), so its descriptors would pile up.
            self._unsynced.pop(0).sync()
        self._write_caches(sealed, with_producers=self._is_worth_a_snapshot(sealed))

    # Caches

    def maybe_write_caches(self) -> None:
        """Write the caches if the active segment has grown by much since they were, or if one is not written yet."""
        self._aborted.save_sealed()
        segment = self.segments.active
        if segment.size - segment.indexed_size >= CACHES_AFTER_BYTES:
            self.write_caches(segment)

    def _is_worth_a_snapshot(self, sealed: Segment) -> bool:
        """Whether as much was appended since the last snapshot of the producers as the next one would have.

        Else whoever begins segments with small batches would have many producers written with each.
        """
        base_offset, size = self._snapshot_at
        if base_offset == sealed.base_offset:
            self._unwritten -= size
        self._unwritten += sealed.size
        return self._unwritten >= self._producers.snapshot_size

    def write_caches(self, segment: Segment) -> None:
        """Write what spares the next opening from reading up to the log's end, which is that of `segment`."""
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
        """Write which aborted transactions end in a segment, if any of the log's is remembered."""
        self._aborted.save(segment.base_offset, segment.end_offset)

    @property
    def _aborted(self) -> AbortedHistory:
        return self._producers.transactions.aborted

    def install(self, replacement: Replacement, interval: int) -> None:
        """Put a compacted segment in the place of those that it was made from; see `replacement`.

        Raises:
            OSError: It is half done; the log can be used again after a restart.
        """
        base_offset, end_offset = replacement.first.base_offset, replacement.sources[-1].end_offset
        self._snapshots.remove_before(end_offset)
        install(self.files, self.segments, replacement, interval=interval)
        self._aborted.replace(base_offset, end_offset, replacement.aborted)

    # Durability

    def start_sync(self) -> SyncTask | None:
        """Return what makes everything written so far durable, None if all is; see `PartitionLog.start_sync`."""
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
        """Return the segment files with data that is not synced."""
        active = self.segments.active
        return [*self._unsynced, *([] if active.file is None else [active.file])]

    def synced(self, offset: int) -> None:
        """Take note that the task has run without error, and everything below an offset is durable."""
        self._task = None
        self._synced_offset = offset
        self.segments.active.synced_offset = offset
        self.segments.open_segments.trim()

    def put_back(self, task: SyncTask) -> None:
        """Have what a task was to sync be part of the next one."""
        self._task = None
        if not task.abandoned:
            self._unsynced = list(dict.fromkeys((*task.file_list, *self._unsynced)))
            self._names_unsynced |= task.directory is not None
            self._is_new |= task.is_new

    # Removing

    def drop_oldest(self, count: int) -> list[Segment]:
        """Take the oldest segments out; their files stay until `purge`.

        What is known of their producers is in a snapshot before, for no opening can read it from batches any more.
        """
        dropped = self.segments.drop_oldest(count)
        if self._snapshots.newest_offset < self.segments.start_offset:
            self._snapshots.write(self._producers, self.segments.active.end_offset)
        return dropped

    def purge(self) -> None:
        """Remove the files of segments that were dropped; the log's new start is durable."""
        if self.segments.has_doomed:
            if self._names_unsynced or self._task is not None:
                # The segments that stay carry the offsets on in their names, so these must be safe first.
                self.files.sync_directory(self.directory)
            self.segments.purge()
        self._snapshots.remove_below(self.segments.start_offset)

    def abandon(self) -> None:
        """Drop all files; a sync that runs meanwhile may fail as it likes."""
        if self._task is not None:
            self._task.abandoned = True
            self._task = None
        self.segments.unload()
        self._producers.close()
        self._unsynced.clear()


def repair_metadata(files: FileSystem, directory: str, content: bytes | None) -> None:
    """Write `partition.metadata` durably if a crash has come between the first batch of a log and its sync."""
    path = f"{directory}/{METADATA_FILE}"
    if content is not None and files.read_file(path) != content:
        files.write_file(path, content)
