"""Cleaning of all logs of a data directory, one round at a time: compaction, and removal of expired records.

The broker runs it in one thread:

1. `tick` looks at all compacted logs and all logs with expiring records when a check is due. It begins a round for the
   compacted log that needs it most, or for a log with expired records if no log needs compaction.
2. `start` returns the round. The shell calls its `run`, which does one step, in a thread if it has one.
3. `finish` installs the files that the step has completed. Until the round ends, `start` returns it again.

The file `cleaner-offset-checkpoint` says how far each log is clean. It is written after the last group of a round was
installed durably. If it is lost, or beyond what is known to be synced, the log is cleaned again from its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from headrace.core.log.cleaning.cleanable import plan_compaction
from headrace.core.log.cleaning.compaction import Compaction, CompactionPlan
from headrace.core.log.cleaning.expiry_cleaning import ExpiryCleaning, plan_expiry
from headrace.core.log.cleaning.rewriting import Rewriting
from headrace.core.log.files.checkpoints import decode_checkpoint, encode_checkpoint
from headrace.core.log.files.disk_errors import is_passing
from headrace.core.log.log_manager import LogManager
from headrace.core.log.partition_log import PartitionLog
from headrace.core.log.segments.replacement import discard_replacements
from headrace.errors import StorageError
from headrace.ports import FileSystem, Journal

CLEANER_FILE: Final = "cleaner-offset-checkpoint"
BACKOFF_MS: Final = 15_000
_IDLE: Final = 4
"""The factor by which checks are less frequent while there are no logs to clean."""
MAX_KEYS: Final = 400_000
"""The largest number of entries in the offset map: some 60 MB."""


class LogCleaner:
    """Cleans the logs of one manager. It is made before the logs are loaded."""

    def __init__(
        self,
        logs: LogManager,
        files: FileSystem,
        journal: Journal,
        *,
        backoff_ms: int = BACKOFF_MS,
        max_keys: int = MAX_KEYS,
    ) -> None:
        """Read how far the logs are clean.

        Args:
            logs: The logs.
            files: The data directory of the logs.
            journal: Logs rounds, and logs that cannot be compacted.
            backoff_ms: The interval of checks while no log needs a round, and the pause after a round that failed.
            max_keys: The largest number of entries in an offset map.
        """
        self.backoff_ms = backoff_ms
        self._logs = logs
        self._files = files
        self._journal = journal
        self._max_keys = max_keys
        self._clean_offsets = self._read()
        self._uncleanable: set[PartitionLog] = set()
        self._round: Rewriting | None = None
        self._running = False
        self._undiscarded: Rewriting | None = None
        """A round that has ended and left files. No round begins before these files are removed."""
        self._paused = False
        """Whether the next step of the round waits for the next check."""
        self._next_check_ms: int | None = None
        logs.on_truncation = self.truncated

    def _read(self) -> dict[str, int]:
        offsets: dict[str, int] = {}
        for line in decode_checkpoint(CLEANER_FILE, self._files.read_file(CLEANER_FILE)) or ():
            key, _, offset = line.rpartition(" ")
            # After a torn tail was cut off, what follows has never been cleaned, whatever its offsets.
            offsets[key] = min(int(offset), self._logs.recovery_point(key))
        return offsets

    def _write(self) -> None:
        known = {self._logs.checkpoint_key(partition) for partition in self._logs.logs}
        self._clean_offsets = {
            key: offset for key, offset in self._clean_offsets.items() if key in known
        }
        lines = (f"{key} {offset}" for key, offset in sorted(self._clean_offsets.items()))
        self._files.write_file(CLEANER_FILE, encode_checkpoint(CLEANER_FILE, lines))

    def clean_offset(self, log: PartitionLog) -> int:
        """Return the offset up to which a log is clean."""
        return self._clean_offsets.get(self._logs.checkpoint_key(log.topic_partition), 0)

    def truncated(self, log: PartitionLog, end_offset: int) -> None:
        """Make durable that a log is clean up to an offset at most: it is truncated there.

        Raises:
            OSError: The checkpoint could not be written.
        """
        if self.clean_offset(log) > end_offset:
            self._clean_offsets[self._logs.checkpoint_key(log.topic_partition)] = end_offset
            self._write()

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` has something to do next, in milliseconds; None for never."""
        return self._next_check_ms if self._round is None or self._paused else None

    @property
    def due(self) -> bool:
        """Whether `start` would return a round."""
        return self._round is not None and not self._running and not self._paused

    def tick(self, now_ms: int) -> None:
        """Begin a round if a check is due and a log needs one.

        Raises:
            OSError: The disk has failed.
        """
        if self._next_check_ms is None:
            self._next_check_ms = now_ms
        if now_ms < self._next_check_ms:
            return
        self._paused = False
        if self._round is not None:
            return
        logs = self._logs.logs.values()
        compacted = [log for log in logs if log.config.compacts]
        expiring = [log for log in logs if log.config.expires]
        self._next_check_ms = now_ms + self.backoff_ms * (1 if compacted or expiring else _IDLE)
        if self._logs.failure is not None:
            return
        try:
            self._discard_again()
            self._begin(compacted, expiring, now_ms)
        except OSError as error:
            if not is_passing(error):
                raise
            self._next_check_ms = now_ms + self.backoff_ms
            self._journal.warning("compaction_put_off", reason=str(error))

    def _discard_again(self) -> None:
        """Remove files that could not be removed before.

        A start would install a `.swap` file that outlives the next round, and so undo that round.

        Raises:
            OSError: The files are still there.
        """
        task = self._undiscarded
        if task is not None:
            discard_replacements(self._files, task.log.directory, task.log.owner)
            self._undiscarded = None

    def _begin(
        self, compacted: list[PartitionLog], expiring: list[PartitionLog], now_ms: int
    ) -> None:
        """Begin a round for the log that needs it most."""
        plan = self._most_needed(compacted, now_ms)
        if plan is not None:
            if self._ensure_recovery_point(plan.log, plan.end_offset):
                self._round = Compaction(self._files, plan, now_ms=now_ms, max_keys=self._max_keys)
        elif expiring:
            self._clean_expired(expiring, now_ms)

    def _ensure_recovery_point(self, log: PartitionLog, end_offset: int) -> bool:
        """Write the recovery points if the stored one is below an offset. Return false if the disk has no space."""
        key = self._logs.checkpoint_key(log.topic_partition)
        behind = self._logs.recovery_point(key) < end_offset
        return not behind or self._checkpoint(self._logs.write_checkpoints)

    def _clean_expired(self, logs: Iterable[PartitionLog], now_ms: int) -> None:
        for log in logs:
            if log.failure is not None or log in self._uncleanable:
                continue
            segments = plan_expiry(log, now_ms)
            if segments and self._ensure_recovery_point(log, segments[-1].end_offset):
                self._round = ExpiryCleaning(self._files, log, segments, now_ms)
                return

    def _most_needed(self, logs: Iterable[PartitionLog], now_ms: int) -> CompactionPlan | None:
        plans: list[CompactionPlan] = []
        for log in logs:
            if log.failure is not None or log in self._uncleanable:
                continue
            try:
                plan = plan_compaction(log, self.clean_offset(log), now_ms)
            except StorageError as error:
                self._give_up(log, error)
                continue
            if plan is not None:
                plans.append(plan)
        return max(plans, key=lambda plan: plan.dirty_ratio, default=None)

    def start(self) -> Rewriting | None:
        """Return the round whose next step is to be run, None if there is none or a step is running."""
        if not self.due:
            return None
        self._running = True
        return self._round

    def finish(self, task: Rewriting, error: Exception | None, now_ms: int) -> None:
        """Process the outcome of a step.

        Raises:
            OSError: The disk has failed. The caller takes the directory out of service.
        """
        self._running = False
        log = task.log
        if self._logs.get(log.topic_partition) is not log or log.failure is not None:
            self._end(now_ms)  # deleted meanwhile; errors are expected
            self._discard(task)
            return
        if error is not None and task.half_done:
            self._pause_before_rename(task, error, now_ms)
            return
        log.settle()
        if log.segments.start_offset > task.segments[0].base_offset:
            self._discard(task)  # retention has removed a segment of the round
            self._end(now_ms)
            return
        if error is not None:
            self._failed(task, error, now_ms)
            return
        try:
            self._install(task)
            if task.finished:
                if task.clean_end_offset is not None:
                    key = self._logs.checkpoint_key(log.topic_partition)
                    self._clean_offsets[key] = task.clean_end_offset
                    self._checkpoint(self._write)
                self._report(task)
                self._end(now_ms)
        except OSError:
            self._end(now_ms, self.backoff_ms)
            raise

    def _checkpoint(self, write: Callable[[], object]) -> bool:
        """Write a checkpoint. On a full disk it is left for later. Returns whether it was written."""
        try:
            write()
        except OSError as error:
            if not is_passing(error):
                raise
            self._journal.warning("checkpoint_not_written", reason=str(error))
            return False
        return True

    def _install(self, task: Rewriting) -> None:
        for segment, expiries in task.learned:
            segment.expiries.learn(expiries, segment.size, keep=segment.loaded)
        task.learned.clear()
        replacement, task.replacement = task.replacement, None
        if replacement is not None:
            task.log.install(replacement)

    def _end(self, now_ms: int, pause_ms: int = 0) -> None:
        self._round, self._paused = None, False
        self._next_check_ms = now_ms + pause_ms

    def _failed(self, task: Rewriting, error: Exception, now_ms: int) -> None:
        if isinstance(error, OSError):
            if not is_passing(error):  # otherwise only the round ends: its output is not needed
                self._end(now_ms, self.backoff_ms)
                raise error
            self._journal.warning(
                "log_not_compacted", partition=str(task.log.topic_partition), reason=str(error)
            )
        else:
            self._give_up(task.log, error)
        self._discard(task)
        self._end(now_ms, self.backoff_ms)

    def _pause_before_rename(self, task: Rewriting, error: Exception, now_ms: int) -> None:
        """Pause a round whose installed file could not be renamed for a passing reason."""
        if not isinstance(error, OSError) or not is_passing(error):
            self._end(now_ms, self.backoff_ms)
            raise error
        self._journal.warning(
            "log_not_compacted", partition=str(task.log.topic_partition), reason=str(error)
        )
        self._paused, self._next_check_ms = True, now_ms + self.backoff_ms

    def _discard(self, task: Rewriting) -> None:
        """Remove the output of an unfinished round, even if another topic has the directory now."""
        if self._logs.failure is not None:
            return
        try:
            discard_replacements(self._files, task.log.directory, task.log.owner)
        except OSError as error:
            if not is_passing(error):
                raise
            self._undiscarded = task
            self._journal.warning(
                "compaction_left_files", partition=str(task.log.topic_partition), reason=str(error)
            )

    def _give_up(self, log: PartitionLog, error: Exception) -> None:
        self._uncleanable.add(log)
        self._journal.error(
            "log_cannot_be_compacted", partition=str(log.topic_partition), reason=repr(error)
        )

    def _report(self, task: Rewriting) -> None:
        stats = task.stats
        expired = task.clean_end_offset is None
        if expired and stats.records_before == stats.records_after:
            return
        self._journal.info(
            "expired_records_removed" if expired else "log_compacted",
            partition=str(task.log.topic_partition),
            clean_offset=task.segments[-1].end_offset if expired else task.clean_end_offset,
            records=stats.records_before,
            records_kept=stats.records_after,
            bytes=stats.bytes_before,
            bytes_kept=stats.bytes_after,
        )
