"""One group commit: a part for each log directory with logs to sync, each with its own result."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.broker.log_dirs.log_dir import LogDir
from headrace.core.log import SyncBatch, SyncTask, could_not_open


class CommitPart:
    """The part of a group commit in one log directory."""

    __slots__ = ("batch", "error", "log_dir")

    def __init__(self, log_dir: LogDir, batch: SyncBatch) -> None:
        self.log_dir = log_dir
        self.batch = batch
        self.error: OSError | None = None
        """The error for which the directory has failed, or could not be synced now; None if all logs are synced."""


class _Task:
    """Syncs the files of one log. An error affects only their directory."""

    __slots__ = ("_part", "_task")

    def __init__(self, part: CommitPart, task: SyncTask) -> None:
        self._part = part
        self._task = task

    def run(self) -> None:
        try:
            self._task.run()
        except OSError as error:
            if self._part.error is None or could_not_open(self._part.error):
                self._part.error = error


class GroupCommit:
    """All parts that are synced together."""

    __slots__ = ("parts", "tasks")

    def __init__(self, parts: Sequence[CommitPart]) -> None:
        self.parts = parts
        self.tasks = [_Task(part, task) for part in parts for task in part.batch.tasks]
        """The syncs one by one, in any order, for a shell that runs them in threads in place of `run`."""

    @property
    def disks(self) -> int:
        """The number of directories with logs to sync, each of which is treated as a disk."""
        return len(self.parts)

    def run(self) -> None:
        """Run all tasks; thread-safe."""
        for task in self.tasks:
            task.run()


class FailedSync:
    """A sync that raises the error of a failed broker, so that the shell learns of it."""

    __slots__ = ("error",)

    disks = 1

    def __init__(self, error: OSError) -> None:
        self.error = error

    @property
    def tasks(self) -> list[FailedSync]:
        """The sync itself as the only task."""
        return [self]

    def run(self) -> None:
        """Raise the error that made the broker fail."""
        raise self.error
