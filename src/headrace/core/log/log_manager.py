"""All partition logs of one data directory.

It knows what a single log cannot: whose directory it is (`meta.properties`), whether the last shutdown was clean, how
far each log was synced, which logs wait for the next group commit.

Group commit, as the broker drives it:

1. Appends make logs dirty.
2. `start_sync` collects them into a `SyncBatch`; appends go on meanwhile and belong to the next batch.
3. The shell runs `SyncBatch.run()`, in a thread if it likes.
4. `finish_sync` raises each log's `synced_offset`, and the broker answers who waited for it. The next batch may start.

After one failed sync all logs are failed for good: the kernel may report success the next time without the data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.core.log.checkpoints import decode_checkpoint, encode_checkpoint
from headrace.core.log.config import LogConfig
from headrace.core.log.disk_errors import is_passing
from headrace.core.log.partition_log import PartitionLog
from headrace.core.log.partition_metadata import decode_topic_id, encode_topic_id
from headrace.core.log.sync import RunTasks, SyncTask, run_in_turn
from headrace.errors import StorageError
from headrace.ports import FileSystem, Journal
from headrace.types import TopicPartition

META_FILE: Final = "meta.properties"
CLEAN_FILE: Final = "clean_shutdown"
RECOVERY_FILE: Final = "recovery-point-offset-checkpoint"
START_FILE: Final = "log-start-offset-checkpoint"
METADATA_FILE: Final = "partition.metadata"
DELETE_SUFFIX: Final = "-delete"
STRAY_SUFFIX: Final = "-stray"

CHECKPOINT_INTERVAL_MS: Final = 60_000
RETENTION_INTERVAL_MS: Final = 300_000
"""How often logs are looked at for what can be deleted; the default, which is Kafka's."""
RETRY_INTERVAL_MS: Final = 10_000
"""When what a full disk did not allow is tried again."""

UPKEEP_AT_ONCE: Final = 16
"""Logs that one tick looks at: with thousands, rolls and deletions at the same time would hold requests up."""
_UPKEEP_PAUSE_MS: Final = 20

_FORMAT: Final = "1"
_NAME_LENGTH: Final = 150
"""How much of a topic's name a deleted directory keeps: with all suffixes it stays below 255 bytes."""


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """What the metadata say about a partition that this broker has."""

    topic_partition: TopicPartition
    topic_id: bytes
    config: LogConfig


class SyncBatch:
    """One group commit: the sync tasks of all logs that were dirty."""

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[tuple[PartitionLog, SyncTask]]) -> None:
        self.entries = entries

    @property
    def tasks(self) -> list[SyncTask]:
        """The tasks, for a shell that runs them in parallel instead of calling `run`."""
        return [task for _, task in self.entries]

    def run(self) -> None:
        """Run all tasks; thread-safe.

        Raises:
            OSError: One failed; hand it to `finish_sync`.
        """
        for _, task in self.entries:
            task.run()


