"""The clients that the tasks of one Python worker share.

A Python worker of Spark runs many tasks, of any partition. So connections belong to the process, not to a task.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from headrace.spark.options.reader import ClientOptions

MAX_CLIENTS: Final = 16
"""The most clients that one cache keeps open. A further client replaces the one that was opened first."""


class Closeable(Protocol):
    """A client that can be closed."""

    def close(self) -> None:
        """Close all connections of the client."""


C = TypeVar("C", bound=Closeable)


class ClientCache(Generic[C]):
    """Clients by their options. A client is opened at its first use and closed at the end of the process.

    The process id is part of the key: Spark forks its workers, and two processes must not use one socket.
    """

    def __init__(self, open_client: Callable[[ClientOptions], C]) -> None:
        self._open_client = open_client
        self._clients: dict[tuple[int, ClientOptions], C] = {}
        atexit.register(self._close_at_exit)

    def get(self, options: ClientOptions) -> C:
        """Return this process's client for these options; open the client at the first call."""
        key = (os.getpid(), options)
        client = self._clients.get(key)
        if client is None:
            while len(self._clients) >= MAX_CLIENTS:
                self._clients.pop(next(iter(self._clients))).close()
            client = self._clients[key] = self._open_client(options)
        return client

    def clear(self) -> None:
        """Close and remove all clients."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _close_at_exit(self) -> None:
        """Close this process's clients, but not the clients of the parent process."""
        for (process, _), client in self._clients.items():
            if process == os.getpid():
                client.close()
