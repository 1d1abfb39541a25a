"""One ZooKeeper session, as coroutines: every call has a deadline, and a server that misses one is given up."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from kazoo.exceptions import ConnectionLoss, NodeExistsError, NoNodeError
from kazoo.protocol.serialization import (
    CheckVersion,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    SetData,
    Sync,
    Transaction,
)
from kazoo.protocol.states import EventType, KazooState, WatchedEvent, ZnodeStat

from headrace.metadata_stores.zookeeper.client import Client
from headrace.metadata_stores.zookeeper.settings import ZooKeeperSettings

State = Literal["connecting", "connected", "suspended", "lost"]
"""The state of a session. A lost one stays lost."""
Operation = Any
"""An operation of a transaction: CheckVersion, Create, Delete or SetData of kazoo, which has no types."""
CHUNK: Final = 500
"""The greatest number of requests that one deadline covers."""
_STATES: Final[dict[str, State]] = {
    KazooState.CONNECTED: "connected",
    KazooState.SUSPENDED: "suspended",
    KazooState.LOST: "lost",
}
_EPHEMERAL: Final = 1
_SEQUENCE: Final = 2
_CLOSE_S: Final = 1.0


class Link:
    """A ZooKeeper session. The methods belong to the event loop that was current at the creation."""

    def __init__(self, settings: ZooKeeperSettings, changed: Callable[[], object]) -> None:
        """Begin to connect.

        Args:
            settings: How to reach ZooKeeper.
            changed: Called in the event loop when the state has changed.
        """
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._changed = changed
        self._waiting: set[asyncio.Future[None]] = set()
        self.state: State = "connecting"
        """The state, as the event loop knows it."""
        self.connected = asyncio.Event()
        """Set while the session has a connection, and for ever when it is lost."""
        self.client = Client(settings, self._heard)
        self.client.start_async()

    # The state

    def is_lost(self) -> bool:
        """Return whether the session has ended."""
        return self.state == "lost"

    def _heard(self, state: str) -> None:
        """Pass a state on to the event loop. kazoo calls this in its own thread."""
        self._soon(self._set_state, _STATES[state])

    def _soon(self, function: Callable[..., object], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._loop.call_soon_threadsafe(function, *args)

    def _set_state(self, state: State) -> None:
        if self.state in {"lost", state}:
            return
        self.state = state
        if state == "suspended":
            self.connected.clear()
        else:
            self.connected.set()
        if state == "lost":
            self.fail()
        self._changed()

    def fail(self) -> None:
        """Fail all calls that have no response."""
        for future in self._waiting:
            if not future.done():
                future.set_exception(ConnectionLoss())

    def lose(self) -> None:
        """Count the session as lost, and end it."""
        self._set_state("lost")
        self.end()

    def end(self) -> threading.Thread:
        """End the session, in a thread that this method returns. The server has a second to respond."""

        def stop() -> None:
            late = threading.Timer(_CLOSE_S, self.client.drop)
            late.daemon = True
            late.start()
            with contextlib.suppress(Exception):
                self.client.stop()
            late.cancel()
            with contextlib.suppress(Exception):
                self.client.close()

        thread = threading.Thread(target=stop, name="headrace-zookeeper-end", daemon=True)
        thread.start()
        return thread

    # Calls

    def path(self, path: str) -> str:
        """Return the path from the root of ZooKeeper."""
        chroot: str = self.client.chroot
        return f"{chroot}{path}" if path != "/" else chroot or "/"

    async def ask(self, requests: Sequence[Any]) -> list[Any]:
        """Send requests at once, and return the responses: values, or exceptions of ZooKeeper.

        Raises:
            NotSent: There is no connection, and the first request was not sent.
            ConnectionLoss: The connection broke, or the server did not respond in time.
        """
        if not requests:
            return []
        results = [self.client.send(request) for request in requests]
        await self._arrival(results)
        found: list[Any] = []
        for result in results:
            if not result.ready():
                raise ConnectionLoss
            error = result.exception
            if error is None:
                found.append(result.value)
            elif isinstance(error, (NoNodeError, NodeExistsError)):
                found.append(error)
            else:
                raise error
        return found

    async def _arrival(self, results: Sequence[Any]) -> None:
        left = len(results)
        future: asyncio.Future[None] = self._loop.create_future()

        def arrived() -> None:
            if not future.done():
                future.set_result(None)

        def one(_result: object) -> None:  # in the completion thread of kazoo
            nonlocal left
            left -= 1
            if not left:
                self._soon(arrived)

        for result in results:
            result.rawlink(one)
        self._waiting.add(future)
        try:
            await asyncio.wait_for(future, self.client.call_timeout_s)
        except TimeoutError:
            self.client.drop()
            raise ConnectionLoss from None
        finally:
            self._waiting.discard(future)

    async def one(self, request: Any) -> Any:
        """Send a request, and return the response; raise an exception of ZooKeeper."""
        (found,) = await self.ask([request])
        if isinstance(found, Exception):
            raise found
        return found

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, ZnodeStat] | None]:
        """Return data and stat of znodes; None for those that do not exist."""
        found: list[tuple[bytes, ZnodeStat] | None] = []
        for start in range(0, len(paths), CHUNK):
            asked = [GetData(self.path(path), None) for path in paths[start : start + CHUNK]]
            responses = await self.ask(asked)
            found += [None if isinstance(each, Exception) else each for each in responses]
        return found

    async def fresh_many(self, paths: Sequence[str]) -> list[tuple[bytes, ZnodeStat] | None]:
        """Return data and stat of up to 500 znodes, as the leader of the ensemble knows them."""
        asked = [Sync(self.path("/")), *(GetData(self.path(path), None) for path in paths)]
        return [
            None if isinstance(each, Exception) else each for each in (await self.ask(asked))[1:]
        ]

    async def get(
        self, path: str, watch: Callable[[], object] | None = None
    ) -> tuple[bytes, ZnodeStat] | None:
        """Return data and stat of a znode, and watch it; None if it does not exist, without a watch."""
        (found,) = await self.ask([GetData(self.path(path), self._watcher(watch))])
        return None if isinstance(found, Exception) else found

    async def exists(
        self, path: str, watch: Callable[[], object] | None = None
    ) -> ZnodeStat | None:
        """Return the stat of a znode, None if it does not exist, and watch it in any case."""
        return (await self.ask([Exists(self.path(path), self._watcher(watch))]))[0]

    async def stats(self, paths: Sequence[str]) -> list[ZnodeStat | None]:
        """Return the stats of znodes; None for those that do not exist."""
        found: list[ZnodeStat | None] = []
        for start in range(0, len(paths), CHUNK):
            chunk = paths[start : start + CHUNK]
            found += await self.ask([Exists(self.path(path), None) for path in chunk])
        return found

    async def children(self, path: str) -> list[str] | None:
        """Return the sorted names of the children of a znode; None if it does not exist."""
        (found,) = await self.ask([GetChildren(self.path(path), None)])
        return None if isinstance(found, Exception) else sorted(found)

    async def children_of_many(self, paths: Sequence[str]) -> list[list[str]]:
        """Return the sorted names of the children of each znode; [] for one that does not exist."""
        responses = await self.ask([GetChildren(self.path(path), None) for path in paths])
        return [[] if isinstance(each, Exception) else sorted(each) for each in responses]

    async def sync(self) -> None:
        """Let the server catch up with the leader of the ensemble."""
        await self.one(Sync(self.path("/")))

    async def multi(self, operations: Sequence[Operation]) -> list[Any]:
        """Apply all operations or none, and return the results: exceptions if none was applied."""
        return await self.one(Transaction(list(operations)))  # type: ignore[no-any-return]  # kazoo has no types

    async def one_write(self, path: str, data: bytes) -> ZnodeStat:
        """Replace the data of a znode, and return its stat."""
        return await self.one(self.writing(path, data))

    async def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> bool:
        """Create a znode; return False if it exists already."""
        (found,) = await self.ask([self.creation(path, data, ephemeral=ephemeral)])
        if isinstance(found, NoNodeError):
            raise found
        return not isinstance(found, Exception)

    def creation(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> Create:
        """Return the operation that creates a znode."""
        flags = (_EPHEMERAL if ephemeral else 0) | (_SEQUENCE if sequence else 0)
        return Create(self.path(path), data, self.client.default_acl, flags)

    def writing(self, path: str, data: bytes, version: int = -1) -> SetData:
        """Return the operation that replaces the data of a znode."""
        return SetData(self.path(path), data, version)

    def deletion(self, path: str, version: int = -1) -> Delete:
        """Return the operation that deletes a znode."""
        return Delete(self.path(path), version)

    def checking(self, path: str, version: int) -> CheckVersion:
        """Return the operation that checks the version of a znode."""
        return CheckVersion(self.path(path), version)

    def _watcher(
        self, watch: Callable[[], object] | None
    ) -> Callable[[WatchedEvent], object] | None:
        if watch is None:
            return None

        def happened(event: WatchedEvent) -> None:
            if event.type != EventType.NONE:  # kazoo reports the end of a connection so
                self._soon(watch)

        return happened
