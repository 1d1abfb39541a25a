"""Runs a client's engine over TCP on an asyncio event loop.

Nothing blocks and nothing is locked: engine, pool and protocols belong to the loop's thread. What is due happens by
one timer of the loop, whether or not the program is inside a call; a call is a future that waits for its task.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import socket
from collections.abc import Awaitable, Coroutine
from typing import Any, Final, TypeVar

from headrace.clients.config import ClientConfig
from headrace.clients.drivers.credentials import Credentials, no_token
from headrace.clients.drivers.entry import (
    Entry,
    jitter,
    renewal_share,
    report,
    report_reach,
    warner,
)
from headrace.clients.drivers.sockets import os_reason
from headrace.clients.drivers.tls import client_context, distrust
from headrace.clients.engine import Engine, Outcome, Task
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.network.links import Link
from headrace.clients.network.pool import Pool
from headrace.clock import SteadyClock, boot_ns
from headrace.errors import AuthenticationError, ClosedError, ProtocolError
from headrace.forking import FORKED, disown_in_children
from headrace.types import Buffer, FileRange

T = TypeVar("T")

SLEW_EVERY_MS: Final = 1000


class Wakeup:
    """Wakes one call when its task has ended or needs the program's code."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[None] | None = None

    def __call__(self, _: object = None) -> None:
        """Wake the call that waits."""
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self) -> None:
        """Wait for the next call of this."""
        self._future = asyncio.get_running_loop().create_future()
        try:
            await self._future
        finally:
            self._future = None


class LoopCallbacks:
    """Runs the callbacks of the program that are due, in their order. Coroutines become tasks."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._running = False
        self._tasks: set[asyncio.Future[object]] = set()

    def run(self) -> None:
        """Run the callbacks that are due."""
        if self._running:
            return
        self._running = True
        due = self._engine.callbacks
        try:
            while due:
                try:
                    value = due.popleft()()
                    if inspect.isawaitable(value):
                        self._spawn(value)
                except BaseException as error:
                    report(error)
                    if isinstance(error, KeyboardInterrupt):
                        raise  # Ctrl-C, where the program runs its loop without asyncio.run
        finally:
            self._running = False

    def _spawn(self, value: Awaitable[object]) -> None:
        task = asyncio.ensure_future(value)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[object]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            report(error)


class LinkProtocol(asyncio.BufferedProtocol):
    """The asyncio protocol of one link."""

    def __init__(self, driver: AioDriver, link: Link) -> None:
        self._driver = driver
        self._link = link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to use the transport."""
        assert isinstance(transport, asyncio.Transport), "a TCP connection has such a transport"
        if self._link.lost is None:
            transport.set_write_buffer_limits(high=0)  # so that `resume_writing` tells of each end
            self._link.socket = transport
            self._driver.pool.connected(self._link)
        else:
            transport.abort()

    def resume_writing(self) -> None:
        """Everything has been written: what has no answer is complete."""
        self._driver.refresh()
        self._link.connection.written()
        self._driver.pool.received(self._link)
        self._driver.arm()

    def get_buffer(self, _: int) -> memoryview:
        """Return where the next bytes go."""
        return self._link.connection.get_buffer()

    def buffer_updated(self, count: int) -> None:
        """Handle bytes that were received."""
        link, driver = self._link, self._driver
        if link.lost is not None:
            return
        driver.refresh()
        try:
            link.connection.bytes_received(count)
        except AuthenticationError as error:
            driver.pool.denied(link, error)
        except ProtocolError as error:
            driver.pool.lost(link, f"lost: {error}")
        except Exception as error:  # noqa: BLE001 - calls that wait for the connection get it
            driver.pool.failed(link, error)
        else:
            driver.pool.received(link)
        driver.arm()

    def connection_lost(self, error: Exception | None) -> None:
        """Give up the link."""
        link, driver = self._link, self._driver
        if isinstance(error, OSError):
            reason = f"lost: {os_reason(error)}"
        else:
            reason = "closed the connection" if error is None else f"lost: {error}"
        driver.refresh()
        distrusted = None if error is None or link.ready else distrust(link.peer, error)
        if distrusted is not None:
            driver.pool.denied(link, distrusted)
        else:
            driver.pool.lost(link, reason)
        driver.arm()


