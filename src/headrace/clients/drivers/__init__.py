"""What acts for a client's engine: over TCP or with a broker in this process, for programs that wait or for asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar

from headrace.clients.config import ClientConfig
from headrace.clients.drivers.local import LocalBroker, LocalDriver, port_of
from headrace.clients.engine import Engine
from headrace.clients.flows.effects import ClientState, Flow

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

Target = str | LocalBroker
"""Where a client finds its brokers: `HOST:PORT,HOST:PORT`, or a broker in this process."""


class Driver(Protocol):
    """Runs the engine of one client for a program that waits. Any thread may use it."""

    engine: Engine

    def now_ms(self) -> int:
        """Return the time by the clock of the engine, which may not have looked at it for a while; from any thread."""

    @property
    def by_hand(self) -> bool:
        """Whether the program moves the clock of the broker: then no thread of Headrace may use the client."""

    @property
    def closed(self) -> bool:
        """Whether the client was closed, or belongs to the parent of this forked process."""

    @property
    def ended(self) -> bool:
        """Whether the client holds nothing any more: it is closed, or the broker of this process is."""

    @property
    def lost_connections(self) -> int:
        """How many connections ended so far, for whatever reason."""

    def run(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        """Run a flow to its end and return its result; also from the program's code in an `Invoke`."""

    def enter(self) -> AbstractContextManager[Engine]:
        """Return a context in which the engine may be used at once: `with driver.enter() as engine`."""

    def start_background(self) -> None:
        """From now on do what is due also while the program is not inside a call."""

    def connect(self) -> None:
        """Make sure that some broker answers, trying each address once."""

    def close(self) -> None:
        """Close every connection; calls under way fail."""


class AsyncDriver(Protocol):
    """Runs the engine of one client on an event loop. Only tasks of that loop may use it."""

    engine: Engine

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""

    def now_ms(self) -> int:
        """Return the time by the clock of the engine, which may not have looked at it for a while; from any thread."""

    @property
    def closed(self) -> bool:
        """Whether the client was closed, or belongs to the parent of this forked process."""

    @property
    def trouble(self) -> str | None:
        """Why no broker can be asked at present; None where that is not known."""

    @property
    def ended(self) -> bool:
        """Whether the client holds nothing any more: it is closed, or the broker of this process is."""

    @property
    def lost_connections(self) -> int:
        """How many connections ended so far, for whatever reason."""

    async def run(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        """Run a flow to its end and return its result; also from the program's code in an `Invoke`."""

    def enter(self) -> AbstractContextManager[Engine]:
        """Return a context in which the engine may be used at once: `with driver.enter() as engine`."""

    def start_background(self) -> None:
        """From now on do what is due also while the program is not inside a call."""

    async def connect(self) -> None:
        """Make sure that some broker answers, trying each address once."""

    async def close(self) -> None:
        """Close every connection; calls under way fail."""


def open_blocking_driver(target: Target, config: ClientConfig) -> Driver:
    """Return the driver of a client that waits.

    Args:
        target: Where its brokers are. An address must be in `config` too, as `bootstrap_servers`.
        config: The client's configuration.
    """
    if isinstance(target, str):
        # A program with its broker inside needs no sockets.
        from headrace.clients.drivers.blocking import BlockingDriver  # noqa: PLC0415 - an embedded one needs no sockets

        return BlockingDriver(client_state(config), config)
    return LocalDriver(port_of(target), config, client_state(config))


def open_aio_driver(target: Target, config: ClientConfig) -> AsyncDriver:
    """Return the driver of a client on the running event loop; the arguments as for a blocking one."""
    # Importing asyncio takes longer than all of a blocking client.
    from headrace.clients.drivers.aio import AioDriver  # noqa: PLC0415 - slow to import
    from headrace.clients.drivers.local_aio import LocalAioDriver  # noqa: PLC0415 - slow to import

    if isinstance(target, str):
        return AioDriver(client_state(config), config)
    return LocalAioDriver(port_of(target), config, client_state(config))


@contextmanager
def closed_on_error(driver: Driver | AsyncDriver) -> Iterator[None]:
    """Close a blocking driver if the rest of its client's constructor fails.

    An asyncio driver has opened nothing at that moment.
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
