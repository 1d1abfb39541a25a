"""Drivers run the engine of a blocking or asyncio client: over TCP, or with a broker in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.clients.config import ClientConfig
from headrace.clients.drivers.local_blocking import LocalBlockingDriver
from headrace.clients.drivers.local_target import LocalBroker, port_of
from headrace.clients.engine import Engine
from headrace.clients.flows.effects import ClientState, Flow

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

Target = str | LocalBroker
"""The brokers of a client: `HOST:PORT,HOST:PORT`, or a broker in this process."""


class Driver(Protocol):
    """Runs the engine of one blocking client. Any thread may use it."""

    engine: Engine

    def now_ms(self) -> int:
        """Return the time of the engine's clock. Any thread may call it."""

    @property
    def by_hand(self) -> bool:
        """Whether the program moves the broker's clock. Then no thread of Headrace may use the client."""

    @property
    def closed(self) -> bool:
        """Whether the client is closed, or belongs to the parent of this forked process."""

    @property
    def ended(self) -> bool:
        """Whether the client has no resources: it is closed, or its broker in this process is."""

    @property
    def lost_connections(self) -> int:
        """The number of connections that have ended so far."""

    def run(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        """Run a flow to its end and return its result. The program's function in an `Invoke` may call this method."""

    def enter(self) -> AbstractContextManager[Engine]:
        """Return a context in which the caller may use the engine: `with driver.enter() as engine`."""

    def start_background(self) -> None:
        """Start to do what is due also while the program is not inside a call."""

    def connect(self) -> None:
        """Check that some broker answers; try each address once."""

    def close(self) -> None:
        """Close all connections. Running calls fail."""


class AsyncDriver(Protocol):
    """Runs the engine of one client on an event loop. Only tasks of that loop may use it."""

    engine: Engine

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the client."""

    def now_ms(self) -> int:
        """Return the time of the engine's clock. Any thread may call it."""

    @property
    def closed(self) -> bool:
        """Whether the client is closed, or belongs to the parent of this forked process."""

    @property
    def trouble(self) -> str | None:
        """The reason why no broker can be reached at present; None if there is no known reason."""

    @property
    def ended(self) -> bool:
        """Whether the client has no resources: it is closed, or its broker in this process is."""

    @property
    def lost_connections(self) -> int:
        """The number of connections that have ended so far."""

    async def run(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        """Run a flow to its end and return its result. The program's function in an `Invoke` may call this method."""

    def enter(self) -> AbstractContextManager[Engine]:
        """Return a context in which the caller may use the engine: `with driver.enter() as engine`."""

    def start_background(self) -> None:
        """Start to do what is due also while the program is not inside a call."""

    async def connect(self) -> None:
        """Check that some broker answers; try each address once."""

    async def close(self) -> None:
        """Close all connections. Running calls fail."""


def open_blocking_driver(target: Target, config: ClientConfig) -> Driver:
    """Return the driver of a blocking client.

    Args:
        target: The brokers. An address must also be in `config`, as `bootstrap_servers`.
        config: The client's configuration.
    """
    if isinstance(target, str):
        from headrace.clients.drivers.tcp_blocking import TcpBlockingDriver  # noqa: PLC0415 - only for TCP

        return TcpBlockingDriver(client_state(config), config)
    return LocalBlockingDriver(port_of(target), config, client_state(config))


def open_aio_driver(target: Target, config: ClientConfig) -> AsyncDriver:
    """Return the driver of an asyncio client on the running event loop; see `open_blocking_driver`."""
    # Importing asyncio takes longer than importing the whole blocking client.
    from headrace.clients.drivers.local_aio import LocalAioDriver  # noqa: PLC0415 - slow to import
    from headrace.clients.drivers.tcp_aio import TcpAioDriver  # noqa: PLC0415 - slow to import

    if isinstance(target, str):
        return TcpAioDriver(client_state(config), config)
    return LocalAioDriver(port_of(target), config, client_state(config))


@contextmanager
def closed_on_error(driver: Driver | AsyncDriver) -> Iterator[None]:
    """Close a blocking driver if the rest of its client's constructor fails.

    An asyncio driver has not opened anything at that moment.
    """
    with ExitStack() as undo:
        if not hasattr(driver, "loop"):
            undo.callback(driver.close)
        yield
        undo.pop_all()


def client_state(config: ClientConfig) -> ClientState:
    """Return the state that a client with this configuration starts with."""
    return ClientState(
        retry_backoff_ms=config.retry_backoff_ms, retry_backoff_max_ms=config.retry_backoff_max_ms
    )
