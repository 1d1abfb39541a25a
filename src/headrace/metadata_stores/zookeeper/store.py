"""A metadata store on ZooKeeper, which the brokers of a cluster share."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from headrace.deferred import Deferred, resolved
from headrace.errors import HeadraceError, StorageError
from headrace.forking import FORKED, disown_in_children
from headrace.metadata_stores.limits import check_commit
from headrace.metadata_stores.replica import Replica
from headrace.metadata_stores.watches import Callback, Watches
from headrace.metadata_stores.zookeeper.engine import Engine
from headrace.metadata_stores.zookeeper.settings import ZooKeeperSettings
from headrace.metadata_stores.zookeeper.takeover import SessionKey
from headrace.metadata_stores.zookeeper.upkeep import MARKS_KEPT_MS
from headrace.ports import (
    Check,
    CommitOutcome,
    Delete,
    Journal,
    MetadataBatch,
    MetadataSession,
    Put,
    Unavailable,
)

T = TypeVar("T")
_DIAGNOSIS_S: Final = 3.0
"""The time in seconds that the search for the cause of a failure takes at most, for each server."""


def _nothing() -> None:
    pass


class ZooKeeperMetadataStore:
    """A session with ZooKeeper, with the semantics of `headrace.ports.MetadataStore`.

    All methods belong to one thread. What arrives from ZooKeeper waits until this thread calls `run_pending`.
    """

    def __init__(
        self,
        settings: ZooKeeperSettings,
        *,
        clock: Callable[[], int],
        journal: Journal,
        wake: Callable[[], object] = _nothing,
    ) -> None:
        """Begin a session. See `headrace.metadata_stores.zookeeper.open_zookeeper_store`."""
        self._settings = settings
        self._wake = wake
        self._arrivals: deque[Callable[[], object]] = deque()
        self._arrived = threading.Event()
        self._replica = Replica()
        self._watches = Watches(self._replica)
        self._renewal: Deferred[Unavailable | None] | None = None
        self._closed: Unavailable | None = None
        self._engine = Engine(settings, clock, journal, self._deliver, self._apply)
        disown_in_children(self)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        begun: Deferred[HeadraceError | None] = Deferred()
        self._engine.submit(self._engine.begin, begun.resolve)
        error = self.wait(begun)
        if error is not None:
            raise error

    def disown(self) -> None:
        """Become unusable in a forked child, which does not have the threads of the session."""
        self._closed = Unavailable(f"ZooKeeper {self._settings.connect}: this store {FORKED}")

    # Arrivals

    def _deliver(self, function: Callable[[], object]) -> None:
        """Call a function in the thread of the owner, soon. Other threads call this."""
        self._arrivals.append(function)
        if not self._arrived.is_set():
            self._arrived.set()
            try:
                self._wake()
            except RuntimeError:  # the event loop of the owner has ended
                return

    def run_pending(self) -> None:
        """Resolve the outcomes that have arrived, and notify the watches."""
        self._arrived.clear()
        try:
            while self._arrivals:
                self._arrivals.popleft()()
            self._notify()
        finally:
            if self._arrivals:  # a function has raised: the others are due
                self._arrived.set()

    def _apply(self, batch: MetadataBatch, size: int) -> None:
        self._replica.apply(batch, size)
        self._notify()

    def _notify(self) -> None:
        if self._replica.is_filled:
            self._watches.deliver()

    def wait(self, deferred: Deferred[T]) -> T:
        """Block until a deferred of this store is resolved, and return its value.

        Raises:
            Unavailable: The store cannot be reached.
        """
        servers = len(self._settings.addresses)
        limit_s = self._settings.connection_timeout_ms / 1000 + _DIAGNOSIS_S * servers
        deadline = time.monotonic() + limit_s
        while not deferred.done:
            if self._closed is not None:
                raise self._closed
            if not self._arrived.wait(deadline - time.monotonic()):
                raise Unavailable(f"ZooKeeper has not responded within {limit_s:g} s")
            self.run_pending()
        return deferred.value

    # The session

    @property
    def session(self) -> MetadataSession:
        """The current session, whose end the client may not know yet."""
        return self._engine.session

    @property
    def session_key(self) -> SessionKey | None:
        """The key by which another process can end the present session: see `takeover.end_session`."""
        return self._engine.key

    def renew(self) -> Deferred[Unavailable | None]:
        """Begin another session after SessionLost. Does nothing if the session is alive."""
        if self._closed is not None:
            return resolved(self._closed)
        if self._renewal is not None:
            return self._renewal
        renewal = self._renewal = Deferred[Unavailable | None]()

        def renewed(error: HeadraceError | None) -> None:
            self._renewal = None
            if isinstance(error, Unavailable | None):
                renewal.resolve(error)
            else:
                renewal.resolve(Unavailable(str(error)))

        self._engine.submit(self._engine.begin, renewed)
        return renewal

    def close(self) -> None:
        """End the session and all watches, and delete the ephemeral entries. Takes a few seconds at most.

        If ZooKeeper does not respond, the session expires like any other.
        """
        self._watches.clear()
        if self._closed is None:
            self._closed = Unavailable("the store is closed")
            self._engine.close()

    # Commits

    def commit(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> Deferred[CommitOutcome]:
        """Send a commit. Without a connection the outcome is Unavailable at once."""
        check_commit(checks, operations)
        failure = self._closed or self._engine.failure
        if failure is not None:
            return resolved(failure)
        outcome: Deferred[CommitOutcome] = Deferred()
        sent = tuple(checks), tuple(map(_copied, operations))
        self._engine.submit(lambda: self._engine.commit(*sent), outcome.resolve)
        return outcome

    def sync(self) -> Deferred[StorageError | None]:
        """Read everything that any session has committed before the call.

        Returns:
            None when the watches have it, or the error.
        """
        if self._closed is not None:
            return resolved(self._closed)
        read: Deferred[StorageError | None] = Deferred()
        self._engine.submit(self._engine.sync, read.resolve)
        return read

    def upkeep(self, marks_kept_ms: int = MARKS_KEPT_MS) -> Deferred[StorageError | None]:
        """Delete old entries of the change log and old marks. One broker of the cluster calls this now and then.

        Args:
            marks_kept_ms: The time in milliseconds for which the mark of a deleted key is kept at least.

        Returns:
            None, or the error. The next call continues after an error.
        """
        if self._closed is not None:
            return resolved(self._closed)
        done: Deferred[StorageError | None] = Deferred()
        self._engine.submit(lambda: self._engine.upkeep(marks_kept_ms), done.resolve)
        return done

    # Watches

    def watch(self, callback: Callback) -> Callable[[], object]:
        """Call `callback` with a snapshot of all entries, and then with every change."""
        end = self._watches.add(callback)
        self._notify()
        return end


def _copied(operation: Put | Delete) -> Put | Delete:
    if isinstance(operation, Put):
        return Put(operation.key, bytes(operation.value), operation.ephemeral)
    return operation
