"""One broker of a cluster in the test's process: its thread with an event loop, its port, and its files in memory."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from headrace.clock import SteadyClock
from headrace.config.broker import BrokerConfig
from headrace.config.listeners import ListenAddress
from headrace.errors import ClosedError, ConfigError
from headrace.metadata_stores.sessions import SimulatedMetadataStore
from headrace.ports import Peers
from headrace.server.descriptors import descriptor_limit
from headrace.server.limits import HANDOVER_TIMEOUT_S
from headrace.server.listen import chosen_listeners
from headrace.server.listeners import BoundListener
from headrace.server.log import LoggingJournal, RateLimited
from headrace.server.peers import PeerConnections
from headrace.server.process import server_limits
from headrace.server.service import BrokerService
from headrace.server.stores import Stores
from headrace.storage.memory_files import MemoryFileSystem
from headrace.storage.registry import storages
from headrace.testing.cluster.cut_peers import CutPeers
from headrace.testing.cluster.shared_metadata import LoopTimeline

if TYPE_CHECKING:
    from headrace.testing.cluster.cluster import Cluster

T = TypeVar("T")

START_S: Final = 10.0
"""The longest wait for the start or the end of a broker, in seconds."""
_LAST_TURNS: Final = 4
"""The turns of the event loop in which a connection is refused that was accepted when the broker ended."""


class ClusterNode:
    """One broker. Its methods are for the thread of the test."""

    def __init__(self, cluster: Cluster, config: BrokerConfig) -> None:
        """Prepare a broker. `start` binds its ports and starts it.

        Args:
            cluster: The cluster.
            config: The configuration of the broker.

        Raises:
            ConfigError: The listeners are malformed, exposed, or have port numbers.
        """
        self._cluster = cluster
        self._config = config
        self._journal = LoggingJournal(broker=config.broker_id)
        self._files = MemoryFileSystem()
        self._listeners = chosen_listeners((), config, insecure=False)
        if any(listener.address.port for listener in self._listeners):
            raise ConfigError(
                f"listeners={config.listeners}: every broker of the cluster needs ports of its own. Use port 0"
            )
        self._bound: list[BoundListener] = []
        """The ports, between two runs of the broker too: no other program gets them."""
        self._resume: threading.Event | None = None
        """Set at the end of a pause; None if the broker is not paused."""
        self._expiry: threading.Timer | None = None
        """The end of a session whose broker is paused, or has ended without a connection to the metadata store."""
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop
        self._ends: asyncio.Event
        self._ends_cleanly = False
        self._hands_over = False
        self._service: BrokerService | None = None
        self._thread_id = 0
        self._store: SimulatedMetadataStore
        self._links: CutPeers

    def _bind(self) -> None:
        """Bind the ports that the broker had before, or any ports."""
        for listener in self._listeners:
            self._bound.append(BoundListener(listener, self._config, self._journal))
        self._listeners = tuple(bound.listener for bound in self._bound)

    @property
    def broker_id(self) -> int:
        """The id of the broker."""
        return self._config.broker_id

    def address(self, listener: str | None = None) -> ListenAddress:
        """Return host and port of a listener, which stay the same after a restart.

        Args:
            listener: The name of the listener. None is the first one.

        Raises:
            ConfigError: There is no such listener.
        """
        for each in self._listeners:
            if listener in {None, each.name}:
                return each.address
        names = ", ".join(each.name for each in self._listeners)
        raise ConfigError(f"there is no listener {listener!r}, but {names}")

    @property
    def is_running(self) -> bool:
        """Whether the broker's process would be alive, also during a pause."""
        return self._thread is not None

    @property
    def is_paused(self) -> bool:
        """Whether the broker's process would be alive, but stopped."""
        return self._resume is not None

    @property
    def is_responsive(self) -> bool:
        """Whether the broker handles requests."""
        return self.is_running and not self.is_paused

    @property
    def is_connected(self) -> bool:
        """Whether the broker handles requests, and has a connection to the metadata store."""
        return self.is_responsive and not self._store.down

    # Life

    def start(self) -> None:
        """Start the broker, and wait until it accepts connections.

        Raises:
            HeadraceError: The broker could not start.
            TimeoutError: The broker did not start in time.
        """
        if not self._bound:
            self._bind()
        started = threading.Event()
        self._failure = None
        thread = threading.Thread(
            target=self._work,
            args=(started,),
            name=f"headrace-broker-{self.broker_id}",
            daemon=True,
        )
        thread.start()
        if not started.wait(START_S):
            raise TimeoutError(f"broker {self.broker_id} did not start within {START_S} s")
        self._raise_failure(thread)
        self._thread = thread

    def _work(self, started: threading.Event) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._main(started))
        except Exception as error:  # noqa: BLE001 - the thread of the test raises it
            self._failure = error
        finally:
            self._release_ports()
            started.set()

    def _release_ports(self) -> None:
        for bound in self._bound:
            bound.close()
        self._bound.clear()

    async def _main(self, started: threading.Event) -> None:
        self._loop = loop = asyncio.get_running_loop()
        self._thread_id, self._service = threading.get_ident(), None
        self._ends = asyncio.Event()
        clock = SteadyClock()
        journal = RateLimited(self._journal, clock.now_ms)
        descriptors = descriptor_limit(raise_it=False)
        self._store = store = SimulatedMetadataStore(
            self._cluster.metadata,
            LoopTimeline(loop, clock.now_ms, self._run),
            timeout_ms=self._cluster.session_timeout_ms,
            post=self._post,
        )
        with contextlib.closing(store):
            await self._serve(started, clock, journal, descriptors)

    async def _serve(
        self, started: threading.Event, clock: SteadyClock, journal: RateLimited, descriptors: int
    ) -> None:
        config = replace(self._config, advertised_listeners=",".join(map(str, self._listeners)))
        self._service = service = BrokerService(
            config,
            Stores(self._files, (), self._store, storages(in_memory=True)),
            self._bound,
            limits=server_limits(config, descriptors),
            descriptors=descriptors,
            clock=clock,
            journal=journal,
            on_failure=lambda _: None,
            connect=lambda peers: self._connect(peers, clock),
        )
        await service.start()
        started.set()
        await self._ends.wait()
        if self._ends_cleanly:
            await service.stop(lambda: False, hands_over=self._hands_over)
        else:
            await service.abort()
        for _ in range(_LAST_TURNS):
            await asyncio.sleep(0)

    def _connect(self, peers: PeerConnections, clock: SteadyClock) -> Peers:
        self._links = CutPeers(
            peers,
            self._loop,
            clock.now_ms,
            lambda other: self._cluster.is_cut(self.broker_id, other),
            lambda resolve: peers.deliver(resolve),  # noqa: PLW0108 - the service sets the attribute later
        )
        return self._links

    def _post(self, function: Callable[[], object]) -> None:
        """Call a function in the thread of the broker: now in the middle of a call of the broker, otherwise soon."""
        if threading.get_ident() == self._thread_id:
            function()
        else:
            with contextlib.suppress(RuntimeError):  # the event loop has just been closed
                self._loop.call_soon_threadsafe(self._run, function)

    def _run(self, function: Callable[[], object]) -> None:
        """Call a function that may leave work to the broker, and see to the work."""
        function()
        if self._service is not None:
            self._service.hub.end()

    def stop(self) -> None:
        """Close the broker in order: other brokers lead first. Does nothing if it does not run."""
        self._end(cleanly=True, hands_over=True)

    def kill(self) -> None:
        """End the broker as a killed process ends: connections break, and its session ends.

        Raises:
            ClosedError: The broker does not run.
        """
        self._require_running()
        self._end(cleanly=False)

    def _end(self, *, cleanly: bool, hands_over: bool = False) -> None:
        self.resume()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._ends_cleanly, self._hands_over = cleanly, hands_over
        limit_s = START_S + (HANDOVER_TIMEOUT_S if hands_over else 0)
        self._loop.call_soon_threadsafe(self._ends.set)
        thread.join(limit_s)
        if thread.is_alive():
            raise TimeoutError(f"broker {self.broker_id} did not end within {limit_s} s")
        if self._store.down:
            self._expire_later()
        self._raise_failure(thread)
        self._bind()

    def _raise_failure(self, thread: threading.Thread) -> None:
        if self._failure is not None:
            thread.join(START_S)
            raise self._failure

    def close(self) -> None:
        """Close the broker in order, and release its ports."""
        try:
            self._end(cleanly=True)
        finally:
            self._release_ports()
            self._stop_expiry()

    def _require_running(self) -> None:
        if not self.is_running:
            raise ClosedError(
                f"broker {self.broker_id} does not run: restart({self.broker_id}) starts it"
            )

    def _require_responsive(self) -> None:
        self._require_running()
        if self.is_paused:
            raise ClosedError(
                f"broker {self.broker_id} is paused: resume({self.broker_id}) ends the pause"
            )

    # Faults

    def pause(self) -> None:
        """Stop the thread of the broker: it handles nothing, and its session expires. `resume` ends the pause.

        Raises:
            ClosedError: The broker does not run, or is paused.
        """
        self._require_responsive()
        self._resume = threading.Event()
        stopped = threading.Event()
        self._loop.call_soon_threadsafe(_stop_until, self._resume, stopped)
        stopped.wait(START_S)
        self._expire_later()

    def _expire_later(self) -> None:
        """End the session of the broker after its timeout. The broker itself cannot: it is stopped."""
        self._stop_expiry()
        expiry = threading.Timer(self._cluster.session_timeout_ms / 1000, self._store.lose_session)
        expiry.daemon = True
        expiry.start()
        self._expiry = expiry

    def _stop_expiry(self) -> None:
        expiry, self._expiry = self._expiry, None
        if expiry is not None:
            expiry.cancel()
            expiry.join(START_S)

    def resume(self) -> None:
        """End the pause. Does nothing if there is none."""
        pause, self._resume = self._resume, None
        if pause is not None:
            self._stop_expiry()
            pause.set()

    def cut_store(self, *, is_cut: bool) -> None:
        """Break or restore the connection to the metadata store. A session without a connection expires.

        Raises:
            ClosedError: The broker does not run, or is paused.
        """

        def cut() -> None:
            self._store.down = is_cut

        self.run(lambda _: self._run(cut))

    def heal(self) -> None:
        """End the pause of the broker, and restore its connections."""
        self.resume()
        self.cut_store(is_cut=False)
        self.run(lambda _: self._links.heal())

    def run(self, function: Callable[[BrokerService], T]) -> T:
        """Call a function in the thread of the broker, and return its result.

        Raises:
            ClosedError: The broker does not run, or is paused.
        """
        self._require_responsive()

        async def call() -> T:
            assert self._service is not None, "a broker that runs has a service"
            return function(self._service)

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(START_S)


def _stop_until(resume: threading.Event, stopped: threading.Event) -> None:
    """Stop the calling thread until the end of a pause."""
    stopped.set()
    resume.wait()
