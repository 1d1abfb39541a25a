"""One group commit of a data directory."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.log.files.sync import SyncTask
from headrace.core.log.partition_log import PartitionLog


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
