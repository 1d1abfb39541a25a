"""The process of a broker: open the data, listen, report that it is ready, serve until a signal, close cleanly.

The process binds the port first, so that a wrong address is reported before a long recovery. It accepts connections
only when the broker is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace import __version__
from headrace.clock import SteadyClock
from headrace.config.broker import BrokerConfig
from headrace.config.listeners import Listener
from headrace.ports import Peers
from headrace.server.descriptors import connections, descriptor_limit, segment_files
from headrace.server.garbage import FullCollections
from headrace.server.limits import ServerLimits
from headrace.server.listeners import BoundListener
from headrace.server.log import LoggingJournal, LogLevels, RateLimited, describe
from headrace.server.membership import Membership, SharedStore, StoreContext, advertised
from headrace.server.reports import EXIT_FAILED, EXIT_OK, print_ready
from headrace.server.service import BrokerService
from headrace.server.stores import Stores, open_stores, warn_of_exposed

_ENOUGH_CONNECTIONS: Final = 1_000
_SWITCH_INTERVAL_S: Final = 0.0001
"""The time for which a thread may keep the interpreter from the event loop, in seconds.

Python's default of 5 ms is visible in the p99 latency.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of `headrace serve` and `headrace dev`.

    Attributes:
        listeners: The listeners. The ready line names the first one.
        data: The data directories, the one with the metadata first; empty to keep everything in memory.
        config: The broker's configuration.
        loop: "asyncio", "uvloop", or "auto": uvloop if it is installed.
        membership: The cluster of the broker; None for a broker by itself.
    """

    listeners: Sequence[Listener]
    data: Sequence[Path]
    config: BrokerConfig
    loop: str = "auto"
    membership: Membership | None = None


def run(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    Raises:
        ConfigError: The address cannot be bound, or a data directory is named twice.
        StorageError: A data directory is in use, or its content cannot be read.
    """
    with contextlib.ExitStack() as stack:
        bound: list[BoundListener] = []
        for listener in options.listeners:
            bound.append(BoundListener(listener, options.config, LoggingJournal()))
            stack.callback(bound[-1].close)
        return _run_on_loop(options.loop, lambda: _Process(options, bound).main())


def _run_on_loop(kind: str, main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if kind != "asyncio":
        try:
            import uvloop  # noqa: PLC0415 - optional, and 15 ms that a client command must not pay

            factory = uvloop.new_event_loop
        except ImportError:
            if kind == "uvloop":
                raise
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main())


def _same(peers: Peers) -> Peers:
    return peers


def server_limits(config: BrokerConfig, descriptors: int) -> ServerLimits:
    """Derive the limits of the server from the configuration and from the limit on open files.

    The limits on connections can change while the server runs, so they are no part of it.
    """
    return ServerLimits(
        max_request_bytes=config.socket_request_max_bytes,
        max_other_request_bytes=min(
            ServerLimits().max_other_request_bytes, config.socket_request_max_bytes
        ),
        max_unauthenticated_bytes=config.sasl_server_max_receive_size,
        authentication_timeout_ms=ServerLimits().authentication_timeout_ms
        + config.connection_failed_authentication_delay_ms,
        idle_timeout_ms=config.connections_max_idle_ms,
        write_timeout_ms=config.connections_max_idle_ms,
        max_connections=connections(descriptors),
        max_connections_per_address=config.max_connections_per_ip,
    )


