"""The logs of this broker: group commit, compaction, and the errors of log directories.

A group commit:

    1. Appends write batches to the page cache. Their requests wait for the high watermarks of the partitions.
    2. `start_sync` takes all logs that were written to. The shell syncs them in a thread; appends continue meanwhile.
    3. `finish_sync` returns the logs that are synced. `Replicas` moves their high watermarks, and the broker completes
       produces, fetches and coordinator requests.

After the first I/O error of a log directory the broker acknowledges nothing more in it, because the kernel may have
dropped the data that it could not write. All requests that wait for the directory, and all later ones, are answered
with KAFKA_STORAGE_ERROR. The partitions in other directories stay in service. If the directory is the first one, which
holds the internal topics and the metadata, the shell ends the process. A full disk is no such error: the batch was not
written, and everything else is unchanged (`disk_space`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.broker.log_dirs.compactions import Compactions
from headrace.broker.log_dirs.group_commit import CommitPart, FailedSync, GroupCommit
from headrace.broker.log_dirs.log_dir import LogDir
from headrace.broker.log_dirs.log_dirs import LogDirs
from headrace.core.log import (
    DESCRIPTORS,
    NO_SPACE,
    PartitionLog,
    Rewriting,
    could_not_open,
    is_passing,
)
from headrace.errors import ApiError, StorageUnavailableError
from headrace.ports import Journal

MORE_FILES: Final = (
    "clients send it again; if this goes on, raise the limit on open files (ulimit -n, LimitNOFILE)"
)
OPEN_TO_BROKER: Final = (
    "let the user of the broker open its files, and look for free memory; clients send it again"
)


class LogStore:
    """The log directories of this broker, and their logs."""

    def __init__(self, dirs: LogDirs, journal: Journal) -> None:
        """Begin with opened directories; a `PartitionLoader` loads their logs."""
        self.dirs = dirs
        self.failure: OSError | None = None
        """The error that took the first log directory out of service, and the broker with it; None while it is in
        service. Another process of this broker is such an error, too.
        """
        self.on_failed: Callable[[LogDir], object] = lambda _: None
        """Called at once with a log directory that has gone out of service."""
        self._serving = list(dirs)
        """The log directories that have not failed."""
        dirs.on_open = self._serving.append
        self._journal = journal
        self._commit: GroupCommit | None = None
        self._compactions = Compactions(dirs, self.fail)

    # Errors

    def refused(
        self, log_dir: LogDir, error: OSError, now_ms: int | None, size: int = 0
    ) -> ApiError:
        """Handle an error of the file system, and return the error for the client.

        Args:
            log_dir: The log directory. It goes out of service, unless the error is temporary.
            error: The error.
            now_ms: The time; None if the error came from no append.
            size: The number of bytes that could not be written.
        """
        if not is_passing(error):
            self.fail(log_dir, error)
        elif error.errno not in NO_SPACE:
            # No state has changed. The next attempt may succeed.
            crowded = error.errno in DESCRIPTORS
            event = "too_many_open_files" if crowded else "file_not_opened"
            self._journal.warning(
                event,
                directory=log_dir.name,
                error=str(error),
                remedy=MORE_FILES if crowded else OPEN_TO_BROKER,
            )
            if crowded and now_ms is not None:
                log_dir.relieve(now_ms)
        elif now_ms is not None:
            return log_dir.space.ran_out(error, size, now_ms)
        return StorageUnavailableError(str(error))

    def fail(self, log_dir: LogDir, error: OSError) -> None:
        """Take a log directory out of service: all waiting and later produces to its partitions fail."""
        log_dir.logs.fail(error)
        if log_dir in self._serving:
            self._serving.remove(log_dir)
        if log_dir is self.dirs.first:  # the broker ends
            self.failure = log_dir.failure
        self.on_failed(log_dir)

    # Group commit

    @property
    def sync_due(self) -> bool:
        """Whether `start_sync` would return something."""
        if self.failure is not None:
            return True
        if self._commit is None:
            for log_dir in self._serving:  # asked after every request, hence spelled out
                if log_dir.logs.sync_due:
                    return True
        return False

    def start_sync(self) -> GroupCommit | FailedSync | None:
        """Return the logs to sync; None if there are none, or if a sync is in flight."""
        if self.failure is not None:
            return FailedSync(self.failure)
        if self._commit is not None:
            return None
        parts = [
            CommitPart(log_dir, batch)
            for log_dir in self._serving
            if (batch := log_dir.logs.start_sync()) is not None
        ]
        if parts:
            self._commit = GroupCommit(parts)
        return self._commit

    def finish_sync(
        self, commit: GroupCommit | FailedSync, error: OSError | None, now_ms: int
    ) -> list[PartitionLog]:
        """Complete a sync. Directories with an error go out of service.

        Args:
            commit: What `start_sync` returned.
            error: The error of the sync as a whole; None if there is none. A part has the error of its directory.
            now_ms: The time.

        Returns:
            The logs that are synced.
        """
        synced: list[PartitionLog] = []
        if isinstance(commit, FailedSync):
            return synced
        self._commit = None
        for part in commit.parts:
            failure = error or part.error
            logs = part.log_dir.logs
            synced += logs.finish_sync(part.batch, failure)
            if logs.high_watermarks.follows_sync:
                logs.high_watermarks.moved(now_ms)
            if failure is not None:
                self._not_synced(part, failure, now_ms)
        return synced

    def _not_synced(self, part: CommitPart, error: OSError, now_ms: int) -> None:
        """Take the directory out of service. If the sync could not begin, sync its logs later instead."""
        log_dir = part.log_dir
        if not could_not_open(error):
            self.fail(log_dir, error)
            return
        self._journal.warning("sync_put_off", directory=log_dir.name, reason=str(error))
        for log, _ in part.batch.entries:
            if log_dir.logs.get(log.topic_partition) is log:
                log_dir.background.again(log, now_ms)

    # Compaction

    @property
    def compaction_due(self) -> bool:
        """Whether `start_compaction` would return something, to be run in a thread."""
        return self.failure is None and self._compactions.due

    def start_compaction(self) -> Rewriting | None:
        """Return the compaction of which to run a step; None if there is none."""
        return self._compactions.start() if self.failure is None else None

    def finish_compaction(self, task: Rewriting, error: Exception | None, now_ms: int) -> None:
        """Complete a step of a compaction: the rewritten segments replace the old ones."""
        self._compactions.finish(task, error, now_ms)

    # Time

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` has something to do next; None if there is no such time."""
        if self.failure is not None:
            return None
        earliest: int | None = None
        for log_dir in self._serving:
            at = log_dir.next_deadline_ms
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    def tick(self, now_ms: int) -> None:
        """Do in each directory everything whose deadline has passed."""
        for log_dir in list(self._serving):
            try:
                log_dir.tick(now_ms)
            except OSError as error:
                self.refused(log_dir, error, now_ms)
            if log_dir.in_memory:
                self._compactions.step_in_memory(log_dir, now_ms)

    def forget_losses(self) -> None:
        """Forget which records a power cut may have removed: the replicas have left the in-sync replicas."""
        for log_dir in list(self._serving):
            self._forget_losses(log_dir)
        self.dirs.on_open = self._storage_opened

    def _storage_opened(self, log_dir: LogDir) -> None:
        """Use the directory of a storage that no topic had before, so that it has lost nothing."""
        self._serving.append(log_dir)
        self._forget_losses(log_dir)

    def _forget_losses(self, log_dir: LogDir) -> None:
        if log_dir.unsynced is not None:
            try:
                log_dir.unsynced.begin()
            except OSError as error:
                self.fail(log_dir, error)

    def close(self, now_ms: int) -> None:
        """Sync and close all logs, and mark the shutdown as clean in each directory that has not failed.

        Raises:
            OSError: The first directory could not be closed clean.
        """
        for log_dir in self.dirs:
            if log_dir is not self.dirs.first:
                try:
                    log_dir.logs.close(now_ms)
                except OSError as error:
                    self._journal.error(
                        "log_directory_not_closed_clean", directory=log_dir.name, error=str(error)
                    )
        self.dirs.first.logs.close(now_ms)
