"""The compaction of the broker's logs: one step at a time, and the log directories in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from headrace.broker.log_dirs.log_dir import LogDir
from headrace.core.log import Rewriting
from headrace.errors import StorageError


class Compactions:
    """Passes steps of compactions to the shell, or runs them itself for files in memory."""

    __slots__ = ("_fail", "_running", "_turns")

    def __init__(self, dirs: Iterable[LogDir], fail: Callable[[LogDir, OSError], object]) -> None:
        """Compact the logs in `dirs`. `fail` is called with a directory whose disk has failed."""
        self._fail = fail
        self._turns = deque(dirs)
        """The directories in turn: one that has done a step moves to the end."""
        self._running: LogDir | None = None

    @property
    def due(self) -> bool:
        """Whether `start` would return something to run in a thread."""
        return self._running is None and any(map(_has_work, self._turns))

    def start(self) -> Rewriting | None:
        """Return the compaction whose next step is due; None if there is none."""
        if not self.due:
            return None
        self._running = next(filter(_has_work, self._turns))
        return self._running.cleaner.start()

    def finish(self, task: Rewriting, error: Exception | None, now_ms: int) -> None:
        """Complete a step: rewritten segments replace the old ones."""
        log_dir, self._running = self._running, None
        assert log_dir is not None, "no step is running"
        self._turns.remove(log_dir)
        self._turns.append(log_dir)
        self._finish(log_dir, task, error, now_ms)

    def _finish(
        self, log_dir: LogDir, task: Rewriting, error: Exception | None, now_ms: int
    ) -> None:
        try:
            log_dir.cleaner.finish(task, error, now_ms)
        except OSError as failure:
            self._fail(log_dir, failure)

    def step_in_memory(self, log_dir: LogDir, now_ms: int) -> None:
        """Run one step at once. Files in memory need no waiting, and must not be used by two threads."""
        task = log_dir.cleaner.start()
        if task is None:
            return
        error: Exception | None = None
        try:
            task.run()
        except (OSError, StorageError) as raised:
            error = raised
        self._finish(log_dir, task, error, now_ms)


def _has_work(log_dir: LogDir) -> bool:
    return log_dir.cleaner.due and log_dir.failure is None and not log_dir.in_memory