class _Process:
    """One run of the server on its event loop."""

    def __init__(self, options: ServeOptions, listeners: Sequence[BoundListener]) -> None:
        self._options = options
        self._listeners = listeners
        self._clock = SteadyClock()
        broker = None if options.membership is None else options.config.broker_id
        self._journal = RateLimited(LoggingJournal(broker=broker), self._clock.now_ms)
        self._stop = asyncio.Event()
        self._exit_code = EXIT_OK
        self._signals = 0
        self._service: BrokerService | None = None
        self._shared: SharedStore
        self._is_alone = False
        """Whether the broker has lost its cluster for ever."""

    async def main(self) -> int:
        """Open the broker, serve until a signal, and close; return the exit code."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._loop_exception)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        if any(listener.tls for listener in self._listeners):
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        config, open_shared = self._options.config, None
        if (membership := self._options.membership) is not None:
            listeners = [bound.listener for bound in self._listeners]
            config = replace(config, advertised_listeners=advertised(config, listeners))
            open_shared = partial(self._open_shared, membership)
        stores = open_stores(self._options.data, open_shared=open_shared)
        warn_of_exposed(self._options.data, self._journal)
        descriptors = descriptor_limit(raise_it=True)
        self._service = service = BrokerService(
            config,
            stores,
            self._listeners,
            limits=server_limits(config, descriptors),
            descriptors=descriptors,
            clock=self._clock,
            journal=self._journal,
            on_failure=self._sync_failed,
            connect=None if membership is None else _same,
            loggers=LogLevels(),
        )
        service.broker.services.authorizer.warn()
        await service.start()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        collections = FullCollections()
        collections.start()
        self._announce(service.broker.services.cluster_id)
        self._log_start()
        wanted = min(_ENOUGH_CONNECTIONS, service.broker.config.max_connections)
        self._warn_of_few(descriptors, wanted)
        await self._stop.wait()
        collections.stop()
        await self._close(service, stores)
        return self._exit_code

    def _open_shared(self, membership: Membership) -> SharedStore:
        context = StoreContext(
            loop=asyncio.get_running_loop(),
            clock=self._clock.now_ms,
            journal=self._journal,
            arrived=self._arrived,
            lost=self._lost,
        )
        self._shared = membership.open_store(context)
        return self._shared

    def _arrived(self) -> None:
        """Handle what has arrived from the metadata store."""
        if self._service is not None:
            self._service.deliver(self._shared.run_pending)

    def _lost(self) -> None:
        """Stop, because the metadata store will never respond again."""
        self._journal.error("metadata_store_lost", action="stopping")
        self._is_alone = True
        self._stop.set()

    def _warn_of_few(self, descriptors: int, wanted: int) -> None:
        """Log a warning if fewer connections are possible than configured."""
        if connections(descriptors) < wanted:
            self._journal.warning(
                "few_descriptors",
                allowed=descriptors,
                segment_files=segment_files(descriptors),
                max_connections=connections(descriptors),
                remedy="raise the hard limit on open files (ulimit -Hn, LimitNOFILE)",
            )

    def _announce(self, cluster_id: str) -> None:
        """Print the ready line, the only output on standard output."""
        served = [bound.listener for bound in self._listeners]
        membership = self._options.membership
        if membership is not None and membership.announce(served, cluster_id):
            return
        data = ",".join(map(str, self._options.data)) or "memory"
        line = f"ready kafka={served[0].address} data={data} pid={os.getpid()}"
        if len(served) > 1:
            line += f" listeners={','.join(map(str, served))}"
        if membership is not None:
            line += f" cluster={cluster_id} broker={self._options.config.broker_id}"
        print_ready(line)

    def _log_start(self) -> None:
        config = self._options.config
        self._journal.info(
            "server_started",
            version=__version__,
            listen=",".join(str(bound.listener) for bound in self._listeners),
            durability=config.durability,
            loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
        )

    async def _close(self, service: BrokerService, stores: Stores) -> None:
        clean = await service.stop(
            lambda: self._exit_code != EXIT_OK, hands_over=not self._is_alone
        )
        if not clean or self._is_alone:
            self._exit_code = EXIT_FAILED
        stores.metadata.close()
        self._journal.info("server_stopped", clean=clean)
        if service.hub.codecs.busy:
            # A batch may still be compressed for a closed connection. The interpreter would wait for that.
            logging.shutdown()
            sys.stdout.flush()
            os._exit(self._exit_code)

    def _signalled(self, number: signal.Signals) -> None:
        self._signals += 1
        if self._signals > 1:
            self._journal.warning("server_killed", signal=signal.Signals(number).name)
            os._exit(EXIT_FAILED)
        self._journal.info("server_stopping", signal=signal.Signals(number).name)
        self._stop.set()

    def _reload(self) -> None:
        for listener in self._listeners:
            listener.reload()

    def _sync_failed(self, error: BaseException) -> None:
        """Stop the process: the disk did not keep written data, so that no acknowledgement could be true."""
        self._journal.error("sync_failed", error=describe(error), action="stopping")
        self._exit_code = EXIT_FAILED
        self._stop.set()

    def _loop_exception(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._journal.error(
            "loop_error", message=str(context.get("message")), error=describe(error)
        )
