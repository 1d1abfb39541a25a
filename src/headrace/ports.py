"""The interfaces of the cores to the outside world: files, metadata, randomness, a journal of events.

Cores and the broker take these as arguments and never import an implementation. `headrace.storage` and
`headrace.metadata_stores` implement them for production, `headrace.storage.memory_files` for tests and `headrace dev`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from headrace.errors import StorageError
from headrace.types import Buffer


class File(Protocol):
    """An append-only file. Appends, reads and truncations come from one thread; `sync` may run in another."""

    @property
    def size(self) -> int:
        """Bytes in the file, everything appended so far included."""

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append all buffers, or raise OSError and leave the file as it was before."""

    def buffers(self, position: int, size: int) -> Sequence[Buffer]:
        """Return `size` bytes from `position` on (fewer at the end of the file), valid for ever."""

    def read(self, position: int, size: int) -> bytes:
        """Return a copy of `size` bytes from `position` on, fewer at the end of the file."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Return once everything appended before the call is on stable storage (fdatasync). Thread-safe."""

    def fileno(self) -> int | None:
        """Return a real descriptor for sendfile, or None."""

    def close(self) -> None:
        """Drop this owner. The descriptor itself closes when the last `FileRange` on it is gone."""


@runtime_checkable
class SegmentStorage(Protocol):
    """Keeps the bytes of one segment of a partition: whole record batches, one behind the other.

    This is what a topic's `storage` can be besides files: a class without arguments that is registered under a name. It
    lives as long as the process; a segment that is deleted is simply dropped. `append`, `truncate` and `roll` come
    from one thread at a time; `read` may come from another meanwhile, for bytes that were appended before.
    An OSError is a disk that has failed: the topics with this storage are out of service from then on. With ENOSPC
    it is full: what it refused was not kept, and everything else is as it was.
    """

    @property
    def size(self) -> int:
        """Bytes in the segment, everything appended so far included."""

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append one record batch, in pieces whose memory is the caller's; all of it or nothing."""

    def read(self, position: int, size: int) -> Buffer:
        """Return `size` bytes from `position` on, fewer at the end, none behind it.

        They are whatever was asked for: one batch, many, a header of one. What is returned never changes, whatever
        is appended, truncated or dropped later.
        """

    def truncate(self, size: int) -> None:
        """Cut the segment to `size` bytes; nothing happens if it has no more."""

    def roll(self) -> SegmentStorage:
        """Return the empty storage of the segment that follows. This one is only read from now on."""


