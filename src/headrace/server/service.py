"""An open broker and what serves it on an event loop: hub, threads, listeners, connections to other brokers.

`headrace serve` and `headrace.testing.Cluster` use it. The order at the end matters: the service lets other brokers of
the cluster lead (`headrace.broker.cluster.draining`), stops accepting, completes the requests that only wait for a
sync, closes the connections, and lets the broker write its clean-shutdown marker last.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from headrace.broker.broker import Broker
from headrace.broker.configs.loggers import Loggers
from headrace.broker.dispatch import APIS
from headrace.broker.log_dirs.write_out import WriteOuts
from headrace.clients.network.outages import Address
from headrace.clock import SteadyClock
from headrace.config.broker import BrokerConfig
from headrace.config.listeners import Listener
from headrace.config.topic import TopicConfig
from headrace.ports import Peers
from headrace.server.descriptors import segment_files
from headrace.server.entropy import OsEntropy
from headrace.server.hub import BrokerHub
from headrace.server.jwks import KeyReader
from headrace.server.limits import HANDOVER_TIMEOUT_S, ServerLimits
from headrace.server.listeners import BoundListener
from headrace.server.log import RateLimited, describe
from headrace.server.peer_security import inter_broker_listener, login_remedy, peer_config
from headrace.server.peers import PeerConnections
from headrace.server.stores import Stores, boot_id
from headrace.server.threads.syncer import Syncer, run_in_parallel

_DRAIN_TIMEOUT_S: Final = 2.5


class BrokerService:
    """Serves one broker on the running event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        stores: Stores,
        listeners: Sequence[BoundListener],
        *,
        limits: ServerLimits,
        descriptors: int,
        clock: SteadyClock,
        journal: RateLimited,
        on_failure: Callable[[BaseException], object],
        connect: Callable[[PeerConnections], Peers] | None = None,
        loggers: Loggers | None = None,
    ) -> None:
        """Open the broker. It accepts connections after `start`.

        Args:
            config: The configuration of the broker.
            stores: The log directories and the metadata store. The caller closes them.
            listeners: The listeners, whose ports are bound.
            limits: The limits of the server.
            descriptors: The limit on open files.
            clock: The clock of the broker.
            journal: Receives the log events.
            on_failure: Called with the error when a sync has failed.
            connect: Returns the broker's `Peers` for its connections to other brokers; None for a broker without a
                cluster.
            loggers: The loggers whose levels clients can change; None if the process is not the broker's own.

        Raises:
            ConfigError: The configuration is invalid.
            StorageError: Something stored cannot be read.
        """
        self._loop = loop = asyncio.get_running_loop()
        self._listeners = listeners
        self._clock = clock
        self._journal = journal
        self._is_closed = False
        self.peers: PeerConnections | None = None
        """The connections to other brokers; None without a cluster."""
        if connect is not None:
            listener = inter_broker_listener(config, [bound.listener for bound in listeners])
            self.peers = self._new_peers(config, listener)
            self.peers.address_of = partial(self._address_of, config.broker_id, listener.name)
            self.peers.deliver = self.deliver
        peers = None if connect is None or self.peers is None else connect(self.peers)
        self.broker = broker = _new_broker(
            config, stores, descriptors, journal, peers=peers, loggers=loggers
        )
        """The open broker, until the service ends."""
        broker.open(clock.now_ms())
        self.hub = hub = BrokerHub(
            loop, broker, clock=clock, limits=limits, journal=journal, on_failure=on_failure
        )
        """The hub of the broker's connections."""
        services = broker.services
        services.authenticator.run_aside = hub.aside.run
        services.recompressions.run_aside = self._recompress_aside
        self._write_outs = begin_write_outs(loop, hub, broker, clock.now_ms, on_failure)
        self._keys = KeyReader(loop, services.authenticator, journal)

    def _new_peers(self, config: BrokerConfig, listener: Listener) -> PeerConnections:
        return PeerConnections(
            self._loop,
            peer_config(config, listener),
            versions={api.key: api.served.max for api in APIS},
            now_ms=self._clock.now_ms,
            journal=self._journal,
            remedy=login_remedy(listener),
        )

    async def start(self) -> None:
        """Accept connections.

        Raises:
            ConfigError: Another process has taken a port in the meantime.
        """
        for listener in self._listeners:
            await listener.serve(self.hub, self._loop)
        self.hub.start()

    async def stop(self, has_failed: Callable[[], bool], *, hands_over: bool = True) -> bool:
        """Stop serving, and close the broker.

        Args:
            has_failed: Returns whether a sync has failed. Then the broker is not closed.
            hands_over: Whether other brokers of the cluster lead first. False if the whole cluster ends.

        Returns:
            Whether the broker is closed. If not, the next start recovers the logs.
        """
        if hands_over and not has_failed():
            await self._hand_over()
        await self._end_listening()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                await self._write_outs.idle()
        self._write_outs.close()
        await self.hub.drain(_DRAIN_TIMEOUT_S)
        await self._end_hub()
        if self.hub.syncer.in_flight:
            self._journal.error("sync_stuck", action="ending without it")
            return False
        return not has_failed() and self._close_broker()

    async def _hand_over(self) -> None:
        """Let other brokers of the cluster lead the partitions of this broker, for a limited time."""
        self.hub.begin()
        draining = self.broker.drain(self.hub.now_ms)
        self.hub.end()
        if draining is None:
            return
        try:
            async with asyncio.timeout(HANDOVER_TIMEOUT_S):
                while draining.partitions_left != 0:  # noqa: ASYNC110 - only at the end of the process
                    await asyncio.sleep(0.01)
        except TimeoutError:
            left = draining.partitions_left
            self._journal.warning("leaders_not_moved", partitions=-1 if left is None else left)

    async def abort(self) -> None:
        """Close all connections, and leave the broker as a killed process does."""
        await self._end_listening()
        self._write_outs.close()
        await self._end_hub()

    async def _end_listening(self) -> None:
        if isinstance(self._loop, asyncio.BaseEventLoop):
            # asyncio accepts a socket in one turn, and makes its connection in the next. If the server were closed in
            # between, asyncio would not close the socket.
            for listener in self._listeners:
                listener.stop_accepting(self._loop)
            await asyncio.sleep(0)
        for listener in self._listeners:
            listener.stop_serving()
        self._keys.close()
        if self.peers is not None:
            await self.peers.close()

    async def _end_hub(self) -> None:
        await self.hub.close_connections()
        self.hub.stop()
        self._is_closed = True

    def _close_broker(self) -> bool:
        try:
            self.broker.close(self._clock.now_ms())
        except OSError as error:
            self._journal.error("close_failed", error=describe(error))
            return False
        return True

    def _recompress_aside(self, work: Callable[[], Any], done: Callable[[Any], object]) -> None:
        """Run work on the records of a batch in a thread. The broker continues with the result in a tick."""

        def finish(outcome: Any) -> None:
            if not self._is_closed:
                done(outcome)
                self.broker.tick(self.hub.now_ms)

        self.hub.codecs.run(work, finish)

    # Other brokers

    def _address_of(self, own_id: int, listener: str, broker_id: int) -> Address | None:
        """Return the address of another broker's listener with a name."""
        live = self.broker.services.membership.live.get(broker_id)
        if live is None or broker_id == own_id:
            return None
        return live.endpoints.get(listener)

    def deliver(self, resolve: Callable[[], object]) -> None:
        """Resolve what has arrived from other brokers or from the metadata store, and let the broker continue."""
        if not self._is_closed:
            self.hub.begin()
            resolve()
            self.broker.tick(self.hub.now_ms)
            self.hub.end()


def _new_broker(
    config: BrokerConfig,
    stores: Stores,
    descriptors: int,
    journal: RateLimited,
    *,
    peers: Peers | None,
    loggers: Loggers | None,
) -> Broker:
    return Broker(
        config,
        files=stores.files,
        further=stores.further,
        metadata=stores.metadata,
        storages=stores.storages,
        entropy=OsEntropy(),
        journal=journal,
        run_tasks=run_in_parallel,
        segment_files=segment_files(descriptors),
        check_topic_config=_check_topic_config,
        loggers=loggers,
        peers=peers,
        boot_id=None if peers is None else boot_id(),
    )


def begin_write_outs(
    loop: asyncio.AbstractEventLoop,
    hub: BrokerHub,
    broker: Broker,
    now_ms: Callable[[], int],
    on_failure: Callable[[BaseException], object],
) -> Syncer:
    """Write out the logs of durability `os` in a thread of their own when they are due."""
    dirs = broker.services.log_store.dirs
    write_outs = Syncer(loop, WriteOuts(dirs), now_ms, after=hub.end, on_failure=on_failure)
    hub.ticks.append(write_outs.kick)
    return write_outs


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
