"""Serves an embedded broker over TCP, from a thread of its own with an event loop, while local clients go on.

The rules of the threads:

1. One lock, `World.condition`, guards the broker and the engines of its local clients. Every call of the broker is made
   under it. The hub makes its calls through `_SharedBroker`, which takes the lock for each; frames, sockets and the
   encoding of answers are the loop's own and need none.
2. An answer is given where it belongs. One for the network is resolved in the loop's thread: at once if that is
   the present one, else it is put in a queue and the loop is called. One for a local client goes into its inbox, and
   the client is woken, whose thread goes on with it.
3. Local clients whose timers are due come before the broker is told the time: the hub's tick is `World.pump`. So no
   thread expels a local member by the silence of its own process.
4. On a disk, syncs and compaction are the loop's: under the lock a sync would hold up everybody. A local thread that
   leaves something to sync, or a deadline before the one that the loop knows of, calls the loop (`used`). In memory
   there is nothing to wait for, and the thread at hand does it.
5. Nobody waits for the loop's thread while holding the lock.
6. The loop reads records out of segment files without the lock. What a `FileRange` covers is written once and never
   changes, and a file that is removed meanwhile stays readable for those that have it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.context import RequestContext
from headrace.broker.quotas.throttling import Throttled
from headrace.broker.session import Session
from headrace.broker.waiting.steps import Work
from headrace.clock import SteadyClock
from headrace.config import listeners
from headrace.config.broker import BrokerConfig
from headrace.core.deferred import Deferred
from headrace.errors import ConfigError
from headrace.ports import Journal
from headrace.protocol.codec import Message
from headrace.server.descriptors import descriptor_limit
from headrace.server.hub import BrokerHub
from headrace.server.jwks import KeyReader
from headrace.server.listeners import BoundListener
from headrace.server.log import RateLimited, describe
from headrace.server.process import server_limits

if TYPE_CHECKING:
    from headrace.streams.world import World

_DRAIN_TIMEOUT_S: Final = 2.5
_SYNC_TIMEOUT_S: Final = 30
_LOOK_INTERVAL_S: Final = 0.01
_ACCEPT_TURNS: Final = 8
"""Turns of the loop within which a socket that asyncio has accepted is known to the hub, and can be closed."""


class LoopbackListener:
    """The thread that serves a world's broker to other processes."""

    def __init__(self, world: World, journal: Journal) -> None:
        """Start the thread; it serves nobody before `open`.

        Raises:
            ConfigError: The broker has a clock of its own, which sockets know nothing of.
        """
        if not isinstance(world.clock, SteadyClock):
            raise ConfigError(
                "a broker with a clock that is moved by hand cannot listen: leave `clock` out"
            )
        self.stuck = False
        """After `close`: whether a sync is still under way."""
        self._world = world
        self._clock: SteadyClock = world.clock
        self._journal = journal
        self._left: deque[Callable[[], object]] = deque()
        """What other threads have left to this one, in order."""
        self._called = False
        self._noted_ms: int | None = None
        """The broker's next deadline, as the loop saw it last."""
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

    # For the owner, without the lock

    def open(self, listener: listeners.Listener) -> listeners.ListenAddress:
        """Accept connections at an address; returns it with the port that was chosen.

        Raises:
            ConfigError: The address is taken, unknown or not allowed, or the certificate cannot be used.
        """
        bound = BoundListener(listener, self._world.broker.config, self._journal)
        try:
            asyncio.run_coroutine_threadsafe(self._serve(bound), self._loop).result()
        except ConfigError:
            bound.close()
            raise
        return bound.listener.address

    def close(self) -> None:
        """Stop accepting, answer what only waits for a sync, close the connections, and end the thread."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    # For the world, under the lock

    def used(self) -> None:
        """Take note that the broker was used: call the loop if that left it something to do."""
        if self._is_loop() or not self._running:
            return
        broker, noted_ms = self._world.broker, self._noted_ms
        due_ms = broker.next_deadline_ms
        sooner = due_ms is not None and (noted_ms is None or due_ms < noted_ms)
        if sooner or broker.sync_due or broker.compaction_due:
            self._call()

    def clock_leapt(self) -> None:
        """Have the loop set its timer anew: a test has moved the clock ahead."""
        if self._running:
            self._loop.call_soon_threadsafe(self._hub.clock_leapt)

    def peers(self) -> set[str]:
        """Return HOST:PORT of each client that is connected."""
        return {each.client for each in self._hub.connections} if self._running else set()

    # For `_SharedBroker`, under the lock

    def answer(self, deferred: Deferred[Any], value: Any) -> None:
        """Have an answer for the network resolved in the loop's thread."""
        if self._is_loop():
            deferred.resolve(value)
        elif self._running:
            self._left.append(partial(deferred.resolve, value))
            self._call()

    def in_the_loop(self, function: Callable[[], object]) -> None:
        """Call a function in the loop's thread, before what is answered later."""
        if self._is_loop() or not self._running:
            function()
        else:
            self._left.append(function)
            self._call()

    def noted(self, due_ms: int | None) -> int | None:
        """Take note that the loop has seen the broker's next deadline."""
        self._noted_ms = due_ms
        return due_ms

    def _is_loop(self) -> bool:
        return threading.get_ident() == self._thread.ident

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._loop.call_soon_threadsafe(self._come)

    # In the thread

    def _work(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._main())
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it
            self._journal.error("listener_failed", error=describe(error))
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._loop_failed)
        self._stop = asyncio.Event()
        self._hub = BrokerHub(
            loop,
            _SharedBroker(self._world, self),
            clock=self._clock,
            limits=server_limits(self._world.broker.config, descriptor_limit(raise_it=False)),
            journal=(
                self._journal
                if isinstance(self._journal, RateLimited)
                else RateLimited(self._journal, self._clock.now_ms)
            ),
            on_failure=self._sync_failed,
        )
        self._world.broker.services.authenticator.run_aside = self._run_aside
        keys = KeyReader(loop, self._world.broker.services.authenticator, self._journal)
        self._running = True
        self._hub.start()
        self._started.set()
        await self._stop.wait()
        keys.close()
        await self._end()

    def _run_aside(
        self, work: Callable[[], Any], done: Callable[[Any], object]
    ) -> Callable[[], object]:
        """Check a password in a thread that does not hold the lock, for milliseconds."""

        def finish(outcome: Any) -> None:
            with self._world.condition:
                done(outcome)
                self._world.hand_over()

        return self._hub.aside.run(work, finish)

    async def _serve(self, bound: BoundListener) -> None:
        await bound.serve(self._hub, self._loop)
        self._bound.append(bound)

    async def _end(self) -> None:
        # A socket that was accepted just now would be forgotten open by a server that closes at once (an assertion in
        # asyncio): first no more are accepted, then those become connections, then the servers close.
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
        with self._world.condition:
            self._running = False
        self._hub.stop()

    def _come(self) -> None:
        """Do what other threads have left to this one."""
        hub, left = self._hub, self._left
        with self._world.condition:
            self._called = False
            hub.begin()
            while left:
                left.popleft()()
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
    """The broker as the hub sees it: each call under the lock, answers in the loop's thread."""

    def __init__(self, world: World, listener: LoopbackListener) -> None:
        self.quotas = world.broker.services.quotas
        self._world = world
        self._listener = listener
        self._broker = world.broker
        self._lock = world.condition

    @property
    def config(self) -> BrokerConfig:
        return self._broker.config

    @property
    def next_deadline_ms(self) -> int | None:
        with self._lock:
            if self._world.closed:
                return None
            return self._listener.noted(self._broker.next_deadline_ms)

    def handle(self, context: RequestContext, request: Any) -> Any:
        world = self._world
        with self._lock:
            now_ms = world.now_ms()
            context.session.in_its_thread = self._listener.in_the_loop
            if context.now_ms != now_ms:  # others may have told the broker a later time meanwhile
                context = context._replace(now_ms=now_ms)
            reply = self._broker.handle(context, request)
            if isinstance(reply, Deferred) and not reply.done:
                reply = self._in_the_loop(reply)
            world.hand_over()
        return reply

    def _in_the_loop(self, reply: Deferred[Any]) -> Deferred[Any]:
        """Return a deferred that is resolved, and may be cancelled, in the loop's thread without the lock."""

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
            self._world.hand_over()
        return outcome

    def unsupported_version(self) -> Message:
        return self._broker.unsupported_version()

    def tick(self, now_ms: int) -> None:  # noqa: ARG002 - it may have grown later before the lock was had
        with self._lock:
            self._world.pump()

    @property
    def sync_due(self) -> bool:
        with self._lock:
            return self._broker.sync_due

    def start_sync(self) -> Any:
        with self._lock:
            return self._broker.start_sync()

    def finish_sync(self, batch: Any, error: OSError | None, now_ms: int) -> None:  # noqa: ARG002 - as in `tick`
        with self._lock:
            self._broker.finish_sync(batch, error, self._world.now_ms())
            self._world.hand_over()

    @property
    def compaction_due(self) -> bool:
        with self._lock:
            return self._broker.compaction_due

    def start_compaction(self) -> Any:
        with self._lock:
            return self._broker.start_compaction()

    def finish_compaction(self, task: Any, error: Exception | None, now_ms: int) -> None:  # noqa: ARG002 - as in `tick`
        with self._lock:
            self._broker.finish_compaction(task, error, self._world.now_ms())
            self._world.hand_over()
