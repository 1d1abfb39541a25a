"""The log directories of the broker: which are there, which are missing, where a new partition goes.

The first one also holds the metadata, and the broker's own topics. Any other may fail, or be absent at the start:
its partitions are offline then. It cannot be found by looking where a partition lies, as one whose disk is absent
looks like a new one and would begin empty; the metadata say it, by the directory's id. They also know under which path
an id was seen last: a directory at that path which is empty is a disk that was not mounted.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.broker.log_dir import LogDir
from headrace.broker.metadata_records import (
    LOG_DIRECTORIES,
    TOPICS,
    LogDirectoriesRecord,
    TopicRecord,
    decode,
    encode,
)
from headrace.config.broker import BrokerConfig
from headrace.core.log.meta_properties import read_meta
from headrace.core.log.sync import RunTasks, run_in_turn
from headrace.errors import StorageError
from headrace.ports import Entropy, FileSystem, Journal, MetadataStore, Put


@dataclass(frozen=True, slots=True)
class UnusableDirectory:
    """A log directory that could not even be opened, and why."""

    name: str
    error: OSError


class LogDirs:
    """The log directories, in the order in which they were named."""

    __slots__ = ("_by_id", "_known_names", "_serving", "first", "named")

    def __init__(
        self, named: Sequence[tuple[str, LogDir | None]], known_names: dict[str, str]
    ) -> None:
        """Take the directories with their names, None for what is missing, and the names by id that were seen ever."""
        self.named = named
        self._serving = [log_dir for _, log_dir in named if log_dir is not None]
        self.first = self._serving[0]
        self._by_id = {log_dir.directory_id: log_dir for log_dir in self._serving}
        self._known_names = known_names

    def __iter__(self) -> Iterator[LogDir]:
        """Iterate over those that were there at the start, also if they have failed since."""
        return iter(self._serving)

    @property
    def complete(self) -> bool:
        """Whether all are there and serve."""
        return all(log_dir is not None and log_dir.failure is None for _, log_dir in self.named)

    def find(self, directory_id: str) -> LogDir | None:
        """Return the directory with an id ("" is the first), None if it is missing or has failed."""
        log_dir = self._by_id.get(directory_id) if directory_id else self.first
        return None if log_dir is None or log_dir.failure is not None else log_dir

    def name_of(self, directory_id: str) -> str:
        """Return what a directory is called, or was when it was seen last."""
        return self._known_names.get(directory_id, directory_id)

    def place(self, count: int, *, is_internal: bool) -> list[str]:
        """Choose directories for new partitions: where the fewest are, and where space is not short.

        Returns:
            The id of each one's directory, "" for the first if there is only one.
        """
        if len(self.named) == 1:
            return [""] * count
        if is_internal:
            return [self.first.directory_id] * count
        choices = [log_dir for log_dir in self._serving if log_dir.failure is None] or [self.first]
        held = Counter({log_dir.directory_id: log_dir.logs.partitions_count for log_dir in choices})
        placed: list[str] = []
        for _ in range(count):
            best = min(choices, key=lambda each: (each.space.is_short, held[each.directory_id]))
            held[best.directory_id] += 1
            placed.append(best.directory_id)
        return placed


class _Opening:
    """Opens the directories of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataStore,
        entropy: Entropy,
        journal: Journal,
        *,
        cluster_id: str,
        run_tasks: RunTasks,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._entropy = entropy
        self._journal = journal
        self._cluster_id = cluster_id
        self._run_tasks = run_tasks
        self._key = f"{LOG_DIRECTORIES}{config.broker_id}"
        entry = metadata.get(self._key)
        self.names = {} if entry is None else dict(decode(entry, LogDirectoriesRecord).names)

    def open(self, files: FileSystem) -> LogDir:
        new_id = base64.urlsafe_b64encode(self._entropy.uuid()).rstrip(b"=").decode()
        return LogDir(
            files,
            self._config,
            self._journal,
            cluster_id=self._cluster_id,
            new_id=new_id,
            run_tasks=self._run_tasks,
        )

    def open_further(self, files: FileSystem | UnusableDirectory) -> tuple[str, LogDir | None]:
        name = files.name if isinstance(files, UnusableDirectory) else files.describe().name
        try:
            if isinstance(files, UnusableDirectory):
                raise files.error
            if read_meta(files) is None and self._holds_partitions(name):
                raise FileNotFoundError(
                    "it is empty, and topics have partitions in it: is its disk mounted?"
                )
            return name, self.open(files)
        except OSError as error:
            self._journal.error("log_directory_missing", directory=name, error=str(error))
            return name, None

    def _holds_partitions(self, name: str) -> bool:
        ids = {directory_id for directory_id, known in self.names.items() if known == name}
        return bool(ids) and any(
            ids.intersection(decode(entry, TopicRecord).directory_ids)
            for entry in self._metadata.list(TOPICS)
        )

    def remember(self, log_dirs: Sequence[LogDir]) -> None:
        """Have the metadata know where each directory is now."""
        names = self.names | {log_dir.directory_id: log_dir.name for log_dir in log_dirs}
        if names != self.names:
            self._metadata.commit([], [Put(self._key, encode(LogDirectoriesRecord(names)))])
            self.names = names


def open_log_dirs(
    first: FileSystem,
    further: Sequence[FileSystem | UnusableDirectory],
    config: BrokerConfig,
    *,
    metadata: MetadataStore,
    entropy: Entropy,
    journal: Journal,
    cluster_id: str,
    run_tasks: RunTasks = run_in_turn,
) -> LogDirs:
    """Claim all log directories; those further ones that cannot be used are missing from now on.

    Raises:
        StorageError: One belongs to another broker, or two are copies of one.
        OSError: The first one cannot be used.
    """
    opening = _Opening(
        config, metadata, entropy, journal, cluster_id=cluster_id, run_tasks=run_tasks
    )
    log_dir = opening.open(first)
    named: list[tuple[str, LogDir | None]] = [(log_dir.name, log_dir)]
    named += [opening.open_further(files) for files in further]
    there = [log_dir for _, log_dir in named if log_dir is not None]
    by_id: dict[str, LogDir] = {}
    for log_dir in there:
        other = by_id.setdefault(log_dir.directory_id, log_dir)
        if other is not log_dir:
            raise StorageError(
                f"the log directories {other.name} and {log_dir.name} have the same id: one is a copy; name only one"
            )
    if further or opening.names:
        opening.remember(there)
    return LogDirs(named, opening.names)