OpenStorage = Callable[[str], "FileSystem | None"]
"""Returns where topics with a storage of this name keep their records, a new one for each broker; None is the broker's
own log directories. Raises ConfigError if nothing has the name."""


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A log directory as an operator sees it; -1 where a size is not known.

    `in_memory` says that nothing in it outlives the process, so that there is nothing to sync either.
    """

    name: str
    total_bytes: int = -1
    usable_bytes: int = -1
    in_memory: bool = False


class FileSystem(Protocol):
    """One log directory. Paths are relative to its root and use "/"; nothing outside the root is reachable."""

    def describe(self) -> LogDirectory:
        """Return what the directory is called, and how much space there is."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for appending and reading; FileNotFoundError unless it exists or `create` is true."""

    def read_file(self, path: str) -> bytes | None:
        """Return the whole content, or None when there is no such file."""

    def write_file(self, path: str, content: bytes) -> None:
        """Replace a file's content atomically and durably (temporary file, sync, rename, directory sync)."""

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; [] when it does not exist."""

    def make_directory(self, path: str) -> None:
        """Create a directory (and its parents); no error if it exists. A sync of its parent makes it durable."""

    def remove(self, path: str) -> None:
        """Remove a file; no error if it is gone."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything in it; no error if it is gone."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a directory, durably."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable. Thread-safe."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key of the metadata store; `version` changes on every write and never recurs for a key."""

    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """A condition of a commit: the key has this version, or exists, or does not."""

    key: str
    version: int | Literal["exists", "absent"]


@dataclass(frozen=True, slots=True)
class Put:
    """Write a key. An ephemeral one is bound to the store's session, and vanishes when that ends."""

    key: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a key; no error if it is absent."""

    key: str


class Conflict(Exception):
    """A check did not hold: nothing was changed, and nothing will be. The first such check is number `index`."""

    def __init__(self, index: int) -> None:
        super().__init__(f"check {index} of the commit does not hold")
        self.index = index


class Unavailable(StorageError):
    """The store cannot be asked: nothing was changed, and nothing will be. The same call may succeed later."""


class Unknown(StorageError):
    """Only of `commit`: it was handed over, and nobody answered. It was applied, or will be later, or never."""


class SessionLost(StorageError):
    """The session has ended, and with it its ephemeral entries: nothing was changed, nothing will be.

    Every call raises this until `renew` has begun another session.
    """


@dataclass(frozen=True, slots=True)
class MetadataBatch:
    """A notification of a watch.

    Attributes:
        snapshot: Whether `puts` is everything there is; what is known and not in it is gone.
        puts: Entries as they are now, sorted by key.
        deletes: Keys that are gone, sorted.
    """

    snapshot: bool
    puts: Sequence[Entry]
    deletes: Sequence[str] = ()


class MetadataStore(Protocol):
    """Cluster metadata: small values under path-like keys, changed by atomic, checked commits.

    Calls are synchronous and come from one thread. A value that `commit` returned for is durable, unless the store is
    in memory or the entry ephemeral. A commit has at most 100 checks and operations, and values of 512 KB together.

    A commit has one of five outcomes: it returns, or raises Conflict, Unavailable, Unknown or SessionLost. The store
    never repeats one by itself. After Unknown the commit may or may not be visible, and may still take effect
    later. It certainly cannot take effect once a key whose version it checks has another version. A caller that must
    know the outcome checks a version in every commit. After Unknown it calls `barrier`, reads that key, and writes the
    key if it is unchanged. Only then does it repeat the commit (`headrace.broker.metadata.metadata_writer`).

    A session lasts from the store's opening to its closing or the end of its process, and in a store over a network
    also ends when that has not heard from it in time. Nothing but ephemeral entries belongs to it.

    A store over a network may skip states, never versions backwards, and starts the versions of a key anew when it is
    deleted and created again. So keys whose versions are checked are not created again: they carry an id that is not
    used twice, or are never deleted.
    """

    @property
    def session(self) -> int:
        """The number of this session; every `renew` that begins another one raises it."""

    def renew(self) -> None:
        """After SessionLost begin another session, without ephemeral entries; do nothing while there is one.

        Watches go on, with another snapshot.

        Raises:
            Unavailable: The store cannot be asked.
        """

    def get(self, key: str) -> Entry | None:
        """Return one entry, or None.

        Raises:
            StorageError: Unavailable or SessionLost.
        """

    def list(self, prefix: str) -> Sequence[Entry]:
        """Return all entries whose key starts with `prefix`, sorted by key.

        Raises:
            StorageError: Unavailable or SessionLost.
        """

    def commit(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> dict[str, int]:
        """Apply all operations if all checks hold, else raise Conflict and change nothing.

        Returns:
            The new version of every key that was put.

        Raises:
            Conflict: A check does not hold.
            StorageError: Unavailable, Unknown or SessionLost.
            ValueError: A key is malformed, or the commit too large.
        """

    def barrier(self) -> None:
        """Return when reads see every commit that anybody was answered before this call.

        Raises:
            StorageError: Unavailable or SessionLost.
        """

    def watch(
        self, prefix: str, callback: Callable[[MetadataBatch], object]
    ) -> Callable[[], object]:
        """Tell `callback` what there is under a prefix, at once and as a snapshot, and then what changes.

        The callback gets the last state of every key, with increasing versions; states in between may be skipped. After
        a gap there may be another snapshot. Callbacks of all watches run one at a time, after the commit that caused
        them. A callback may commit, and is notified of that commit after it has returned. It must not raise.

        Returns:
            A function that ends the watch.
        """

    def close(self) -> None:
        """End the session, and with it ephemeral entries and watches; release the store."""


class Entropy(Protocol):
    """Randomness, injected so that a simulation can repeat it."""

    def uuid(self) -> bytes:
        """Return 16 bytes of a random UUID (version 4), never all zero."""


class Chance(Protocol):
    """A source of random numbers; `random.Random` is one."""

    def random(self) -> float:
        """Return a number from 0 to below 1."""


class Journal(Protocol):
    """Where cores report what an operator should know. The shell renders it (log lines, metrics)."""

    def info(self, event: str, **fields: object) -> None:
        """Something worth knowing happened."""

    def warning(self, event: str, **fields: object) -> None:
        """Something is off and was handled."""

    def error(self, event: str, **fields: object) -> None:
        """Something failed; an operator must look."""
