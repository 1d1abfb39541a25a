"""Periodic work on the logs of a data directory: retention, rolls by age, checkpoints.

Segments are deleted in this order: (1) The log start offset is raised. (2) A checkpoint makes it durable. (3) The files
are removed. A crash in between leaves segments below the log start offset, which the next start removes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace.core.log.files.disk_errors import is_passing
from headrace.core.log.partition_log import PartitionLog
from headrace.errors import StorageError
from headrace.ports import Journal
from headrace.types import TopicPartition

CHECKPOINT_INTERVAL_MS: Final = 60_000
RETENTION_INTERVAL_MS: Final = 300_000
"""The interval of retention in milliseconds; the default, which is Kafka's."""
RETRY_INTERVAL_MS: Final = 10_000
"""The time after which work that a full disk did not allow is retried, in milliseconds."""

UPKEEP_AT_ONCE: Final = 16
"""The number of logs that one tick works on. The rolls and deletions of thousands of logs at once would delay requests.
"""
_PAUSE_MS: Final = 20


class Upkeep:
    """Does the periodic work on the logs of one data directory."""

    __slots__ = (
        "_journal",
        "_logs",
        "_next_checkpoint_ms",
        "_next_retention_ms",
        "_put_off",
        "_shortened",
        "_waiting",
        "_write_checkpoints",
        "retention_interval_ms",
    )

    def __init__(
        self,
        logs: Mapping[TopicPartition, PartitionLog],
        write_checkpoints: Callable[[], object],
        journal: Journal,
    ) -> None:
        """Prepare to work on `logs`, to which others add and from which they remove. Nothing is due before `begin`."""
        self._logs = logs
        self._write_checkpoints = write_checkpoints
        self._journal = journal
        self.retention_interval_ms = RETENTION_INTERVAL_MS
        self._next_checkpoint_ms: int | None = None
        self._next_retention_ms: int | None = None
        self._waiting: list[PartitionLog] = []
        """The logs that are left in this round."""
        self._put_off = False
        """Whether this round has to be repeated soon because the disk was full."""
        self._shortened: dict[PartitionLog, None] = {}
        """The logs whose log start offset was raised while old files are still there."""

    def begin(self, now_ms: int) -> None:
        """Begin the intervals now."""
        self._next_checkpoint_ms = now_ms + CHECKPOINT_INTERVAL_MS
        self._next_retention_ms = now_ms

    def forget(self, log: PartitionLog) -> None:
        """Stop working on a deleted log."""
        self._shortened.pop(log, None)

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` has something to do next, in milliseconds; None for never."""
        checkpoint, retention = self._next_checkpoint_ms, self._next_retention_ms
        if checkpoint is None or (retention is not None and retention < checkpoint):
            return retention
        return checkpoint

    def tick(self, now_ms: int) -> None:
        """Apply retention, roll by age, expire producers, and write checkpoints, each when it is due.

        Raises:
            OSError: The disk refused an operation for another reason than being full.
        """
        try:
            if self._next_retention_ms is not None and now_ms >= self._next_retention_ms:
                self._next_retention_ms = now_ms + self.retention_interval_ms
                self._look_at_some(now_ms)
            if self._next_checkpoint_ms is not None and now_ms >= self._next_checkpoint_ms:
                self._next_checkpoint_ms = now_ms + CHECKPOINT_INTERVAL_MS
                self._write_checkpoints()
        except OSError as error:
            if not is_passing(error):
                raise
            self._journal.warning("upkeep_put_off", reason=str(error))
            self._next_checkpoint_ms = now_ms + RETRY_INTERVAL_MS
            # The remaining logs may have something to delete, so the round continues. Then all logs are tried again.
            self._put_off = bool(self._waiting)
            self._next_retention_ms = now_ms + (_PAUSE_MS if self._put_off else RETRY_INTERVAL_MS)

    def _look_at_some(self, now_ms: int) -> None:
        """Continue a round, or begin one. The rest of the logs follow after requests had their turn."""
        waiting = self._waiting or list(self._logs.values())
        some, self._waiting = waiting[:UPKEEP_AT_ONCE], waiting[UPKEEP_AT_ONCE:]
        if self._waiting:
            self._next_retention_ms = now_ms + _PAUSE_MS
        elif self._put_off:
            self._next_retention_ms = now_ms + RETRY_INTERVAL_MS
            self._put_off = False
        self._look_at([log for log in some if self._logs.get(log.topic_partition) is log], now_ms)

    def _look_at(self, logs: Sequence[PartitionLog], now_ms: int) -> None:
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
                put_off = error  # the other logs may have something to delete
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
        """Remove the files of deleted segments once the new log start offsets are durable."""
        if self._shortened:
            self._write_checkpoints()
            for log in list(self._shortened):
                log.purge()
                del self._shortened[log]

    def delete_below_start(self, logs: Sequence[PartitionLog], now_ms: int) -> None:
        """Make raised log start offsets durable, then remove the segments below them.

        Raises:
            OSError: The log start offsets are not durable.
        """
        self._shortened.update(dict.fromkeys(logs))
        for log in logs:
            try:
                log.delete_old_segments(now_ms)
            except (
                StorageError
            ) as error:  # segments that cannot be read stay, below the log start offset
                self._journal.error(
                    "segments_not_deleted", partition=str(log.topic_partition), reason=str(error)
                )
        self._remove_deleted()