class Transports:
    """The shell of a `Pool`."""

    def __init__(
        self, driver: AioDriver, loop: asyncio.AbstractEventLoop, config: ClientConfig
    ) -> None:
        self.opening: dict[Link, asyncio.Task[None]] = {}
        """The tasks that connect or authenticate a link."""
        self._tls = client_context(config) if config.encrypted else None
        self._credentials = Credentials(config) if config.authenticates else None
        self._driver = driver
        self._loop = loop

    def open(self, link: Link) -> None:
        """Start to connect a link."""
        self._begin(link, self._connect(link))

    def _begin(self, link: Link, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self.opening[link] = task

        def ended(_: object) -> None:
            if self.opening.get(link) is task:
                del self.opening[link]

        task.add_done_callback(ended)

    def authenticate(self, link: Link) -> None:
        """Present credentials: at once, or when the program has given a token."""
        credentials = self._credentials
        assert credentials is not None, "only a client that logs in is asked to"
        if credentials.program_is_asked:
            self._begin(link, self._ask_program(link, credentials))
            return
        try:
            client = credentials.client()
        except AuthenticationError as error:
            self._driver.pool.denied(link, error)
        else:
            self._driver.pool.present(link, client)

    async def _ask_program(self, link: Link, credentials: Credentials) -> None:
        try:
            if credentials.asks_a_coroutine:
                answer = await credentials.ask_program()
            else:
                answer = await self._loop.run_in_executor(None, credentials.ask_program)
                answer = await answer if inspect.isawaitable(answer) else answer
            credentials.keep(answer)
            client = credentials.client()
        except Exception as error:  # noqa: BLE001 - calls that wait for the connection get it
            self._driver.refresh()
            self._driver.pool.denied(link, no_token(error))
        else:
            self._driver.refresh()
            self._driver.pool.present(link, client)
        self._driver.arm()

    def flush(self, link: Link) -> None:
        """Hand the connection's output to its transport."""
        transport = link.socket
        if link.lost is None and isinstance(transport, asyncio.Transport):
            transport.writelines(map(_bytes, link.connection.take_output()))
            if not transport.get_write_buffer_size():
                link.connection.written()

    def close(self, link: Link) -> None:
        """Close a link's transport, or stop connecting."""
        task = self.opening.pop(link, None)
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        if isinstance(link.socket, asyncio.Transport):
            link.socket.abort()

    async def _connect(self, link: Link) -> None:
        host, port = link.address
        try:
            await self._loop.create_connection(
                lambda: LinkProtocol(self._driver, link),
                host,
                port,
                happy_eyeballs_delay=0.25,
                ssl=self._tls,
                server_hostname=None if self._tls is None else host,
            )
        except (OSError, UnicodeError) as error:
            self._driver.refresh()
            distrusted = distrust(link.peer, error)
            if distrusted is not None:
                self._driver.pool.denied(link, distrusted)
            elif isinstance(error, ConnectionError) and not error.errno:
                # asyncio's own word for a connection that ends while TLS shakes hands.
                self._driver.pool.lost(link, "closed the connection")
            else:
                self._driver.pool.refused(link, refusal(error))
            self._driver.arm()
        except Exception as error:  # noqa: BLE001 - a task that ends in silence would leave the link without an outcome
            self._driver.refresh()
            self._driver.pool.failed(link, error)
            self._driver.arm()


class AioDriver:
    """Runs the engine of one client; to be created and used on one running event loop."""

    def __init__(self, state: ClientState, config: ClientConfig) -> None:
        self._config = config
        self._loop = running_loop()
        self._transports = Transports(self, self._loop, config)
        self._clock = SteadyClock(monotonic_ns=boot_ns)
        self._slew_at_ms = 0
        self.pool = Pool(
            state,
            config,
            self._transports,
            now_ms=self._clock.now_ms,
            shuffle=random.shuffle,
            on_error=report,
            renewal_share=renewal_share,
            report=report_reach,
        )
        self.engine = Engine(
            state,
            self.pool,
            now_ms=self._clock.now_ms(),
            request_timeout_ms=config.request_timeout_ms,
            jitter=jitter,
        )
        self.engine.trouble.warn = warner(config.client_id)
        self._callbacks = LoopCallbacks(self.engine)
        self._armed_for = 0
        """How many requests the pool had been given when the timer was set last."""
        self._entry = Entry(self._enter, self._leave)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._wakeups: set[Wakeup] = set()
        self._closed = False
        self._forked = False
        disown_in_children(self)

    # What a client uses

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the client."""
        return self._loop

    @property
    def closed(self) -> bool:
        """Whether the client is closed, or belongs to the parent of this forked process."""
        return self._closed

    @property
    def trouble(self) -> str | None:
        """The reason why no broker can be reached at present; None if there is no known reason."""
        return self.pool.trouble

    @property
    def ended(self) -> bool:
        """Whether the client has no resources: it is closed, or its broker in this process is."""
        return self._closed

    @property
    def lost_connections(self) -> int:
        """The number of connections that have ended so far."""
        return self.pool.lost_connections

    def now_ms(self) -> int:
        """Return the time of the engine's clock. Any thread may call it."""
        return self._clock.now_ms()

    async def run(self, flow: Flow[T], timeout_ms: int | None = None) -> T:
        """Run a flow to its end and return its result.

        Args:
            flow: The flow.
            timeout_ms: Milliseconds that the flow may take; None is `request.timeout.ms`.

        Raises:
            ApiError: A broker refused.
            TransportError: No broker answered in time.
            ClosedError: The client is closed.
        """
        self._enter()
        limit_ms = self._config.request_timeout_ms if timeout_ms is None else timeout_ms
        wakeup = Wakeup()
        self._wakeups.add(wakeup)
        task = self.engine.spawn(flow, timeout_ms=limit_ms, on_done=wakeup, on_invoke=wakeup)
        self.arm()
        try:
            while not task.done:
                if self._closed:
                    raise self._closed_error()
                if task.invocation is not None:
                    await self._invoke(task)
                else:
                    await wakeup.wait()
        finally:
            self._wakeups.discard(wakeup)
            self.engine.cancel(task)
        return task.result()

    def enter(self) -> Entry:
        """Return a context in which the engine may be used at once: `with driver.enter() as engine`.

        Raises:
            ClosedError: On entry: the client is closed.
        """
        return self._entry

    def start_background(self) -> None:
        """Nothing: what is due happens on the loop in any case."""

    async def connect(self) -> None:
        """Check that some broker answers; try each address once.

        Raises:
            TransportError: None does.
        """
        self._enter()
        outcomes: list[Outcome] = []
        wakeup = Wakeup()

        def done(outcome: Outcome) -> None:
            outcomes.append(outcome)
            wakeup()

        self.pool.connect(self.engine.now_ms + self._config.request_timeout_ms, done)
        self.arm()
        if not outcomes:
            await wakeup.wait()
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]

    async def close(self) -> None:
        """Close all connections; running calls fail."""
        if self._closed:
            return
        self._closed = True
        opening = list(self._transports.opening.values())
        self.pool.close()
        for wakeup in self._wakeups:
            wakeup()
        if self._timer is not None:
            self._timer.cancel()
        self._callbacks.run()
        if opening:
            await asyncio.wait(opening)
        await asyncio.sleep(0)  # transports close at the loop's next turn

    def disown(self) -> None:
        """Become closed, in a forked child: the transports are the parent's."""
        self._closed = self._forked = True

    def _closed_error(self) -> ClosedError:
        return ClosedError(f"this client {FORKED}" if self._forked else "the client is closed")

    # The engine on the loop

    def refresh(self) -> None:
        """Pass the time of the clock to the engine."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._slew_at_ms:
            self._slew_at_ms = now_ms + SLEW_EVERY_MS
            self._clock.slew()
        self.engine.now_ms = max(self.engine.now_ms, now_ms)

    def arm(self) -> None:
        """Have the loop call when something is due; a timer that comes earlier than it need is left to come."""
        if self.engine.callbacks:
            self._callbacks.run()
        self._armed_for = self.pool.submitted
        due_ms = self.engine.next_deadline_ms
        pool_ms = self.pool.next_deadline_ms
        if pool_ms is not None and (due_ms is None or pool_ms < due_ms):
            due_ms = pool_ms
        if due_ms is None or self._closed:
            return
        if self._timer is None or due_ms < self._timer_ms:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = due_ms
            wait_ms = max(0, due_ms - self._clock.now_ms())
            self._timer = self._loop.call_later(wait_ms / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        self.refresh()
        self.pool.expire(self.engine.now_ms)
        try:
            self.engine.advance(self.engine.now_ms)
        except Exception as error:  # noqa: BLE001 - an error of one callback must not stop the others
            report(error)
        self.arm()

    def _enter(self) -> Engine:
        if self._closed:
            raise self._closed_error()
        self.refresh()
        return self.engine

    def _leave(self) -> None:
        # For each record that is sent; what the pool waits for is armed already, unless it was given a request since.
        due_ms = self.engine.next_deadline_ms
        if (
            self.engine.callbacks
            or self.pool.submitted != self._armed_for
            or (due_ms is not None and (self._timer is None or due_ms < self._timer_ms))
        ):
            self.arm()

    async def _invoke(self, task: Task[Any]) -> None:
        """Run the program's code for a task; if it is a coroutine, to its end."""
        value = await outcome_of(task)
        self.refresh()
        self.engine.resume(task, value)
        self.arm()


async def outcome_of(task: Task[Any]) -> object:
    """Run the code that a task asks for, and return its result or the exception it raised."""
    assert task.invocation is not None, "a task asks before it is answered"
    try:
        value = task.invocation.function(*task.invocation.arguments)
        return await value if inspect.isawaitable(value) else value
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - the flow decides; it is raised there
        return error


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop.

    Raises:
        RuntimeError: There is none.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        text = "no event loop is running: create clients of headrace.aio inside a coroutine"
        raise RuntimeError(text) from None


def refusal(error: OSError | UnicodeError) -> str:
    """Return why no connection could be opened, in words."""
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError):
        return str(getattr(error, "strerror", error))
    return os.strerror(error.errno) if error.errno else str(error)


def _bytes(payload: Buffer | FileRange) -> Buffer:
    assert not isinstance(payload, FileRange), "a client sends bytes, never ranges of files"
    return payload
