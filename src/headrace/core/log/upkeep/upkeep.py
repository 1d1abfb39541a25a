"""What the logs of a directory need in the course of time: retention, rolls by age, checkpoints.

Segments are deleted in this order: the log start moves up, a checkpoint makes that durable, the files go. A crash in
between leaves segments below the log start, which the next start removes.
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
"""How often logs are looked at for what can be deleted; the default, which is Kafka's."""
RETRY_INTERVAL_MS: Final = 10_000
"""When what a full disk did not allow is tried again."""

UPKEEP_AT_ONCE: Final = 16
"""Logs that one tick looks at: with thousands, rolls and deletions at the same time would hold requests up."""
_PAUSE_MS: Final = 20


class Upkeep:
    """Looks after the logs of one directory."""

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
        """Look after `logs`, which others add to and take from; nothing is due before `begin`."""
        self._logs = logs
        self._write_checkpoints = write_checkpoints
        self._journal = journal
        self.retention_interval_ms = RETENTION_INTERVAL_MS
        self._next_checkpoint_ms: int | None = None
        self._next_retention_ms: int | None = None
        self._waiting: list[PartitionLog] = []
        """Logs that have yet to be looked at in this round."""
        self._put_off = False
        """Whether this round has to be repeated soon: the disk was full."""
        self._shortened: dict[PartitionLog, None] = {}
        """Logs whose start has moved up and whose old files are still there."""

    def begin(self, now_ms: int) -> None:
        """Count the intervals from now on."""
        self._next_checkpoint_ms = now_ms + CHECKPOINT_INTERVAL_MS
        self._next_retention_ms = now_ms

    def forget(self, log: PartitionLog) -> None:
        """Leave a deleted log alone."""
        self._shortened.pop(log, None)

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
            OSError: The disk refused, for another reason than that it is full.
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
            # The logs that have not had their turn may have something to delete: they go on; then all are tried again.
            self._put_off = bool(self._waiting)
            self._next_retention_ms = now_ms + (_PAUSE_MS if self._put_off else RETRY_INTERVAL_MS)

    def _look_at_some(self, now_ms: int) -> None:
        """Go on with a round, or begin one; the rest of the logs follow after requests had their turn."""
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
            self._write_checkpoints()
            for log in list(self._shortened):
                log.purge()
                del self._shortened[log]

    def delete_below_start(self, logs: Sequence[PartitionLog], now_ms: int) -> None:
        """Make log starts durable that were moved up, then remove the segments below them.

        Raises:
            OSError: They are not durable.
        """
        self._shortened.update(dict.fromkeys(logs))
        for log in logs:
            try:
                log.delete_old_segments(now_ms)
            except StorageError as error:  # what cannot be read stays, below the log start
                self._journal.error(
                    "segments_not_deleted", partition=str(log.topic_partition), reason=str(error)
                )
        self._remove_deleted()
