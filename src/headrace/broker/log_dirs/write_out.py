"""Writes out logs of durability `os` before their sync, so that other requests do not wait for it.

Without this: (1) Clients write hundreds of megabytes with durability `os`. (2) A group commit syncs them; only one
group commit is in flight at a time. (3) A transaction ends meanwhile. The record of its coordinator waits for the next
group commit, until all these megabytes are on the disk.

So a server with a spare thread syncs the files of these logs beside the group commits. Afterwards the logs take part in
a group commit, which has little left to write. An error in the thread is not lost: a file that could not be synced
refuses the next sync.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Final

from headrace.broker.log_dirs.log_dir import LogDir
from headrace.core.log import PartitionLog

_PASSES: Final = 2
"""The number of passes. The second one writes what was appended during the first."""


class WriteOut:
    """The files of some logs. `run` may be called in any thread, at any time."""

    disks = 1

    def __init__(self, logs: Iterable[tuple[LogDir, PartitionLog]]) -> None:
        """Collect the unsynced bytes that are in files now."""
        self.logs = list(logs)
        self._files = [file for _, log in self.logs for file in log.unsynced_files()]

    @property
    def tasks(self) -> list[WriteOut]:
        """The write-out itself: one file after another, because other work needs the disk, too."""
        return [self]

    def run(self) -> None:
        """Write the dirty pages of the logs to the disk."""
        for _ in range(_PASSES):
            for file in self._files:
                with contextlib.suppress(OSError):
                    file.sync()


class WriteOuts:
    """The write-outs of a broker's directories. A shell runs them like group commits."""

    def __init__(self, log_dirs: Iterable[LogDir]) -> None:
        """Collect the due logs here. The creator of this object has to run the write-outs."""
        self._log_dirs = [log_dir for log_dir in log_dirs if not log_dir.in_memory]
        for log_dir in self._log_dirs:
            log_dir.background.waiting = {}

    @property
    def sync_due(self) -> bool:
        """Whether `start_sync` would return something."""
        return any(log_dir.background.waiting for log_dir in self._log_dirs)

    def start_sync(self) -> WriteOut | None:
        """Return the logs to write out, or None."""
        due: list[tuple[LogDir, PartitionLog]] = []
        for log_dir in self._log_dirs:
            waiting, log_dir.background.waiting = log_dir.background.waiting or {}, {}
            due += [(log_dir, log) for log in waiting if log_dir.failure is None]
        return WriteOut(due) if due else None

    def finish_sync(self, batch: Any, error: OSError | None, now_ms: int) -> None:  # noqa: ARG002 - of a group commit
        """Let the logs take part in the next group commit, except those that were deleted meanwhile."""
        for log_dir, log in batch.logs:
            if log_dir.logs.get(log.topic_partition) is log:
                log_dir.logs.mark_dirty(log)
