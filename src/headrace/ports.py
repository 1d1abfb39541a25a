"""The interfaces between the cores and their environment: files, metadata, randomness, a journal of events.

Cores and the broker receive implementations as arguments, and never import them. `headrace.storage` and
`headrace.metadata_stores` contain the implementations; those in memory serve tests and `headrace dev`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from headrace.deferred import Deferred
from headrace.errors import StorageError
from headrace.protocol.codec import Message
from headrace.types import Buffer

T = TypeVar("T")


class File(Protocol):
    """An append-only file. Appends, reads and truncations come from one thread; `sync` may run in another."""

    @property
    def size(self) -> int:
        """The size of the file in bytes, with everything appended so far."""

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append all buffers, or raise OSError and leave the file unchanged."""

    def buffers(self, position: int, size: int) -> Sequence[Buffer]:
        """Return `size` bytes from `position` on, fewer at the end of the file. Their content never changes."""

    def read(self, position: int, size: int) -> bytes:
        """Return a copy of `size` bytes from `position` on, fewer at the end of the file."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    def sync(self) -> None:
        """Return once everything appended before the call is on stable storage (fdatasync). Thread-safe."""

    def fileno(self) -> int | None:
        """Return the file descriptor for sendfile, None if the file has none."""

    def close(self) -> None:
        """Release the file. The descriptor is closed when the last `FileRange` of the file is released too."""


@runtime_checkable
class SegmentStorage(Protocol):
    """The storage of one segment of a partition: whole record batches, one after the other.

    A topic's `headrace.storage` can name such a class instead of files. The class has no arguments, and is registered
    under the name. A storage lives as long as the process, and is dropped when its segment is deleted. `append`,
    `truncate` and `roll` are called by one thread at a time. Another thread may call `read` meanwhile, for bytes that
    were appended before.

    An OSError means that the storage has failed: topics with this storage are out of service from then on. An OSError
    with ENOSPC means that the storage is full: the call has changed nothing, and the topics stay in service.
    """

    @property
    def size(self) -> int:
        """The size of the segment in bytes, with everything appended so far."""

    def append(self, buffers: Sequence[Buffer]) -> None:
        """Append one whole record batch, or raise and append nothing. The caller may reuse the buffers."""

    def read(self, position: int, size: int) -> Buffer:
        """Return `size` bytes from `position` on, fewer at the end of the segment, none after it.

        The range is any part of the segment: many batches, one batch, or a batch header. The returned bytes never
        change, even if the segment is appended to, truncated or dropped later.
        """

    def truncate(self, size: int) -> None:
        """Cut the segment to `size` bytes. Does nothing if the segment is not larger."""

    def roll(self) -> SegmentStorage:
        """Return an empty storage for the next segment. From now on this storage takes no appends, but may be cut."""


OpenStorage = Callable[[str], "FileSystem | None"]
"""Returns a new file system for the topics with a storage of this name, None for the broker's own log directories.

Raises ConfigError if no storage has the name."""


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """The description of a log directory for operators.

    Attributes:
        name: The path of the directory, or the name of the storage.
        total_bytes: The size of its file system in bytes; -1 if it is unknown.
        usable_bytes: The free bytes of its file system; -1 if they are unknown.
        in_memory: Whether the content is lost with the process, so that nothing is ever synced.
    """

    name: str
    total_bytes: int = -1
    usable_bytes: int = -1
    in_memory: bool = False


class FileSystem(Protocol):
    """One log directory. Paths are relative to its root and use "/". Paths that lead out of the root are refused."""

    def describe(self) -> LogDirectory:
        """Return the name of the directory and the space of its file system."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for appending and reading. Raises FileNotFoundError unless it exists or `create` is true."""

    def read_file(self, path: str) -> bytes | None:
        """Return the whole content, or None when there is no such file."""

    def write_file(self, path: str, content: bytes) -> None:
        """Replace a file's content atomically and durably (temporary file, sync, rename, directory sync)."""

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; [] when it does not exist."""

    def make_directory(self, path: str) -> None:
        """Create a directory and its parents; no error if it exists. A sync of its parent makes it durable."""

    def remove(self, path: str) -> None:
        """Remove a file; no error if it does not exist."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything in it; no error if it does not exist."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file or a directory, durably."""

    def sync_directory(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable. Thread-safe."""


