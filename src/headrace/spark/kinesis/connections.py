"""The connections of one of Spark's Python processes: an event loop in a thread, clients of Kinesis, and stores.

Spark forks its Python workers and runs many tasks in each. So each process creates these objects once.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack, suppress
from typing import Any, Final, TypeVar

from headrace.errors import ConfigError, LeaseStoreError
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsClient, AwsSettings
from headrace.kinesis.leases.opening import open_store
from headrace.kinesis.leases.store import LeaseStore
from headrace.spark.worker import freeze_imports

STORE_ATTEMPTS: Final = 6
_PAUSE_S: Final = 0.2
_CLOSE_S: Final = 2

T = TypeVar("T")


class Connections:
    """The event loop, clients and stores of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._stack = AsyncExitStack()
        self._clients: dict[AwsSettings, AwsClient] = {}
        self._stores: dict[tuple[str, AwsSettings], LeaseStore] = {}
        self._opening = asyncio.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kinesis", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop's thread, and return its result."""
        return self.result(self.start(work))

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the loop's thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @staticmethod
    def result(future: Future[T]) -> T:
        """Wait for a started coroutine. Of a group of exceptions, the first is raised."""
        try:
            return future.result()
        except BaseException as error:
            future.cancel()
            single = _single(error)
            if single is error:
                raise
            raise single from single.__cause__

    async def client(self, aws: AwsSettings) -> AwsClient:
        """Return the client of Kinesis for these settings; open it at the first call."""
        async with self._opening:
            if aws not in self._clients:
                self._clients[aws] = await self._stack.enter_async_context(
                    open_client(aws, "kinesis")
                )
            return self._clients[aws]

    async def store(self, text: str, aws: AwsSettings) -> LeaseStore:
        """Return the store that the option `store` names; open it at the first call.

        Raises:
            ConfigError: The store cannot be used.
            LeaseStoreError: The store cannot be reached.
        """
        async with self._opening:
            if (text, aws) not in self._stores:
                store = open_store(text, aws)
                try:
                    await store.open()
                except (ConfigError, LeaseStoreError) as error:
                    raise type(error)(f"option store={text}: {error}") from error
                self._stack.push_async_callback(store.close)
                self._stores[text, aws] = store
            return self._stores[text, aws]

    def close(self) -> None:
        """Close clients, stores and the event loop."""
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._stack.aclose(), self._loop).result(_CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)


_connections: Connections | None = None
_lock = threading.Lock()


def shared_connections() -> Connections:
    """Return the connections of this process. A forked process creates its own."""
    global _connections  # noqa: PLW0603 - one for a process
    freeze_imports()
    with _lock:
        if _connections is None or _connections.pid != os.getpid():
            _connections = Connections()
            atexit.register(_connections.close)
        return _connections


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Call a store, with retries if it does not answer. All calls may be repeated.

    Raises:
        LeaseStoreError: The last of `STORE_ATTEMPTS` calls failed.
    """
    for attempt in range(STORE_ATTEMPTS):
        try:
            return await call()
        except LeaseStoreError:
            if attempt == STORE_ATTEMPTS - 1:
                raise
            await asyncio.sleep(_PAUSE_S * 2**attempt)
    raise AssertionError


def _single(error: BaseException) -> BaseException:
    """Return the first exception of a group, or the exception itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
