"""Serves an embedded broker over TCP from a thread with an event loop. Local clients use the broker at the same time.

The rules for the threads:

1. One lock, `BrokerRuntime.condition`, guards the broker and the engines of its local clients. Each call of the broker
   needs the lock. The hub calls the broker through `_SharedBroker`, which takes the lock for each call. Frames, sockets
   and the encoding of responses belong to the event loop and need no lock.
2. The event loop's thread resolves the responses for the network. Another thread that has such a response puts it in a
   queue and wakes the event loop. A response for a local client goes into the client's inbox; the client's thread wakes
   and processes it.
3. The hub's tick is `BrokerRuntime.pump`. It runs the due timers of local clients before the timers of the broker. So
   the broker does not expire the session of a local member whose heartbeat is due in the same process.
4. If the data is on a disk, the event loop runs syncs and compaction, because a sync under the lock would block all
   threads. A local thread wakes the event loop if it leaves records to sync, or a deadline before the one that the
   event loop knows (`used`). If the data is in memory, any thread does this work at once.
5. No thread waits for the event loop's thread while it holds the lock.
6. The event loop reads records from segment files without the lock. The bytes of a `FileRange` never change, and a
   deleted file stays readable through its open descriptor.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from headrace.broker.context import RequestContext
from headrace.broker.quotas.throttling import Throttled
from headrace.broker.session import Session
from headrace.broker.waiting.steps import Work
from headrace.clock import SteadyClock
from headrace.config import listeners
from headrace.config.broker import BrokerConfig
from headrace.deferred import Deferred
from headrace.embedded.runtime import BrokerRuntime
from headrace.errors import ConfigError
from headrace.ports import Journal
from headrace.protocol.codec import Message
from headrace.server.descriptors import descriptor_limit
from headrace.server.hub import BrokerHub
from headrace.server.jwks import KeyReader
from headrace.server.listeners import BoundListener
from headrace.server.log import RateLimited, describe
from headrace.server.process import server_limits

_DRAIN_TIMEOUT_S: Final = 2.5
"""The longest wait for pending responses in `close`, in seconds."""
_SYNC_TIMEOUT_S: Final = 30
"""The longest wait for a running sync in `close`, in seconds."""
_LOOK_INTERVAL_S: Final = 0.01
"""The interval in seconds in which `close` checks whether the sync has ended."""
_ACCEPT_TURNS: Final = 8
"""The turns of the event loop after which the hub knows each accepted socket and can close it."""


class LoopbackListener:
    """The thread that serves an embedded broker to other processes."""

    def __init__(self, runtime: BrokerRuntime) -> None:
        """Start the thread. It accepts no connections before `open`.

        Raises:
            ConfigError: The program moves the broker's clock. The timers of sockets need a real clock.
        """
        if not isinstance(runtime.clock, SteadyClock):
            raise ConfigError(
                "a broker with a clock that is moved by hand cannot listen: leave `clock` out"
            )
        self.stuck = False
        """Whether a sync was still running when `close` returned."""
        self._runtime = runtime
        self._clock: SteadyClock = runtime.clock
        self._journal: Journal = runtime.broker.services.journal
        self._queue: deque[Callable[[], object]] = deque()
        """Calls that other threads leave to the event loop, in order."""
        self._called = False
        """Whether the event loop will empty the queue at its next turn."""
        self._noted_ms: int | None = None
        """The broker's next deadline when the event loop asked last, in milliseconds since 1970; None if none."""
        self._running = False
        self._hub: BrokerHub
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._bound: list[BoundListener] = []
        self._thread = threading.Thread(target=self._work, name="headrace-listen", daemon=True)
        self._started = threading.Event()
        self._thread.start()
        self._started.wait()
        if not self._running:
            raise ConfigError("the thread that listens could not be started; the log says why")

    # Without the lock

    def open(self, listener: listeners.Listener) -> listeners.ListenAddress:
        """Accept connections at an address.

        Returns:
            The address, with the port that the system chose.

        Raises:
            ConfigError: The address is in use, unknown or not permitted, or the certificate cannot be used.
        """
        bound = BoundListener(listener, self._runtime.broker.config, self._journal)
        try:
            asyncio.run_coroutine_threadsafe(self._serve(bound), self._loop).result()
        except ConfigError:
            bound.close()
            raise
        return bound.listener.address

    def close(self) -> None:
        """Stop accepting, answer requests that only wait for a sync, close the connections, and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    # For the runtime, with the lock held

    def used(self) -> None:
        """Wake the event loop if the use of the broker left work to it."""
        if self._is_loop() or not self._running:
            return
        broker, noted_ms = self._runtime.broker, self._noted_ms
        due_ms = broker.next_deadline_ms
        sooner = due_ms is not None and (noted_ms is None or due_ms < noted_ms)
        if sooner or broker.sync_due or broker.compaction_due:
            self._call()

    def clock_leapt(self) -> None:
        """Set the timer of the event loop again, because a test has moved the clock forward."""
        if self._running:
            self._loop.call_soon_threadsafe(self._hub.clock_leapt)

    def peers(self) -> set[str]:
        """Return HOST:PORT of each connected client."""
        return {each.client for each in self._hub.connections} if self._running else set()

    # For `_SharedBroker`, with the lock held

    def answer(self, deferred: Deferred[Any], value: Any) -> None:
        """Resolve a response for the network in the event loop's thread."""
        if self._is_loop():
            deferred.resolve(value)
        elif self._running:
            self._queue.append(partial(deferred.resolve, value))
            self._call()

    def in_the_loop(self, function: Callable[[], object]) -> None:
        """Call a function in the event loop's thread, before the responses that follow are resolved."""
        if self._is_loop() or not self._running:
            function()
        else:
            self._queue.append(function)
            self._call()

    def noted(self, due_ms: int | None) -> int | None:
        """Remember the broker's next deadline, which the event loop has just read, and return it."""
        self._noted_ms = due_ms
        return due_ms

    def _is_loop(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._empty_queue)

    # In the event loop's thread

    def _work(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._main())
        except Exception as error:  # noqa: BLE001 - no other thread would log it
            self._journal.error("listener_failed", error=describe(error))
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._loop_failed)
        self._stop = asyncio.Event()
        self._hub = BrokerHub(
            loop,
            _SharedBroker(self._runtime, self),
            clock=self._clock,
            limits=server_limits(self._runtime.broker.config, descriptor_limit(raise_it=False)),
            journal=(
                self._journal
                if isinstance(self._journal, RateLimited)
                else RateLimited(self._journal, self._clock.now_ms)
            ),
            on_failure=self._sync_failed,
        )
        self._runtime.broker.services.authenticator.run_aside = self._run_aside
        keys = KeyReader(loop, self._runtime.broker.services.authenticator, self._journal)
        self._running = True
        self._hub.start()
        self._started.set()
        await self._stop.wait()
        keys.close()
        await self._end()

    def _run_aside(
        self, work: Callable[[], Any], done: Callable[[Any], object]
    ) -> Callable[[], object]:
        """Run work that takes milliseconds, such as the check of a password, in a thread without the lock."""

        def finish(outcome: Any) -> None:
            with self._runtime.condition:
                done(outcome)
                self._runtime.wake_answered()

        return self._hub.aside.run(work, finish)

    async def _serve(self, bound: BoundListener) -> None:
        await bound.serve(self._hub, self._loop)
        self._bound.append(bound)

    async def _end(self) -> None:
        # If a server closes right after asyncio has accepted a socket, an assertion in asyncio fails and the socket
        # stays open. So (1) the servers stop accepting, (2) accepted sockets become connections, (3) the servers close.
        for bound in self._bound:
            bound.stop_accepting(self._loop)
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)
        for bound in self._bound:
            bound.stop_serving()
        await self._hub.drain(_DRAIN_TIMEOUT_S)
        await self._hub.close_connections()
        waited_s = 0.0
        while self._hub.syncer.in_flight and waited_s < _SYNC_TIMEOUT_S:
            await asyncio.sleep(_LOOK_INTERVAL_S)
            waited_s += _LOOK_INTERVAL_S
        self.stuck = self._hub.syncer.in_flight
        with self._runtime.condition:
            self._running = False
        self._hub.stop()

    def _empty_queue(self) -> None:
        """Make the calls that other threads have left to the event loop."""
        hub, queue = self._hub, self._queue
        with self._runtime.condition:
            self._called = False
            hub.begin()
            while queue:
                queue.popleft()()
        hub.compactor.kick()
        hub.end()

    def _sync_failed(self, error: BaseException) -> None:
        self._journal.error("sync_failed", error=describe(error), action="refusing what is written")

    def _loop_failed(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._journal.error(
            "loop_error", message=str(context.get("message")), error=describe(error)
        )


class _SharedBroker:
    """The broker for the hub: it takes the lock for each call, and resolves responses in the event loop's thread."""

    def __init__(self, runtime: BrokerRuntime, listener: LoopbackListener) -> None:
        self.quotas = runtime.broker.services.quotas
        self._runtime = runtime
        self._listener = listener
        self._broker = runtime.broker
        self._lock = runtime.condition

    @property
    def config(self) -> BrokerConfig:
        return self._broker.config

    @property
    def next_deadline_ms(self) -> int | None:
        with self._lock:
            if self._runtime.closed:
                return None
            return self._listener.noted(self._broker.next_deadline_ms)

    def handle(self, context: RequestContext, request: Any) -> Any:
        runtime = self._runtime
        with self._lock:
            now_ms = runtime.now_ms()
            context.session.in_its_thread = self._listener.in_the_loop
            # Another thread may have moved the time of the broker forward since the context was made.
            if context.now_ms != now_ms:
                context = context._replace(now_ms=now_ms)
            reply = self._broker.handle(context, request)
            if isinstance(reply, Deferred) and not reply.done:
                reply = self._in_the_loop(reply)
            runtime.wake_answered()
        return reply

    def _in_the_loop(self, reply: Deferred[Any]) -> Deferred[Any]:
        """Return a deferred that the event loop's thread resolves, and can cancel without the lock."""

        def give_up() -> None:
            with self._lock:
                reply.cancel()

        own: Deferred[Any] = Deferred(give_up)
        reply.on_done(lambda value: self._listener.answer(own, value))
        return own

    def throttle(
        self, context: RequestContext, request: Any, reply: Any, *, request_bytes: int, used_us: int
    ) -> Throttled:
        with self._lock:
            return self._broker.throttle(
                context, request, reply, request_bytes=request_bytes, used_us=used_us
            )

    def finish_in_steps(self, work: Work[Any], session: Session) -> Any:
        with self._lock:
            outcome = self._broker.finish_in_steps(work, session)
            if isinstance(outcome, Deferred) and not outcome.done:
                outcome = self._in_the_loop(outcome)
            self._runtime.wake_answered()
        return outcome

    def unsupported_version(self) -> Message:
        return self._broker.unsupported_version()

    def tick(self, now_ms: int) -> None:  # noqa: ARG002 - it is out of date when the thread has the lock
        with self._lock:
            self._runtime.pump()

    @property
    def sync_due(self) -> bool:
        with self._lock:
            return self._broker.sync_due

    def start_sync(self) -> Any:
        with self._lock:
            return self._broker.start_sync()

    def finish_sync(self, batch: Any, error: OSError | None, now_ms: int) -> None:  # noqa: ARG002 - as in `tick`
        with self._lock:
            self._broker.finish_sync(batch, error, self._runtime.now_ms())
            self._runtime.wake_answered()

    @property
    def compaction_due(self) -> bool:
        with self._lock:
            return self._broker.compaction_due

    def start_compaction(self) -> Any:
        with self._lock:
            return self._broker.start_compaction()

    def finish_compaction(self, task: Any, error: Exception | None, now_ms: int) -> None:  # noqa: ARG002 - as in `tick`
        with self._lock:
            self._broker.finish_compaction(task, error, self._runtime.now_ms())
            self._runtime.wake_answered()