@dataclass(frozen=True, slots=True)
class MetadataEntry:
    """One key of the metadata store. Its `version` changes with every write, and never has an earlier value again."""

    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    """A condition of a commit: the key has this version, or exists, or does not exist."""

    key: str
    version: int | Literal["exists", "absent"]

    def holds(self, version: int | None) -> bool:
        """Return whether the condition is true if the key has a version; None for a key that does not exist."""
        if self.version == "absent":
            return version is None
        if self.version == "exists":
            return version is not None
        return version == self.version


def check_of(key: str, entry: MetadataEntry | None) -> Check:
    """Return the check that an entry is unchanged; None stands for a key that does not exist."""
    return Check(key, "absent" if entry is None else entry.version)


@dataclass(frozen=True, slots=True)
class Put:
    """An operation that writes a key. An ephemeral key is deleted when the store's session ends."""

    key: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """An operation that deletes a key; no error if the key does not exist."""

    key: str


class Conflict(Exception):
    """A check of a commit failed: the commit has changed nothing, and never will. `index` is the first failed check."""

    def __init__(self, index: int) -> None:
        super().__init__(f"check {index} of the commit does not hold")
        self.index = index


class Unavailable(StorageError):
    """The store cannot be reached: the call has changed nothing, and never will. A retry may succeed."""


class Unknown(StorageError):
    """The outcome of a `commit` is unknown: it was sent, but not answered. It was applied, or will be, or never."""


class SessionLost(StorageError):
    """The session has ended, and its ephemeral entries were deleted. The call has changed nothing, and never will.

    Every call has this outcome until `renew` has begun another session.
    """


CommitOutcome = dict[str, int] | Conflict | Unavailable | Unknown | SessionLost
"""The value of a commit's `Deferred`: the new version of every written key, or an error, which is not raised."""


def versions_of(outcome: CommitOutcome) -> dict[str, int]:
    """Return the new versions of the keys that a commit has written; raise the error of a commit that failed.

    Raises:
        Conflict: A check is false.
        StorageError: Unavailable, Unknown or SessionLost.
    """
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


@dataclass(frozen=True, slots=True)
class MetadataBatch:
    """A notification of a watch.

    Attributes:
        snapshot: Whether `puts` has all entries. Then every other key that the receiver knows was deleted.
        puts: New and changed entries, sorted by key.
        deletes: Deleted keys, sorted.
    """

    snapshot: bool
    puts: Sequence[MetadataEntry]
    deletes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class MetadataSession:
    """The session of a store, as its client knows it.

    Attributes:
        number: The number of the session, which rises with every new session.
        acknowledged_ms: The time at which the newest write was sent that the store has acknowledged, in milliseconds.
            The beginning of the session counts as a write. None if the store is in this process: then every moment
            counts as acknowledged.
        timeout_ms: The time without a message of its client after which the store ends the session, in milliseconds.
    """

    number: int
    acknowledged_ms: int | None = None
    timeout_ms: int = 9_000


