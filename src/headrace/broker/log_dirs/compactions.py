"""Compaction of the broker's logs: one step at a time, and the log directories take turns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from headrace.broker.log_dirs.log_dir import LogDir
from headrace.core.log import Rewriting
from headrace.errors import StorageError


class Compactions:
    """Hands steps of compaction to the shell, or does them itself where there is no disk to wait for."""

    __slots__ = ("_fail", "_running", "_turns")

    def __init__(self, dirs: Iterable[LogDir], fail: Callable[[LogDir, OSError], object]) -> None:
        """Compact the logs in `dirs`. `fail` is called for a directory whose disk has failed."""
        self._fail = fail
        self._turns = deque(dirs)
        """The directory that has done a step goes to the end."""
        self._running: LogDir | None = None

    @property
    def due(self) -> bool:
        """Whether `start` would return something, to be run in a thread."""
        return self._running is None and any(map(_has_work, self._turns))

    def start(self) -> Rewriting | None:
        """Return a round of compaction of which a step is to be run, None if there is none."""
        if not self.due:
            return None
        self._running = next(filter(_has_work, self._turns))
        return self._running.cleaner.start()

    def finish(self, task: Rewriting, error: Exception | None, now_ms: int) -> None:
        """Take note of a step's outcome: rewritten segments take the place of the old ones."""
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
        """Run one step at once: with files in memory it waits for nothing, and they are not for two threads."""
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
