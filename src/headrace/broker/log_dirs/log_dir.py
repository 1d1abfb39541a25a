"""One log directory: its logs, their syncs and compactions, and the space on its disk.

A broker has one or several directories, each usually on a disk of its own. An I/O error takes only this directory out
of service. A full disk stops only the produces to its partitions.
"""

from __future__ import annotations

from headrace.broker.log_dirs.background_sync import RETRY_INTERVAL_MS, BackgroundSync
from headrace.broker.log_dirs.disk_space import DiskSpace
from headrace.broker.log_dirs.unsynced_topics import UnsyncedTopics
from headrace.config.broker import BrokerConfig
from headrace.core.log import LogCleaner, LogManager, RunTasks, Shared, run_in_turn
from headrace.core.meta_properties import read_meta
from headrace.ports import FileSystem, Journal, LogDirectory


class LogDir:
    """A log directory: its logs, its space, and its background syncs."""

    __slots__ = (
        "_relieved_ms",
        "background",
        "cleaner",
        "files",
        "in_memory",
        "is_new",
        "logs",
        "name",
        "space",
        "unsynced",
    )

    def __init__(
        self,
        files: FileSystem,
        config: BrokerConfig,
        journal: Journal,
        *,
        cluster_id: str,
        new_id: str,
        run_tasks: RunTasks = run_in_turn,
        shared: Shared | None = None,
        unsynced: UnsyncedTopics | None = None,
    ) -> None:
        """Lock the directory. `logs.load` opens its logs.

        Args:
            files: The directory.
            config: The broker's configuration.
            journal: Receives the events of repairs and failures.
            cluster_id: The id of the cluster to which the directory has to belong.
            new_id: The id for a directory without one.
            run_tasks: Runs the syncs of a recovery.
            shared: The limits that this directory shares with others; None for limits of its own. Files in memory do
                not count as open files.
            unsynced: The topics with records that a power cut may lose; None without a cluster.

        Raises:
            StorageError: The directory belongs to another broker.
            OSError: A file operation failed.
        """
        directory = files.describe()
        if directory.in_memory and shared is not None:
            shared = shared.of_memory()
        self.files = files
        self.name = directory.name
        self.in_memory = directory.in_memory
        self.is_new = read_meta(files) is None
        """Whether the directory was never used before this process."""
        self.unsynced = None if directory.in_memory else unsynced
        """The topics with records that a power cut may lose; None without a cluster, and for files in memory."""
        if self.is_new and self.unsynced is not None:
            self.unsynced.begin_new()
        self.logs = LogManager.open(
            files,
            cluster_id=cluster_id,
            node_id=config.broker_id,
            journal=journal,
            run_tasks=run_tasks,
            new_id=new_id,
            shared=shared,
        )
        if self.unsynced is not None:
            self.unsynced.opened()
        self.cleaner = LogCleaner(
            self.logs, files, journal, backoff_ms=config.log_cleaner_backoff_ms
        )
        self.background = BackgroundSync()
        self._relieved_ms = 0
        self.space = DiskSpace(files, config.headrace_log_dir_min_free_bytes, journal)
        self.logs.upkeep.retention_interval_ms = config.log_retention_check_interval_ms
        self.logs.high_watermarks.interval_ms = config.replica_high_watermark_checkpoint_interval_ms

    @property
    def directory_id(self) -> str:
        """The id of the directory in the metadata store."""
        return self.logs.directory_id

    @property
    def failure(self) -> OSError | None:
        """The error that took the directory out of service; None while it is in service."""
        return self.logs.failure

    def describe(self) -> LogDirectory:
        """Describe the directory: its name, and its space."""
        return self.files.describe()

    def configure(self, config: BrokerConfig) -> None:
        """Use another configuration of the broker."""
        self.cleaner.backoff_ms = config.log_cleaner_backoff_ms
        self.space.minimum_bytes = config.headrace_log_dir_min_free_bytes
        if self.space.next_check_ms is None:
            self.space.next_check_ms = 0

    def relieve(self, now_ms: int) -> None:
        """Sync all dirty logs with the next group commit, so that their segments can be closed.

        The logs that wait for a background sync are included at once: a deadline would move with every refused append,
        and might never be reached.
        """
        if now_ms < self._relieved_ms + RETRY_INTERVAL_MS:
            return
        self._relieved_ms = now_ms
        for log in self.logs.logs.values():
            if log.synced_offset < log.log_end_offset:
                self.background.forget(log)
                self.logs.mark_dirty(log)

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` has something to do next; None if there is no such time."""
        # The server reads this property after every wake-up, hence no generator.
        earliest = self.logs.next_deadline_ms
        for at in (
            self.background.next_deadline_ms,
            self.space.next_check_ms,
            self.cleaner.next_deadline_ms,
            # With files in memory, `tick` itself runs a step of a compaction.
            0 if self.in_memory and self.cleaner.due else None,
        ):
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    def tick(self, now_ms: int) -> None:
        """Apply retention, write checkpoints, sync, check the space and the logs to compact, each when it is due.

        Raises:
            OSError: A file operation failed. The directory has to go out of service.
        """
        self.logs.tick(now_ms)
        self.cleaner.tick(now_ms)
        self.space.tick(now_ms)
        for log in self.background.due(now_ms):
            self.logs.mark_dirty(log)
