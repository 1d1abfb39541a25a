"""The resources that the shell gives to the broker: files, metadata store, entropy, journal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.broker.configs.loggers import Loggers
from headrace.broker.log_dirs.log_dirs import UnusableDirectory
from headrace.broker.partitions.topic import CheckConfig
from headrace.core.log import RunTasks
from headrace.ports import Entropy, FileSystem, Journal, MetadataStore, OpenStorage, Peers


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """The resources that the shell gives to the broker.

    Attributes:
        files: The first log directory. It also holds the broker's own topics.
        further: The other log directories.
        metadata: The metadata store.
        entropy: The source of random numbers.
        journal: Receives the log events.
        run_tasks: Runs the tasks of a recovery, in parallel if the shell has threads.
        storages: Opens the storage that a topic names in `headrace.storage`.
        segment_files: How many segment files may be open at a time; None for no limit.
        check_topic_config: Raises ConfigError for the configuration of a topic that clients may not set.
        loggers: The loggers whose levels clients can change.
        peers: Sends requests to other brokers.
        is_clustered: Whether other brokers may use the same metadata store.
        boot_id: An id that changes when the machine starts; None if it is unknown. Only a broker of a cluster needs it.
    """

    files: FileSystem
    further: Sequence[FileSystem | UnusableDirectory]
    metadata: MetadataStore
    entropy: Entropy
    journal: Journal
    run_tasks: RunTasks
    storages: OpenStorage
    segment_files: int | None
    check_topic_config: CheckConfig
    loggers: Loggers
    peers: Peers
    is_clustered: bool
    boot_id: str | None
