"""A session with the metadata store of the process that has started this broker, over a socket."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from headrace.deferred import Deferred, resolved
from headrace.errors import StorageError
from headrace.forking import FORKED, disown_in_children
from headrace.metadata_stores.change_log import size_of
from headrace.metadata_stores.limits import check_commit
from headrace.metadata_stores.remote.messages import (
    Message,
    Messages,
    commit_message,
    encoded,
    parsed_batch,
    parsed_outcome,
)
from headrace.metadata_stores.replica import Replica
from headrace.metadata_stores.watches import Callback, Watches
from headrace.ports import (
    Check,
    CommitOutcome,
    Delete,
    MetadataSession,
    Put,
    Unavailable,
    Unknown,
)

T = TypeVar("T")

_WAIT_S: Final = 18.0
"""The longest time for which `wait` waits, in seconds."""
_READ_BYTES: Final = 256 * 1024


class SocketLoop(Protocol):
    """An event loop, as this store uses it."""

    def add_reader(self, fd: int, callback: Callable[..., Any], /) -> Any:
        """Call a function whenever a socket can be read."""

    def add_writer(self, fd: int, callback: Callable[..., Any], /) -> Any:
        """Call a function whenever a socket can be written."""

    def remove_reader(self, fd: int, /) -> Any:
        """Call `add_reader`'s function no more."""

    def remove_writer(self, fd: int, /) -> Any:
        """Call `add_writer`'s function no more."""


def read_settings(connection: socket.socket) -> dict[str, Any]:
    """Return the settings that the other end has sent as its first message. Blocks until they have arrived.

    Raises:
        StorageError: The other end has ended.
    """
    messages = Messages()
    while True:
        for _, settings in messages:
            return dict(settings)
        data = connection.recv(_READ_BYTES)
        if not data:
            raise StorageError("the process with the metadata store has ended")
        messages.add(data)