class MetadataStore(Protocol):
    """Cluster metadata: small values under keys that look like paths. Atomic commits with checks change them.

    Calls come from one thread and never wait for the store. Results are `Deferred`s; those of a store in this process
    are resolved on return. When a commit is resolved with versions, its entries are durable, unless the store is in
    memory or the entry is ephemeral. A commit has at most 100 checks and operations, and at most 512 KB of values.

    A commit has one of five outcomes (`CommitOutcome`). The store never repeats a commit by itself. After Unknown the
    commit may have been applied, or may be applied later. It cannot be applied any more when a key whose version it
    checks has another version. A caller that must know the outcome therefore checks a version in every commit, and
    commits another write of that key after Unknown. See `headrace.broker.metadata.commit_lane`.

    In the same atomic step a commit appends one entry to the change log: every key that it wrote or deleted, with value
    and version. The store keeps the newest entries of the log, at most 1,000 entries and 1 MB. Watches read the log.

    A session lasts until the store is closed or its process ends. A session of a store over a network also ends when
    the connection was lost for too long. Only ephemeral entries belong to a session.

    A key that was deleted and is created again gets a version that it never had. So a check of a version holds for
    one write only. A store whose own versions begin again with each creation keeps a deleted key as a mark, which has
    the next version and no value, until no broker can know an earlier version: until all sessions that were alive at
    the deletion have read past it in the change log, or have ended. An ephemeral key leaves no mark, because the end of
    a session deletes it. Checks of an ephemeral key ask only whether it exists.
    """

    @property
    def session(self) -> MetadataSession:
        """The current session and its lease."""

    def renew(self) -> Deferred[Unavailable | None]:
        """Begin another session after SessionLost, without ephemeral entries. Does nothing if the session is alive.

        Watches continue in the new session.

        Returns:
            None when the session has begun, Unavailable if the store cannot be reached.
        """

    def wait(self, deferred: Deferred[T]) -> T:
        """Block until a deferred of this store is resolved, and return its value.

        For the start of a broker and for commands that change the metadata of a stopped broker. A broker that serves
        never waits.

        Raises:
            Unavailable: The store cannot be reached.
        """

    def commit(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> Deferred[CommitOutcome]:
        """Apply all operations and append an entry to the change log, if all checks are true.

        Returns:
            The new version of every written key. Conflict if a check is false; then nothing changes. Unavailable,
            Unknown or SessionLost if the store fails.

        Raises:
            ValueError: A key is malformed, or the commit is too large.
        """

    def watch(self, callback: Callable[[MetadataBatch], object]) -> Callable[[], object]:
        """Call `callback` with a snapshot of all entries, and then with every entry of the change log, in order.

        A batch is one entry of the log. A reader that needs an entry which the store no longer keeps receives another
        snapshot instead. Callbacks of all watches of a store run one at a time, after the commit that caused them. A
        callback may commit, and is notified of that commit after it has returned. It must not raise.

        Returns:
            A function that ends the watch.
        """

    def close(self) -> None:
        """End the session and all watches, delete the ephemeral entries, and release the store."""


class Peers(Protocol):
    """The brokers of the cluster, to which this broker sends requests as a broker."""

    def send(self, broker_id: int, request: Message, deadline_ms: int) -> Deferred[Any]:
        """Send a request in the highest version that both brokers serve.

        Args:
            broker_id: The broker that handles the request.
            request: The request.
            deadline_ms: The time at which the sender no longer waits for the response.

        Returns:
            The response, or an ApiError in place of one: BROKER_NOT_AVAILABLE if the request was not handled, and
            REQUEST_TIMED_OUT if that is unknown. It is resolved while the broker handles a call, or before a `tick`.
        """


class Entropy(Protocol):
    """A source of randomness, which is an argument so that a simulation can repeat its run."""

    def uuid(self) -> bytes:
        """Return 16 bytes of a random UUID (version 4), never all zero."""


class Chance(Protocol):
    """A source of random numbers; `random.Random` is one."""

    def random(self) -> float:
        """Return a number from 0 to below 1."""


class Journal(Protocol):
    """Receives events for operators from the cores. The shell writes them as log lines, and counts them."""

    def info(self, event: str, **fields: object) -> None:
        """Log a normal event."""

    def warning(self, event: str, **fields: object) -> None:
        """Log an abnormal event that the broker has handled."""

    def error(self, event: str, **fields: object) -> None:
        """Log a failure that an operator has to look at."""