class LogManager:
    """The logs of one data directory. Open it with `LogManager.open`, then `load` what the metadata know."""

    def __init__(
        self, files: FileSystem, journal: Journal, *, clean: bool, run_tasks: RunTasks
    ) -> None:
        """Use a directory that `open` has checked."""
        self._run_tasks = run_tasks
        self._files = files
        self._journal = journal
        self._clean = clean
        self._loaded = False
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._topic_ids: dict[TopicPartition, bytes] = {}
        self._failed: dict[TopicPartition, StorageError] = {}
        self._dirty: dict[PartitionLog, None] = {}
        self._shortened: dict[PartitionLog, None] = {}
        """Logs whose start has moved up and whose old files are still there."""
        self._batch: SyncBatch | None = None
        self._failure: OSError | None = None
        self._recovery_points = self._read_offsets(RECOVERY_FILE) or {}
        start_offsets = self._read_offsets(START_FILE)
        self._starts_known = start_offsets is not None
        self._start_offsets = start_offsets or {}
        self.retention_interval_ms = RETENTION_INTERVAL_MS
        self._next_checkpoint_ms: int | None = None
        self._next_retention_ms: int | None = None
        self._upkeep: list[PartitionLog] = []
        """Logs that have yet to be looked at in this round of upkeep."""
        self._put_off = False
        """Whether this round has to be repeated soon: the disk was full."""

    @classmethod
    def open(
        cls,
        files: FileSystem,
        *,
        cluster_id: str,
        node_id: int,
        journal: Journal,
        run_tasks: RunTasks = run_in_turn,
    ) -> LogManager:
        """Claim a directory: check that it is this broker's, and take away the mark of its last clean shutdown.

        Args:
            files: The directory.
            cluster_id: Of the cluster to which it has to belong.
            node_id: Of the broker to which it has to belong.
            journal: Told about repairs and failures.
            run_tasks: Runs the syncs of a recovery: two for each log, which take far less time in parallel.

        Raises:
            StorageError: The directory belongs to another cluster or broker, or has a newer format.
        """
        _check_meta(files, cluster_id, node_id)
        clean = decode_checkpoint(CLEAN_FILE, files.read_file(CLEAN_FILE)) is not None
        # Gone before anything changes, durably: a crash from here on is a crash.
        files.remove(CLEAN_FILE)
        files.sync_directory("")
        return cls(files, journal, clean=clean, run_tasks=run_tasks)

    # Loading

    def load(self, partitions: Iterable[PartitionSpec], now_ms: int) -> None:
        """Open the logs of all partitions that the metadata know; recovers them after a crash.

        A partition whose data is damaged is not served: it stands in `failed`, the others go on. Directories that
        the metadata do not know are left alone and reported.
        """
        self._finish_deletions()
        known: set[str] = set()
        unsynced: list[SyncTask] = []
        for spec in partitions:
            known.add(str(spec.topic_partition))
            try:
                self.open_log(spec, now_ms, unsynced.append)
            except StorageError as error:
                self._failed[spec.topic_partition] = error
                self._journal.error(
                    "partition_not_served", partition=str(spec.topic_partition), reason=str(error)
                )
        self._run_tasks(unsynced)
        for name in self._files.list(""):
            topic, separator, partition = name.rpartition("-")
            if topic and separator and partition.isdigit() and name not in known:
                self._journal.warning(
                    "unknown_directory_left_alone", directory=name
                )
        if not self._starts_known:
            # From now on a log that begins later than the file says has lost its beginning.
            self.write_checkpoints()
            self._write_offsets(START_FILE, self._start_offsets)
            self._starts_known = True
        self._loaded = True
        self._clean = False  # of what is opened from now on, nothing is known
        self._next_checkpoint_ms = now_ms + CHECKPOINT_INTERVAL_MS
        self._next_retention_ms = now_ms

    def open_log(
        self,
        spec: PartitionSpec,
        now_ms: int,
        sync: Callable[[SyncTask], object] = SyncTask.run,
    ) -> PartitionLog:
        """Open (or begin) one log. Its directory comes into being with its first batch.

        Args:
            spec: Which, and how it is configured.
            now_ms: The wall clock.
            sync: Called with what a recovery has to sync before the log may be used.

        Raises:
            StorageError: Its data is damaged.
        """
        partition, name = spec.topic_partition, str(spec.topic_partition)
        self._set_stray_aside(name, spec.topic_id)
        key = _key(partition, spec.topic_id)
        log = PartitionLog.open(
            self._files,
            name,
            spec.config,
            topic_partition=partition,
            now_ms=now_ms,
            clean=self._clean,
            recovery_point=self._recovery_points.get(key, 0),
            log_start_offset=self._start_offsets.get(key, 0 if self._starts_known else None),
            metadata=encode_topic_id(spec.topic_id),
            journal=self._journal,
            sync=sync,
        )
        log.on_dirty = self.mark_dirty
        if self._failure is not None:
            log.fail(self._failure)
        self._logs[partition] = log
        self._topic_ids[partition] = spec.topic_id
        return log

    def mark_dirty(self, log: PartitionLog) -> None:
        """Have a log take part in the next group commit."""
        self._dirty[log] = None

    def _finish_deletions(self) -> None:
        for name in self._files.list(""):
            if name.endswith(DELETE_SUFFIX) and "." in name:
                self._files.remove_tree(name)

    def _set_stray_aside(self, name: str, topic_id: bytes) -> None:
        """Move a directory away that an earlier topic of the same name left."""
        found = decode_topic_id(self._files.read_file(f"{name}/{METADATA_FILE}"))
        if found is not None and found != topic_id:
            stray = f"{name[-_NAME_LENGTH:]}.{found.hex()}{STRAY_SUFFIX}"
            self._files.rename(name, stray)
            self._journal.warning(
                "stray_directory_set_aside", directory=name, renamed=stray
            )

    # Logs

    @property
    def logs(self) -> Mapping[TopicPartition, PartitionLog]:
        """All open logs."""
        return self._logs

    @property
    def failed(self) -> Mapping[TopicPartition, StorageError]:
        """Partitions whose logs could not be opened, and why."""
        return self._failed

    @property
    def failure(self) -> OSError | None:
        """What took the whole directory out of service, None while it serves."""
        return self._failure

    def get(self, topic_partition: TopicPartition) -> PartitionLog | None:
        """Return a partition's log, None if it is not open."""
        return self._logs.get(topic_partition)

    def checkpoint_key(self, topic_partition: TopicPartition) -> str:
        """Return what stands for an open log in checkpoints: topic, partition, topic id."""
        return _key(topic_partition, self._topic_ids[topic_partition])

    def recovery_point(self, key: str) -> int:
        """Return the offset below which a log is known, durably, to be synced, by its `checkpoint_key`."""
        return self._recovery_points.get(key, 0)

    def delete_log(self, topic_partition: TopicPartition) -> None:
        """Delete a partition's log durably; no error if there is none.

        Readers that hold ranges finish. A crash in the middle is finished by the next `load`.
        """
        log = self._logs.pop(topic_partition, None)
        self._failed.pop(topic_partition, None)
        topic_id = self._topic_ids.pop(topic_partition, b"")
        if log is not None:
            self._dirty.pop(log, None)
            self._shortened.pop(log, None)
            log.abandon()
        name = str(topic_partition)
        if self._files.list(name):
            doomed = f"{name[-_NAME_LENGTH:]}.{topic_id.hex()}{DELETE_SUFFIX}"
            self._files.rename(name, doomed)
            self._files.remove_tree(doomed)
            self._files.sync_directory("")
        self._recovery_points.pop(_key(topic_partition, topic_id), None)
        self._start_offsets.pop(_key(topic_partition, topic_id), None)

    # Group commit

    @property
    def sync_due(self) -> bool:
        """Whether `start_sync` would return a batch; much cheaper than asking it."""
        return bool(self._dirty) and self._batch is None and self._failure is None

    def start_sync(self) -> SyncBatch | None:
        """Collect what is to be made durable; None if nothing is, or a batch is under way, or the directory failed."""
        if self._batch is not None or not self._dirty or self._failure is not None:
            return None
        logs, self._dirty = list(self._dirty), {}
        entries = [(log, task) for log in logs if (task := log.start_sync()) is not None]
        if entries:
            self._batch = SyncBatch(entries)
        return self._batch

    def finish_sync(self, batch: SyncBatch, error: OSError | None = None) -> list[PartitionLog]:
        """Take note of a batch's outcome.

        Returns:
            The logs whose `synced_offset` the batch raised; none after an error, when all logs have failed.
        """
        self._batch = None
        if error is not None:
            self.fail(error)
            return []
        for log, task in batch.entries:
            log.finish_sync(task)
        return [log for log, task in batch.entries if not task.abandoned]

    def fail(self, error: OSError) -> None:
        """Take the whole directory out of service: after an error nobody knows what is on the disk."""
        if self._failure is not None:
            return
        self._failure = error
        self._journal.error("log_directory_failed", reason=str(error))
        for log in self._logs.values():
            log.fail(error)

    # Time

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do next."""
        checkpoint, retention = self._next_checkpoint_ms, self._next_retention_ms
        if checkpoint is None or (retention is not None and retention < checkpoint):
            return retention
        return checkpoint

    def tick(self, now_ms: int) -> None:
        """Apply retention, roll by age, expire producers, and write checkpoints, each when it is due.

        Raises:
            OSError: The disk refused; the directory has failed.
        """
        if self._failure is not None:
            return
        try:
            if self._next_retention_ms is not None and now_ms >= self._next_retention_ms:
                self._next_retention_ms = now_ms + self.retention_interval_ms
                self._maintain_some(now_ms)
            if self._next_checkpoint_ms is not None and now_ms >= self._next_checkpoint_ms:
                self._next_checkpoint_ms = now_ms + CHECKPOINT_INTERVAL_MS
                self.write_checkpoints()
        except OSError as error:
            if not is_passing(error):
                self.fail(error)
                raise
            self._journal.warning("upkeep_put_off", reason=str(error))
            self._next_checkpoint_ms = now_ms + RETRY_INTERVAL_MS
            # The logs that have not had their turn may have something to delete: they go on; then all are tried again.
            self._put_off = bool(self._upkeep)
            self._next_retention_ms = now_ms + (
                _UPKEEP_PAUSE_MS if self._put_off else RETRY_INTERVAL_MS
            )

    def _maintain_some(self, now_ms: int) -> None:
        """Go on with a round of upkeep, or begin one; the rest of the logs follow after requests had their turn."""
        waiting = self._upkeep or list(self._logs.values())
        some, self._upkeep = waiting[:UPKEEP_AT_ONCE], waiting[UPKEEP_AT_ONCE:]
        if self._upkeep:
            self._next_retention_ms = now_ms + _UPKEEP_PAUSE_MS
        elif self._put_off:
            self._next_retention_ms = now_ms + RETRY_INTERVAL_MS
            self._put_off = False
        self._maintain([log for log in some if self._logs.get(log.topic_partition) is log], now_ms)

    def _maintain(self, logs: Sequence[PartitionLog], now_ms: int) -> None:
        put_off: OSError | None = None
        for log in logs:
            try:
                log.expire_producers(now_ms)
                self._delete_old_segments(log, now_ms)
                log.maybe_roll(now_ms)
                log.maybe_write_caches()
            except StorageError as error:
                self._journal.error(
                    "retention_not_applied", partition=str(log.topic_partition), reason=str(error)
                )
            except OSError as error:
                if not is_passing(error):
                    raise
                put_off = error  # the other logs may have something that can be deleted
        self._remove_deleted()
        if put_off is not None:
            raise put_off

    def _delete_old_segments(self, log: PartitionLog, now_ms: int) -> None:
        deleted = log.delete_old_segments(now_ms)
        if deleted:
            self._shortened[log] = None
            self._journal.info(
                "old_segments_deleted",
                partition=str(log.topic_partition),
                segments=len(deleted),
                log_start_offset=log.log_start_offset,
            )

    def _remove_deleted(self) -> None:
        """Remove the files of deleted segments, once the new log starts are durable."""
        if self._shortened:
            self.write_checkpoints()
            for log in list(self._shortened):
                log.purge()
                del self._shortened[log]

    def delete_below_start(self, logs: Sequence[PartitionLog], now_ms: int) -> None:
        """Make log starts durable that were moved up, then remove the segments below them.

        Raises:
            OSError: They are not durable.
        """
        if self._failure is not None:
            raise self._failure
        self._shortened.update(dict.fromkeys(logs))
        for log in logs:
            try:
                log.delete_old_segments(now_ms)
            except StorageError as error:  # what cannot be read stays, below the log start
                self._journal.error(
                    "segments_not_deleted", partition=str(log.topic_partition), reason=str(error)
                )
        self._remove_deleted()

    def write_checkpoints(self) -> None:
        """Write how far logs are synced and where they start, if it changed."""
        points, starts = dict(self._recovery_points), dict(self._start_offsets)
        for partition, log in self._logs.items():
            key = _key(partition, self._topic_ids[partition])
            if log.synced_offset:
                points[key] = log.synced_offset
            if log.log_start_offset:
                starts[key] = log.log_start_offset
        # Starts first: a start that is older than the recovery point is harmless.
        if starts != self._start_offsets:
            self._write_offsets(START_FILE, starts)
            self._start_offsets = starts
        if points != self._recovery_points:
            self._write_offsets(RECOVERY_FILE, points)
            self._recovery_points = points

    def _read_offsets(self, name: str) -> dict[str, int] | None:
        lines = decode_checkpoint(name, self._files.read_file(name))
        if lines is None:
            return None
        return {key: int(offset) for key, _, offset in (line.rpartition(" ") for line in lines)}

    def _write_offsets(self, name: str, offsets: Mapping[str, int]) -> None:
        lines = (f"{key} {offset}" for key, offset in sorted(offsets.items()))
        self._files.write_file(name, encode_checkpoint(name, lines))

    # End

    def close(self, now_ms: int) -> None:
        """Sync and close all logs; last of all, mark the shutdown as clean if nothing is in doubt.

        No batch may be under way. After a failure the files are dropped, and the next start recovers.
        """
        assert self._batch is None, "finish the sync batch first"
        clean = self._loaded and not self._failed and self._failure is None
        for log in self._logs.values():
            try:
                log.close(now_ms)
            except OSError as error:
                clean = False
                self._journal.error(
                    "log_not_closed_clean", partition=str(log.topic_partition), reason=str(error)
                )
        if clean:
            self.write_checkpoints()
            self._files.write_file(CLEAN_FILE, encode_checkpoint(CLEAN_FILE, ()))


def _key(partition: TopicPartition, topic_id: bytes) -> str:
    return f"{partition.topic} {partition.partition} {topic_id.hex()}"


def _check_meta(files: FileSystem, cluster_id: str, node_id: int) -> None:
    wanted = {"version": _FORMAT, "cluster.id": cluster_id, "node.id": str(node_id)}
    content = files.read_file(META_FILE)
    if content is None:
        text = "".join(f"{key}={value}\n" for key, value in wanted.items())
        files.write_file(META_FILE, text.encode())
        return
    lines = content.decode("utf-8", "replace").splitlines()
    found = {
        key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)
    }
    for key, value in wanted.items():
        if found.get(key) != value:
            raise StorageError(
                f"{META_FILE} says {key}={found.get(key)}, this broker has {value}. The data directory belongs to "
                "another broker or version: give this one its own directory."
            )