class RemoteMetadataStore:
    """A session over a connected socket, with the semantics of `headrace.ports.MetadataStore`.

    The other end is a `StoreServer`. All methods belong to one thread. What arrives waits in the socket until this
    thread calls `run_pending`, or `wait`. A broken connection is not made again: the store has ended, and
    `on_lost` is called.
    """

    def __init__(self, connection: socket.socket, clock: Callable[[], int]) -> None:
        """Begin a session, and wait until it has begun.

        Args:
            connection: The socket. The store closes it.
            clock: Returns the time in milliseconds, in which the lease of the session is.

        Raises:
            Unavailable: The other end has not responded.
        """
        self._socket = connection
        self._clock = clock
        connection.settimeout(0)
        self._messages = Messages()
        self._unsent = bytearray()
        self._loop: SocketLoop | None = None
        self._failure: Unavailable | None = None
        self._replica = Replica()
        self._watches = Watches(self._replica)
        self._number = 0
        self._requests: dict[int, Callable[[Message], object]] = {}
        """The functions that get the responses, by the numbers of the requests."""
        self._commits: dict[int, Deferred[CommitOutcome]] = {}
        self._session = MetadataSession(0, 0)
        self._renewal: Deferred[Unavailable | None] | None = None
        self.on_lost: Callable[[], object] = lambda: None
        """Called when the connection breaks."""
        disown_in_children(self)
        try:
            error = self.wait(self._begin())
        except BaseException:
            self.close()
            raise
        if error is not None:
            raise error

    def disown(self) -> None:
        """Close the socket in a forked child. That of the parent stays open."""
        self._loop = None
        self._failure = Unavailable(f"this store {FORKED}")
        self._socket.close()

    # Messages

    def serve_on(self, loop: SocketLoop, arrived: Callable[[], object]) -> None:
        """Call a function on an event loop when something has arrived. It has to call `run_pending`."""
        self._loop = loop
        loop.add_reader(self._socket.fileno(), arrived)
        if self._unsent:
            loop.add_writer(self._socket.fileno(), self._send_more)

    def send(self, message: Message) -> None:
        """Send a message. Does nothing without a connection."""
        if self._failure is not None:
            return
        had_unsent = bool(self._unsent)
        self._unsent += encoded(message)
        if not had_unsent:
            self._send_more()
            if self._unsent and self._loop is not None:
                self._loop.add_writer(self._socket.fileno(), self._send_more)

    def _send_more(self) -> None:
        try:
            del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:  # `run_pending` will see the end of the connection
            self._unsent.clear()
        if not self._unsent and self._loop is not None:
            self._loop.remove_writer(self._socket.fileno())

    def run_pending(self) -> None:
        """Resolve the outcomes that have arrived, and notify the watches."""
        is_open = self._failure is not None or self._receive()
        for message in self._messages:
            self._handle(message)
        if not is_open:
            self._lost()

    def _receive(self) -> bool:
        """Read what has arrived. Return whether the connection is open."""
        while True:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self._messages.add(data)

    def _handle(self, message: Message) -> None:
        if message[0] == "batch":
            batch = parsed_batch(message)
            self._replica.apply(batch, size_of(batch))
            self._watches.deliver()
        elif (respond := self._requests.pop(message[1], None)) is not None:
            respond(message)

    def _lost(self) -> None:
        if self._failure is not None:
            return
        self._end(Unavailable("the process with the metadata store has ended"))
        self._requests.clear()
        unanswered, self._commits = self._commits, {}
        for outcome in unanswered.values():
            outcome.resolve(Unknown("the process with the metadata store has ended"))
        if self._renewal is not None:
            renewal, self._renewal = self._renewal, None
            renewal.resolve(self._failure)
        self.on_lost()

    def _end(self, failure: Unavailable) -> None:
        self._failure = failure
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._loop = None
        self._socket.close()

    def wait(self, deferred: Deferred[T]) -> T:
        """Block until a deferred of this store is resolved, and return its value.

        Raises:
            Unavailable: The other end does not respond.
        """
        deadline = time.monotonic() + _WAIT_S
        while not deferred.done:
            left_s = deadline - time.monotonic()
            if self._failure is not None:
                raise self._failure
            if left_s <= 0:
                raise Unavailable(f"the metadata store has not responded within {_WAIT_S:g} s")
            writes = [self._socket] if self._unsent else []
            readable, writable, _ = select.select([self._socket], writes, [], left_s)
            if writable:
                self._send_more()
            if readable:
                self.run_pending()
        return deferred.value

    def _request(self, kind: str, respond: Callable[[Message], object]) -> None:
        self._number += 1
        self._requests[self._number] = respond
        self.send((kind, self._number))

    # The session

    @property
    def session(self) -> MetadataSession:
        """The current session, whose end the client may not know yet."""
        return self._session

    def renew(self) -> Deferred[Unavailable | None]:
        """Begin another session after SessionLost. Does nothing if the session is alive."""
        if self._failure is not None:
            return resolved(self._failure)
        return self._renewal if self._renewal is not None else self._begin()

    def _begin(self) -> Deferred[Unavailable | None]:
        renewal = self._renewal = Deferred[Unavailable | None]()
        sent_ms = self._clock()

        def begun(message: Message) -> None:
            self._renewal = None
            _, _, number, timeout_ms = message
            self._session = MetadataSession(number, sent_ms, timeout_ms)
            renewal.resolve(None)

        self._request("begin", begun)
        return renewal

    def close(self) -> None:
        """End the session and all watches, and delete the ephemeral entries."""
        self._watches.clear()
        if self._failure is None:
            self._end(Unavailable("the store is closed"))

    # Commits

    def commit(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> Deferred[CommitOutcome]:
        """Send a commit. Without a connection the outcome is Unavailable at once."""
        check_commit(checks, operations)
        if self._failure is not None:
            return resolved(self._failure)
        self._number += 1
        number, session = self._number, self._session.number
        outcome = self._commits[number] = Deferred[CommitOutcome]()
        self._requests[number] = partial(self._committed, session, self._clock())
        self.send(commit_message(number, session, checks, operations))
        return outcome

    def _committed(self, session: int, sent_ms: int, message: Message) -> None:
        value = parsed_outcome(message)
        known = self._session
        if isinstance(value, dict) and session == known.number:
            acknowledged_ms = max(known.acknowledged_ms or 0, sent_ms)
            self._session = MetadataSession(session, acknowledged_ms, known.timeout_ms)
        self._commits.pop(message[1]).resolve(value)

    def sync(self) -> Deferred[StorageError | None]:
        """Read everything that any session has committed before the call.

        Returns:
            None when the watches have it, or the error.
        """
        if self._failure is not None:
            return resolved(self._failure)
        read: Deferred[StorageError | None] = Deferred()
        self._request("sync", lambda _: read.resolve(None))
        return read

    # Watches

    def watch(self, callback: Callback) -> Callable[[], object]:
        """Call `callback` with a snapshot of all entries, and then with every change."""
        end = self._watches.add(callback)
        self._watches.deliver()
        return end
