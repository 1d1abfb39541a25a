"""Commits changes to the metadata store, one at a time, even if the store does not report the outcome.

A store over a network may accept a commit and lose the response (`Unknown`). The commit may even arrive later. So every
commit also increments an entry of this broker, and checks the version that the entry got from the last commit. The
entry shows which commits were applied. A further increment makes a commit void that has not arrived:

1. The broker sends commit 7, and the connection breaks. The entry says 6.
2. The broker sends commit 8, which changes nothing else. The store applies it, and the entry has another version.
3. Commit 7 arrives. It checks the version that the entry had at 6, and the store refuses it.

Until the outcome is known, the broker commits nothing else. `applied` is called when the commit is known to be stored,
however late. A second process of the same broker increments the entry as well. Afterwards
only that process can change anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from headrace.core.cluster.image import MetadataImage
from headrace.errors import RequestTimedOutError, StorageError, StorageUnavailableError
from headrace.ports import (
    Check,
    Conflict,
    Delete,
    Journal,
    MetadataBatch,
    MetadataEntry,
    MetadataStore,
    Put,
    SessionLost,
    Unknown,
    versions_of,
)

BROKER_COMMITS: Final = "brokers/commit/"
"""The prefix of the broker's own entry, before its id."""
RETRY_INTERVAL_MS: Final = 1_000
_UNKNOWN: Final = (
    "whether a change of the metadata is stored is not known yet; look before you repeat it"
)


def _nothing() -> None:
    pass


