"""One group commit of a data directory."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from itertools import islice
from typing import Final

from headrace.core.log.files.sync import SyncTask
from headrace.core.log.partition_log import PartitionLog

LOGS_A_BATCH: Final = 500
"""The number of logs in one group commit. Collecting these logs, and answering their requests, takes some ten
milliseconds."""


class SyncBatch:
    """One group commit: the sync tasks of all logs that were dirty."""

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[tuple[PartitionLog, SyncTask]]) -> None:
        self.entries = entries

    @property
    def tasks(self) -> list[SyncTask]:
        """The tasks, for a shell that runs them in parallel instead of calling `run`."""
        return [task for _, task in self.entries]

    def run(self) -> None:
        """Run all tasks. Thread-safe.

        Raises:
            OSError: A task failed. Pass the error to `finish_sync`.
        """
        for _, task in self.entries:
            task.run()

    def finish(self) -> list[PartitionLog]:
        """Raise the `synced_offset` of the logs after `run`. Return these logs."""
        for log, task in self.entries:
            log.finish_sync(task)
        return [log for log, task in self.entries if not task.abandoned]

    def put_back(self) -> None:
        """Give the logs their tasks back after `run` has failed."""
        for log, task in self.entries:
            log.put_back(task)


def collect(dirty: MutableMapping[PartitionLog, None]) -> SyncBatch | None:
    """Remove the first logs from the dirty ones, and collect what has to be made durable; None if there is nothing."""
    entries: list[tuple[PartitionLog, SyncTask]] = []
    while dirty and not entries:
        for log in list(islice(dirty, LOGS_A_BATCH)):
            del dirty[log]
            task = log.start_sync()
            if task is not None:
                entries.append((log, task))
    return SyncBatch(entries) if entries else None
