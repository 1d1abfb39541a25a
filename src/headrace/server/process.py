"""The process of a broker: open the data, listen, report that it is ready, serve until a signal, close cleanly.

The order matters. The process binds the port first, so that a wrong address is reported before a long recovery. It
accepts connections only when the broker is open. At the end it stops accepting, completes the requests that only wait
for
a sync, closes the connections, and lets the broker write its clean-shutdown marker last.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from headrace import __version__
from headrace.broker.broker import Broker
from headrace.broker.log_dirs.write_out import WriteOuts
from headrace.clock import SteadyClock
from headrace.config.broker import BrokerConfig
from headrace.config.listeners import Listener
from headrace.config.topic import TopicConfig
from headrace.ports import MetadataStore
from headrace.server.descriptors import connections, descriptor_limit, segment_files
from headrace.server.entropy import OsEntropy
from headrace.server.garbage import FullCollections
from headrace.server.hub import BrokerHub
from headrace.server.jwks import KeyReader
from headrace.server.limits import ServerLimits
from headrace.server.listeners import BoundListener
from headrace.server.log import LoggingJournal, LogLevels, RateLimited, describe
from headrace.server.stores import open_stores, warn_of_exposed
from headrace.server.threads.syncer import Syncer, run_in_parallel

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1

_DRAIN_TIMEOUT_S: Final = 2.5
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
    """

    listeners: Sequence[Listener]
    data: Sequence[Path]
    config: BrokerConfig
    loop: str = "auto"


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


def _check_topic_config(topic: TopicConfig) -> None:
    """Check the serdes and the partitioner of a topic.

    Their modules are imported for the first topic that names one.
    """
    named = (topic.headrace_serde, topic.headrace_key_serde, topic.headrace_partitioner)
    parameters = (
        topic.headrace_serde_parameters,
        topic.headrace_key_serde_parameters,
        topic.headrace_partitioner_parameters,
    )
    if not any((*named, *parameters)):
        return
    from headrace.clients.topic_strategies import check_topic_config  # noqa: PLC0415 - a start does not need it

    check_topic_config(topic)


class _Process:
    """One run of the server on its event loop."""

    def __init__(self, options: ServeOptions, listeners: Sequence[BoundListener]) -> None:
        self._options = options
        self._listeners = listeners
        self._clock = SteadyClock()
        self._journal = RateLimited(LoggingJournal(), self._clock.now_ms)
        self._stop = asyncio.Event()
        self._exit_code = EXIT_OK
        self._signals = 0
        self._closed = False
        """Whether the broker must not be called any more."""

    async def main(self) -> int:
        """Open the broker, serve until a signal, and close; return the exit code."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._loop_exception)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled, number)
        if any(listener.tls for listener in self._listeners):
            loop.add_signal_handler(signal.SIGHUP, self._reload)
        stores = open_stores(self._options.data)
        warn_of_exposed(self._options.data, self._journal)
        metadata = stores.metadata
        journal = self._journal
        descriptors = descriptor_limit(raise_it=True)
        broker = Broker(
            self._options.config,
            files=stores.files,
            further=stores.further,
            metadata=metadata,
            storages=stores.storages,
            entropy=OsEntropy(),
            journal=journal,
            run_tasks=run_in_parallel,
            segment_files=segment_files(descriptors),
            check_topic_config=_check_topic_config,
            loggers=LogLevels(),
        )
        broker.open(self._clock.now_ms())
        services = broker.services
        services.authorizer.warn()
        limits = server_limits(self._options.config, descriptors)
        hub = BrokerHub(
            loop,
            broker,
            clock=self._clock,
            limits=limits,
            journal=journal,
            on_failure=self._sync_failed,
        )
        services.authenticator.run_aside = hub.aside.run
        services.recompressions.run_aside = partial(self._recompress_aside, hub, broker)
        write_outs = self._write_out(loop, hub, broker)
        keys = KeyReader(loop, services.authenticator, journal)
        for listener in self._listeners:
            await listener.serve(hub, loop)
        hub.start()
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        collections = FullCollections()
        collections.start()
        self._announce()
        self._log_start()
        self._warn_of_few(descriptors, min(_ENOUGH_CONNECTIONS, broker.config.max_connections))
        await self._stop.wait()
        collections.stop()
        for listener in self._listeners:
            listener.stop_serving()
        keys.close()
        await self._end(write_outs)
        await self._close(hub, broker, metadata)
        return self._exit_code

    def _recompress_aside(
        self,
        hub: BrokerHub,
        broker: Broker,
        work: Callable[[], Any],
        done: Callable[[Any], object],
    ) -> None:
        """Run work on the records of a batch in a thread. The broker continues with the result in a tick."""

        def finish(outcome: Any) -> None:
            if not self._closed:
                done(outcome)
                broker.tick(hub.now_ms)

        hub.codecs.run(work, finish)

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

    def _write_out(self, loop: asyncio.AbstractEventLoop, hub: BrokerHub, broker: Broker) -> Syncer:
        """Write out the logs of durability `os` in a thread of their own when they are due."""
        write_outs = Syncer(
            loop,
            WriteOuts(broker.services.log_store.dirs),
            self._clock.now_ms,
            after=hub.end,
            on_failure=self._sync_failed,
        )
        hub.ticks.append(write_outs.kick)
        return write_outs

    async def _end(self, write_outs: Syncer) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                await write_outs.idle()
        write_outs.close()

    def _announce(self) -> None:
        """Print the ready line, the only output on standard output."""
        served = [bound.listener for bound in self._listeners]
        data = ",".join(map(str, self._options.data)) or "memory"
        line = f"ready kafka={served[0].address} data={data} pid={os.getpid()}"
        if len(served) > 1:
            line += f" listeners={','.join(map(str, served))}"
        with contextlib.suppress(OSError):  # no process reads standard output
            sys.stdout.write(line + "\n")
            sys.stdout.flush()

    def _log_start(self) -> None:
        config = self._options.config
        self._journal.info(
            "server_started",
            version=__version__,
            listen=",".join(str(bound.listener) for bound in self._listeners),
            durability=config.durability,
            loop=type(asyncio.get_running_loop()).__module__.partition(".")[0],
        )

    async def _close(self, hub: BrokerHub, broker: Broker, metadata: MetadataStore) -> None:
        await hub.drain(_DRAIN_TIMEOUT_S)
        await hub.close_connections()
        hub.stop()
        self._closed = True
        if hub.syncer.in_flight:
            self._journal.error("sync_stuck", action="ending without it")
            self._exit_code = EXIT_FAILED
        clean = self._exit_code == EXIT_OK
        if clean:  # otherwise there is no clean-shutdown marker, and the next start recovers
            try:
                broker.close(self._clock.now_ms())
            except OSError as error:
                self._journal.error("close_failed", error=describe(error))
                clean, self._exit_code = False, EXIT_FAILED
        metadata.close()
        self._journal.info("server_stopped", clean=clean)
        if hub.codecs.busy:
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
