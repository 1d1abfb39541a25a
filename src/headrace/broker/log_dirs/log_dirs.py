"""The log directories of the broker, and the choice of a directory for a new partition.

The first directory also holds the metadata and the internal topics. Any other directory may fail, or be missing at the
start. Its partitions are offline then. The directory of a partition is stored in the metadata by its id: a search in
the directories would not find a partition on a missing disk, and would begin an empty one. The metadata also has the
last known path of each id. An empty directory at such a path is a disk that was not mounted.

A topic may name a storage instead (`headrace.storage`). Each storage in use is one more log directory, with logs,
checkpoints and failures of its own, and an id that contains its name. It is opened when a topic needs it first.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.broker.log_dirs.log_dir import LogDir
from headrace.broker.log_dirs.unsynced_topics import UnsyncedTopics
from headrace.broker.metadata.metadata_writer import MetadataWriter
from headrace.config.broker import BrokerConfig
from headrace.core.cluster.records import (
    LOG_DIRECTORIES,
    PLACEMENTS,
    LogDirectoriesRecord,
    PlacementRecord,
    decode,
    encode,
)
from headrace.core.log import RunTasks, Shared, run_in_turn
from headrace.core.meta_properties import read_meta
from headrace.errors import ConfigError, InvalidConfigError, StorageError
from headrace.ports import (
    Entropy,
    FileSystem,
    Journal,
    OpenStorage,
    Put,
)

_STORAGE: Final = "storage:"
"""The prefix of the directory id of a storage, before its name. Other ids have no colon."""


def no_storages(name: str) -> FileSystem | None:
    """Refuse every storage: the `OpenStorage` of a broker without storages."""
    raise ConfigError(f"no storage is called {name!r}: this broker has only its data directories")


@dataclass(frozen=True, slots=True)
class UnusableDirectory:
    """A log directory that could not be opened, and the error."""

    name: str
    error: OSError


class LogDirs:
    """The log directories, in the order of the configuration."""

    __slots__ = (
        "_by_id",
        "_is_single",
        "_known_names",
        "_open",
        "_own",
        "_serving",
        "first",
        "named",
        "on_open",
    )

    def __init__(
        self,
        named: Sequence[tuple[str, LogDir | None]],
        known_names: dict[str, str],
        open_storage: Callable[[str, str], LogDir | None],
    ) -> None:
        """Take the opened directories.

        Args:
            named: The directories by name; None for a missing one.
            known_names: The last known names of all directory ids.
            open_storage: Opens the storage of a name as a directory with an id; None if the name means the data
                directories.
        """
        self.named = list(named)
        """The directories by name. Those of storages come last."""
        self.on_open: Callable[[LogDir], object] = lambda _: None
        """Called with the directory of a storage that was opened. The callee loads its logs."""
        self._open = open_storage
        self._serving = [log_dir for _, log_dir in named if log_dir is not None]
        self._own = list(self._serving)
        self._is_single = len(self.named) == 1
        self.first = self._serving[0]
        self._by_id = {log_dir.directory_id: log_dir for log_dir in self._serving}
        self._known_names = known_names

    def __iter__(self) -> Iterator[LogDir]:
        """Iterate over the directories that were there at the start, including failed ones."""
        return iter(self._serving)

    @property
    def complete(self) -> bool:
        """Whether all directories are there and in service."""
        return all(log_dir is not None and log_dir.failure is None for _, log_dir in self.named)

    def find(self, directory_id: str) -> LogDir | None:
        """Return the directory with an id ("" is the first); None if it is missing or has failed."""
        log_dir = self._by_id.get(directory_id) if directory_id else self.first
        if log_dir is None and directory_id.startswith(_STORAGE):
            try:
                log_dir = self._by_id.get(self.storage(directory_id.removeprefix(_STORAGE)))
            except InvalidConfigError as error:
                self._known_names[directory_id] = f"{directory_id} ({error.message})"
        return None if log_dir is None or log_dir.failure is not None else log_dir

    def is_removed(self, directory_id: str) -> bool:
        """Return whether the broker no longer has the directory with an id.

        A directory that has failed may come back. So may any other one while a configured directory is missing.
        """
        return (
            directory_id not in self._by_id
            and not directory_id.startswith(_STORAGE)
            and directory_id != ""
            and all(log_dir is not None for _, log_dir in self.named)
        )

    def name_of(self, directory_id: str) -> str:
        """Return the present or last known name of a directory."""
        return self._known_names.get(directory_id, directory_id)

    def storage(self, name: str) -> str:
        """Return the directory id of a storage; "" if the name means the data directories.

        The storage is opened if no topic has used it before.

        Raises:
            InvalidConfigError: The storage does not exist or cannot be used.
        """
        directory_id = f"{_STORAGE}{name}"
        if not name or directory_id in self._by_id:
            return directory_id if name else ""
        try:
            log_dir = self._open(name, directory_id)
        except (ConfigError, StorageError, OSError) as error:
            raise InvalidConfigError(f"headrace.storage: {error}") from error
        if log_dir is None:
            return ""
        self._by_id[directory_id] = log_dir
        self._serving.append(log_dir)
        self.named.append((log_dir.name, log_dir))
        self.on_open(log_dir)
        return directory_id

    def place(self, count: int, *, is_internal: bool, storage_id: str = "") -> list[str]:
        """Choose directories for new partitions: those with the fewest partitions among those with enough space.

        Args:
            count: The number of partitions.
            is_internal: Whether the topic is internal.
            storage_id: The directory id of the topic's storage; "" if it has none.

        Returns:
            The directory id of each partition; "" for the first directory if there is only one.
        """
        if storage_id.startswith(_STORAGE) and not is_internal:
            return [storage_id] * count
        if self._is_single:
            return [""] * count
        if is_internal:
            return [self.first.directory_id] * count
        choices = [log_dir for log_dir in self._own if log_dir.failure is None] or [self.first]
        held = Counter({log_dir.directory_id: log_dir.logs.partitions_count for log_dir in choices})
        placed: list[str] = []
        for _ in range(count):
            best = min(choices, key=lambda each: (each.space.is_short, held[each.directory_id]))
            held[best.directory_id] += 1
            placed.append(best.directory_id)
        return placed

    def place_replicas(self, here: Sequence[bool], *, is_internal: bool, storage: str) -> list[str]:
        """Choose a directory for each new partition that has a replica on this broker.

        Args:
            here: Whether each partition has a replica on this broker.
            is_internal: Whether the topic is internal.
            storage: The storage of the topic, by name. If it cannot be used now, the replicas are offline until it can.

        Returns:
            The directory id of each partition; "" for partitions without a replica on this broker, and for the first
            directory if there is only one.
        """
        try:
            storage_id = self.storage(storage)
        except InvalidConfigError:
            storage_id = f"{_STORAGE}{storage}"
        placed = iter(self.place(sum(here), is_internal=is_internal, storage_id=storage_id))
        return [next(placed) if is_here else "" for is_here in here]


class _Opening:
    """Opens the directories of a broker."""

    def __init__(
        self,
        config: BrokerConfig,
        metadata: MetadataWriter,
        entropy: Entropy,
        journal: Journal,
        *,
        cluster_id: str,
        run_tasks: RunTasks,
        storages: OpenStorage,
        shared: Shared | None,
        unsynced: Callable[[FileSystem], UnsyncedTopics] | None,
    ) -> None:
        self._shared = shared
        self._unsynced = unsynced
        self._config = config
        self._metadata = metadata
        self._entropy = entropy
        self._journal = journal
        self._cluster_id = cluster_id
        self._run_tasks = run_tasks
        self._storages = storages
        self.is_wiped = False
        """Whether a broker of a cluster has a new first directory. Then its other empty directories are new, too."""
        self._key = f"{LOG_DIRECTORIES}{config.broker_id}"
        entry = metadata.image.get(self._key)
        self.names = {} if entry is None else dict(decode(entry, LogDirectoriesRecord).names)

    def open(self, files: FileSystem, new_id: str = "") -> LogDir:
        if not new_id:
            new_id = base64.urlsafe_b64encode(self._entropy.uuid()).rstrip(b"=").decode()
        return LogDir(
            files,
            self._config,
            self._journal,
            cluster_id=self._cluster_id,
            new_id=new_id,
            run_tasks=self._run_tasks,
            shared=self._shared,
            unsynced=None if self._unsynced is None else self._unsynced(files),
        )

    def open_storage(self, name: str, directory_id: str) -> LogDir | None:
        files = self._storages(name)
        return None if files is None else self.open(files, directory_id)

    def open_further(self, files: FileSystem | UnusableDirectory) -> tuple[str, LogDir | None]:
        name = files.name if isinstance(files, UnusableDirectory) else files.describe().name
        try:
            if isinstance(files, UnusableDirectory):
                raise files.error
            if not self.is_wiped and read_meta(files) is None and self._holds_partitions(name):
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
            ids.intersection(decode(entry, PlacementRecord).directories)
            for entry in self._metadata.image.list(f"{PLACEMENTS}{self._config.broker_id}/")
        )

    def remember(self, log_dirs: Sequence[LogDir]) -> None:
        """Store the present name of each directory in the metadata."""
        names = self.names | {log_dir.directory_id: log_dir.name for log_dir in log_dirs}
        if names != self.names:
            put = Put(self._key, encode(LogDirectoriesRecord(names)))
            self._metadata.commit_and_wait([], [put])
            self.names = names


def open_log_dirs(
    first: FileSystem,
    further: Sequence[FileSystem | UnusableDirectory],
    config: BrokerConfig,
    *,
    metadata: MetadataWriter,
    entropy: Entropy,
    journal: Journal,
    cluster_id: str,
    run_tasks: RunTasks = run_in_turn,
    storages: OpenStorage = no_storages,
    shared: Shared | None = None,
    unsynced: Callable[[FileSystem], UnsyncedTopics] | None = None,
) -> LogDirs:
    """Lock all log directories. A further directory that cannot be used counts as missing.

    `unsynced` reads which topics of a directory may lose records in a power cut; None for a broker without a cluster.

    Raises:
        StorageError: A directory belongs to another broker, or two are copies of one.
        OSError: The first directory cannot be used.
    """
    opening = _Opening(
        config,
        metadata,
        entropy,
        journal,
        cluster_id=cluster_id,
        run_tasks=run_tasks,
        storages=storages,
        shared=shared,
        unsynced=unsynced,
    )
    log_dir = opening.open(first)
    opening.is_wiped = unsynced is not None and log_dir.directory_id not in opening.names
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
    return LogDirs(named, opening.names, opening.open_storage)