class _Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The stored value: the number of the last commit, and the process that made it."""

    number: int
    process: str
    format: int = 1


class MetadataWriter:
    """The metadata store of one broker."""

    __slots__ = (
        "_applied",
        "_batches",
        "_end_watch",
        "_journal",
        "_key",
        "_number",
        "_process",
        "_retry_at_ms",
        "_store",
        "_version",
        "image",
    )

    def __init__(
        self, store: MetadataStore, broker_id: int, process: bytes, journal: Journal
    ) -> None:
        """Write as one process of a broker. `process` is unique to it."""
        self._store = store
        self._process = process.hex()
        self._journal = journal
        self._key = f"{BROKER_COMMITS}{broker_id}"
        self._number = 0
        self._version = 0
        self.image = MetadataImage()
        """All entries of the store. `begin` fills the image."""
        self._batches: deque[MetadataBatch] = deque()
        """Notifications of the store that the image has not applied yet."""
        self._end_watch: Callable[[], object] = _nothing
        self._applied: Callable[[], object] | None = None
        """The callback of commit `_number` while the outcome of that commit is unknown; None at other times."""
        self._retry_at_ms: int | None = None
        """The time at which `tick` tries to find out the outcome of a commit; None if no outcome is unknown."""

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` has something to do next; None if there is no such time."""
        return 0 if self._batches else self._retry_at_ms

    def begin(self) -> None:
        """Take over from earlier processes of this broker, whose commits in flight become void; fill the image.

        Raises:
            StorageError: The store does not respond, or another process was faster.
        """
        entry = self._store.get(self._key)
        check = Check(self._key, "absent" if entry is None else entry.version)
        try:
            versions = self._commit([check], [self._count(0)])
        except Conflict as conflict:
            raise StorageError(
                f"{self._key}: another process of this broker has begun"
            ) from conflict
        self._version = versions[self._key]
        self._end_watch = self._store.watch(self._batches.append)
        self._apply_batches()

    def close(self) -> None:
        """End the watch of the store: the broker applies no further changes."""
        self._end_watch()

    def commit_at_start(self, checks: Sequence[Check], operations: Sequence[Put | Delete]) -> None:
        """Apply all operations if all checks hold, before the broker serves. Block until the image has them.

        Raises:
            Conflict: A check does not hold.
            StorageError: The store does not respond.
        """
        self._commit(checks, operations)
        self._apply_batches()

    def _apply_batches(self) -> None:
        """Apply the notifications of the store to the image."""
        while self._batches:
            for error in self.image.apply(self._batches.popleft()):
                self._journal.error("metadata_entry_not_applied", error=str(error))

    def get(self, key: str) -> MetadataEntry | None:
        """Return one entry, or None.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR: the store does not respond.
        """
        try:
            return self._store.get(key)
        except StorageError as error:
            raise self._failed(error) from error

    def list(self, prefix: str) -> Sequence[MetadataEntry]:
        """Return all entries whose key starts with `prefix`, sorted by key.

        Raises:
            StorageError: The store does not respond.
        """
        return self._store.list(prefix)

    def commit(
        self,
        checks: Sequence[Check],
        operations: Sequence[Put | Delete],
        applied: Callable[[], object] = _nothing,
    ) -> None:
        """Apply all operations if all checks hold, then call `applied`. Both are done on return.

        Raises:
            Conflict: A check does not hold. Nothing was changed, and nothing will be.
            ApiError: KAFKA_STORAGE_ERROR: nothing was changed, because the store does not respond or another process of
                this broker has begun. REQUEST_TIMED_OUT: the outcome is unknown. If the commit is stored, `applied` is
                called before this broker commits again.
        """
        if self._applied is not None:
            raise RequestTimedOutError(_UNKNOWN)
        self._number += 1
        fence = Check(self._key, self._version)
        try:
            versions = self._commit([*checks, fence], [*operations, self._count(self._number)])
        except Unknown as error:
            self._journal.warning("metadata_commit_unknown", error=str(error))
            self._applied = applied
            self._find_out()
            return
        except Conflict as conflict:
            self._number -= 1
            if conflict.index < len(checks):
                raise
            raise self._failed(
                StorageError("another process of this broker has begun")
            ) from conflict
        except StorageError as error:
            self._number -= 1
            raise self._failed(error) from error
        self._version = versions[self._key]
        self._apply_batches()
        applied()

    def tick(self, now_ms: int) -> None:
        """Apply the changes of other brokers. Find out the outcome of a commit, if that is due."""
        self._apply_batches()
        if self._retry_at_ms is None or now_ms < self._retry_at_ms:
            return
        try:
            self._find_out()
        except (
            RequestTimedOutError,
            StorageUnavailableError,
        ):  # the request of the commit has its response already
            if self._applied is not None:
                self._retry_at_ms = now_ms + RETRY_INTERVAL_MS

    def _find_out(self) -> None:
        """Settle commit `_number`: call its `applied`, or make it void.

        Raises:
            ApiError: KAFKA_STORAGE_ERROR: the commit is void. REQUEST_TIMED_OUT: the outcome is still unknown.
        """
        self._retry_at_ms = 0
        try:
            number, version = self._settled()
        except (StorageError, Conflict) as error:
            if isinstance(error, SessionLost):
                self._renew()
            raise RequestTimedOutError(_UNKNOWN) from error
        applied, is_stored = self._applied, number == self._number
        self._number, self._version = number, version
        self._applied = self._retry_at_ms = None
        if not is_stored:
            raise StorageUnavailableError("the metadata store did not take the change")
        self._apply_batches()
        if applied is not None:
            applied()

    def _settled(self) -> tuple[int, int]:
        """Return the number of the last stored commit, and its version. Commits that are not stored become void.

        Raises:
            StorageError: The store does not respond.
            Conflict: Another process of this broker has begun.
        """
        self._store.barrier()
        if (last := self._last()) is None:
            # If this response is lost as well, the next attempt finds this number.
            void = self._number + 1
            try:
                check = Check(self._key, self._version)
                return void, self._commit([check], [self._count(void)])[self._key]
            except Conflict:
                if (last := self._last()) is None:
                    raise
        return last

    def _last(self) -> tuple[int, int] | None:
        """Return number and version of the commit after the last known one; None while there is none."""
        entry = self._store.get(self._key)
        if entry is None or entry.version == self._version:
            return None
        record = msgspec.json.decode(entry.value, type=_Commit)
        if record.process != self._process:
            raise Conflict(0)
        return record.number, entry.version

    def _failed(self, error: StorageError) -> StorageUnavailableError:
        self._journal.error("metadata_store_failed", error=str(error))
        if isinstance(error, SessionLost):
            self._renew()
        return StorageUnavailableError(str(error))

    def _renew(self) -> None:
        error = self._store.wait(self._store.renew())
        if error is not None:
            self._journal.error("metadata_session_not_renewed", error=str(error))

    def _commit(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> dict[str, int]:
        return versions_of(self._store.wait(self._store.commit(checks, operations)))

    def _count(self, number: int) -> Put:
        return Put(self._key, msgspec.json.encode(_Commit(number, self._process)))
