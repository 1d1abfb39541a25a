"""The store of a supervisor, for the brokers that it has started: their connections and their sessions.

A session ends with its connection, and when the broker has sent nothing for the session timeout. Then its ephemeral
entries are deleted.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import Callable
from typing import Any, Final

from headrace.errors import StorageError
from headrace.metadata_stores.limits import OPERATIONS_LIMIT
from headrace.metadata_stores.remote.messages import (
    Message,
    Messages,
    batch_message,
    encoded,
    outcome_message,
    parsed_commit,
)
from headrace.ports import CommitOutcome, Delete, MetadataBatch, MetadataStore, Put, SessionLost

_TICKS: Final = 10
"""The number of looks at a session within its timeout."""
UNSENT_BYTES_LIMIT: Final = 64 * 1024 * 1024
"""The greatest size of the messages that a broker has not read yet. A broker with more loses its connection."""

Received = Callable[[Message], object]


class StoreServer:
    """Serves one store to any number of connections, on the running event loop."""

    def __init__(self, store: MetadataStore, *, timeout_ms: int = 9_000) -> None:
        """Serve a store of this process, which `close` does not close.

        Args:
            store: A store of this process, whose calls are resolved on return.
            timeout_ms: The time without a message after which a session ends, in milliseconds.
        """
        self.store = store
        self.timeout_ms = timeout_ms
        self.numbers = itertools.count(1)
        """The numbers of the sessions."""
        self._connections: set[_Connection] = set()
        self._owners: dict[str, int] = {}
        """The session of each ephemeral key."""
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    @property
    def _tick_s(self) -> float:
        return self.timeout_ms / _TICKS / 1000

    async def connect(
        self, connection: socket.socket, settings: dict[str, Any], received: Received
    ) -> Callable[[], object]:
        """Serve a connected socket.

        Args:
            connection: The socket. It is closed when the connection ends.
            settings: What the broker gets as its first message.
            received: Called with each message of the broker that is not for the store.

        Returns:
            A function that closes the connection.
        """
        transport, served = await self._loop.create_unix_connection(
            lambda: _Connection(self, received), sock=connection
        )
        served.send(("settings", settings))
        return transport.close

    def opened(self, connection: _Connection) -> None:
        """Count a connection as open."""
        self._connections.add(connection)

    def closed(self, connection: _Connection) -> None:
        """End the session of a closed connection."""
        self._connections.discard(connection)
        self._delete_orphans()

    def close(self) -> None:
        """End all sessions and connections."""
        self._timer.cancel()
        for connection in list(self._connections):
            connection.abort()

    def committed(self, session: int, operations: list[Put | Delete]) -> None:
        """Note the ephemeral keys of a commit that was applied."""
        for operation in operations:
            if isinstance(operation, Put) and operation.ephemeral:
                self._owners[operation.key] = session
            else:
                self._owners.pop(operation.key, None)

    def _tick(self) -> None:
        # Ticks are counted, not the time: this process may have paused, and messages of the brokers wait to be read.
        self._timer = self._loop.call_later(self._tick_s, self._tick)
        for connection in self._connections:
            connection.silent_ticks += 1
            if connection.silent_ticks > _TICKS:
                connection.session = 0
        self._delete_orphans()

    def _delete_orphans(self) -> None:
        """Delete the ephemeral entries of sessions that have ended. A failed deletion is repeated."""
        alive = {connection.session for connection in self._connections}
        orphans = sorted(key for key, session in self._owners.items() if session not in alive)
        for first in range(0, len(orphans), OPERATIONS_LIMIT):
            keys = orphans[first : first + OPERATIONS_LIMIT]
            outcome = self.store.wait(self.store.commit([], [Delete(key) for key in keys]))
            if isinstance(outcome, dict):
                for key in keys:
                    del self._owners[key]


class _Connection(asyncio.Protocol):
    """The connection of one broker, with its present session."""

    def __init__(self, server: StoreServer, received: Received) -> None:
        self._server = server
        self._received = received
        self._messages = Messages()
        self._transport: asyncio.Transport
        self._end_watch: Callable[[], object] | None = None
        self.session = 0
        """The number of the session; 0 if it has ended."""
        self.silent_ticks = 0
        """The number of looks since the last message."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection as open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.opened(self)

    def connection_lost(self, _error: Exception | None) -> None:
        """End watch and session."""
        if self._end_watch is not None:
            self._end_watch()
        self._server.closed(self)

    def send(self, message: Message) -> None:
        """Send a message. A broker that reads nothing loses its connection."""
        self._transport.write(encoded(message))
        if self._transport.get_write_buffer_size() > UNSENT_BYTES_LIMIT:
            self._transport.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Handle the messages that are complete."""
        self.silent_ticks = 0
        self._messages.add(data)
        try:
            for message in self._messages:
                self._handle(message)
        except StorageError:
            self._transport.abort()

    def _handle(self, message: Message) -> None:
        kind, number = message[0], message[1]
        if kind == "commit":
            self.send(outcome_message(number, self._commit(message)))
        elif kind == "begin":
            self.session = self.session or next(self._server.numbers)
            if self._end_watch is None:
                self._end_watch = self._server.store.watch(self._changed)
            self.send(("begun", number, self.session, self._server.timeout_ms))
        elif kind == "sync":
            self.send(("synced", number))
        else:
            self._received(message)

    def _commit(self, message: Message) -> CommitOutcome:
        session = message[2]
        if not session or session != self.session:
            return SessionLost("the session has ended")
        checks, operations = parsed_commit(message)
        outcome = self._server.store.wait(self._server.store.commit(checks, operations))
        if isinstance(outcome, dict):
            self._server.committed(session, operations)
        return outcome

    def _changed(self, batch: MetadataBatch) -> None:
        self.send(batch_message(batch))
