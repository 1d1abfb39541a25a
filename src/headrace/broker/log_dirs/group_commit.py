"""One group commit: a part for each log directory that has something to sync, each with an outcome of its own."""

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
    """Syncs files of one log; an error is the affair of their directory alone."""

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
    """Everything that is synced together."""

    __slots__ = ("parts", "tasks")

    def __init__(self, parts: Sequence[CommitPart]) -> None:
        self.parts = parts
        self.tasks = [_Task(part, task) for part in parts for task in part.batch.tasks]
        """For a shell that runs them in threads instead of calling `run`; in any order."""

    @property
    def disks(self) -> int:
        """How many disks have something to do, as far as directories are disks."""
        return len(self.parts)

    def run(self) -> None:
        """Run all tasks; thread-safe."""
        for task in self.tasks:
            task.run()


class FailedSync:
    """Stands for a sync after the broker has failed, so that the shell learns of it in the usual way."""

    __slots__ = ("error",)

    disks = 1

    def __init__(self, error: OSError) -> None:
        self.error = error

    @property
    def tasks(self) -> list[FailedSync]:
        """Itself, for a shell that runs the tasks of a batch one by one."""
        return [self]

    def run(self) -> None:
        """Raise the error that made the broker fail."""
        raise self.error
