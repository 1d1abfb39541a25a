"""Logs of durability `os` are written out before they are synced, so that who waits for a sync waits not for theirs.

(1) With `os` hundreds of megabytes may have been written since the last sync, (2) one group commit is in flight at a
time, (3) a transaction that ends meanwhile waits, for the record of its coordinator, until all of them are on the disk.
So a shell that has a thread for it syncs their files beside the group commits, and only then the logs take part in one,
which finds next to nothing left. What fails here is not lost: a file that could not be synced refuses the next sync.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any, Final

from headrace.broker.log_dirs.log_dir import LogDir
from headrace.core.log import PartitionLog

_PASSES: Final = 2
"""The second one takes what was appended during the first."""


class WriteOut:
    """The files of some logs. `run` may happen in any thread, at any time."""

    disks = 1

    def __init__(self, logs: Iterable[tuple[LogDir, PartitionLog]]) -> None:
        """Collect what lies in files by now and is not synced."""
        self.logs = list(logs)
        self._files = [file for _, log in self.logs for file in log.unsynced_files()]

    @property
    def tasks(self) -> list[WriteOut]:
        """Itself: one file after another, for others want the disk, too."""
        return [self]

    def run(self) -> None:
        """Write the dirty pages of the logs to the disk."""
        for _ in range(_PASSES):
            for file in self._files:
                with contextlib.suppress(OSError):
                    file.sync()


class WriteOuts:
    """The write-outs of a broker's directories. A shell runs them as it runs group commits."""

    def __init__(self, log_dirs: Iterable[LogDir]) -> None:
        """Make logs wait here when they are due. The creator of this object has to run its write-outs."""
        self._log_dirs = [log_dir for log_dir in log_dirs if not log_dir.in_memory]
        for log_dir in self._log_dirs:
            log_dir.background.waiting = {}

    @property
    def sync_due(self) -> bool:
        """Whether `start_sync` would return something."""
        return any(log_dir.background.waiting for log_dir in self._log_dirs)

    def start_sync(self) -> WriteOut | None:
        """Return what is to be written out, or None."""
        due: list[tuple[LogDir, PartitionLog]] = []
        for log_dir in self._log_dirs:
            waiting, log_dir.background.waiting = log_dir.background.waiting or {}, {}
            due += [(log_dir, log) for log in waiting if log_dir.failure is None]
        return WriteOut(due) if due else None

    def finish_sync(self, batch: Any, error: OSError | None, now_ms: int) -> None:  # noqa: ARG002 - of a group commit
        """Have the logs take part in the next group commit, but for those that were deleted meanwhile."""
        for log_dir, log in batch.logs:
            if log_dir.logs.get(log.topic_partition) is log:
                log_dir.logs.mark_dirty(log)
