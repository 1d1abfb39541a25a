"""A cluster of brokers in the test's process, which any Kafka client can connect to and a test can break."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Final, Self

from headrace.clients.arguments import checked
from headrace.clients.drivers.unclosed import at_exit
from headrace.config.broker import parse_broker_config
from headrace.config.options import Value, render_value
from headrace.errors import ClosedError, ConfigError
from headrace.forking import FORKED, disown_in_children
from headrace.testing.broker import TEST_CONFIGS, WAIT_S
from headrace.testing.cluster.contents import ClusterContents
from headrace.testing.cluster.node import ClusterNode
from headrace.testing.cluster.replica_views import ReplicaViews
from headrace.testing.cluster.shared_metadata import SharedMetadata
from headrace.types import TopicPartition

_LOOK_S: Final = 0.005
"""The time between two looks of a method that waits, in seconds."""


class Cluster(ClusterContents):
    """Brokers 1 to N in this process, each on ports of its own, with data in memory.

        with headrace.testing.Cluster(brokers=3) as cluster:
            cluster.create_topic("orders", partitions=3)
            start_the_program(cluster.bootstrap)     # any Kafka client
            cluster.kill(cluster.leader("orders", 0))

    `async with` works as well. The other methods block the thread: call those that wait in a thread if the tested
    program runs on the event loop of the test, as in `await asyncio.to_thread(cluster.wait_in_sync)`.

    Attributes:
        metadata: The metadata that the brokers share.
        properties: The properties of the clients of this object.
        session_timeout_ms: The session timeout of the brokers.
    """

    @checked
    def __init__(
        self,
        brokers: int = 3,
        *,
        racks: Sequence[str] | None = None,
        configs: Mapping[str, Value] | None = None,
        properties: Mapping[str, Any] | None = None,
        session_timeout_ms: int = 2_000,
    ) -> None:
        """Prepare a cluster. The brokers run after `start`, `with` or `async with`.

        Args:
            brokers: The number of brokers.
            racks: The rack of each broker. None is no racks.
            configs: The configuration of all brokers under Kafka's names, in addition to `TEST_CONFIGS`.
            properties: The properties of the clients that this object uses itself, for example for `create_topic` and
                `publish`: they connect to the first of the `listeners`.
            session_timeout_ms: The time in milliseconds after which the other brokers take over from a broker that is
                paused, or has no connection to the metadata store.

        Raises:
            ConfigError: The configuration is invalid.
        """
        if brokers < 1:
            raise ConfigError(f"a cluster has one broker or more, not {brokers}")
        if racks is not None and len(racks) != brokers:
            raise ConfigError(f"racks has {len(racks)} names for {brokers} brokers")
        super().__init__(properties or {})
        self.session_timeout_ms = session_timeout_ms
        self.metadata = SharedMetadata()
        self._cuts: set[frozenset[int]] = set()
        self._configs = {
            name: render_value(value)
            for name, value in {
                **TEST_CONFIGS,
                **_cluster_configs(brokers),
                **(configs or {}),
            }.items()
        }
        self._nodes: dict[int, ClusterNode] = {}
        for number in range(brokers):
            self._prepare(None if racks is None else racks[number])
        self._views = ReplicaViews(self.metadata, self._nodes)
        self._is_disowned = False

    # Life

    def start(self) -> Self:
        """Start the brokers that do not run, and wait until each knows all of them."""
        self._require_own()
        disown_in_children(self)
        at_exit(self, Cluster._end_of_program, is_broker=True)
        with ExitStack() as on_error:
            on_error.callback(self.close)
            for node in self._nodes.values():
                if not node.is_running:
                    node.start()
            self._wait_until_known()
            on_error.pop_all()
        return self

    def close(self) -> None:
        """Close the clients of this object and all brokers, and end their threads."""
        if self._is_disowned:
            return
        with ExitStack() as closing:
            for node in self._nodes.values():
                closing.callback(node.close)
            closing.callback(self.heal)
            self._close_clients()

    def _end_of_program(self, timeout_s: float) -> None:  # noqa: ARG002 - `close` takes no timeout
        self.close()

    def disown(self) -> None:
        """Become closed, in a forked child. The brokers run in the parent, which has their threads and sockets."""
        self._is_disowned = True

    def _require_own(self) -> None:
        if self._is_disowned:
            raise ClosedError(f"this cluster {FORKED}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

    @property
    def bootstrap(self) -> str:  # type: ignore[override]  # the base class only reads it
        """The addresses of all brokers, HOST:PORT separated by commas."""
        return ",".join(map(self.address, self._nodes))

    def address(self, broker: int, listener: str | None = None) -> str:
        """Return HOST:PORT of one broker. It stays the same after a restart.

        Args:
            broker: The id of the broker.
            listener: The name of the listener. None is the first one.
        """
        address = self._node(broker).address(listener)
        assert address.port, "the cluster has not been started: call start()"
        return str(address)

    @property
    def running(self) -> list[int]:
        """The ids of the brokers that run, or are paused."""
        return [number for number, node in self._nodes.items() if node.is_running]

    def _node(self, broker: int) -> ClusterNode:
        self._require_own()
        node = self._nodes.get(broker)
        if node is None:
            raise ConfigError(
                f"there is no broker {broker}: the cluster has 1 to {len(self._nodes)}"
            )
        return node

    def add_broker(self, rack: str | None = None) -> int:
        """Add a broker with the next id, and return the id. If the cluster runs, the broker is started.

        New partitions are placed on the broker too. The present partitions stay where they are.

        Args:
            rack: The rack of the broker. None is no rack.
        """
        self._require_own()
        node = self._prepare(rack)
        if self.running:
            node.start()
            self._wait_until_known()
        return node.broker_id

    def _prepare(self, rack: str | None) -> ClusterNode:
        """Make the next broker. It does not run yet."""
        number = len(self._nodes) + 1
        own = {"broker.id": str(number)}
        if rack is not None:
            own["broker.rack"] = rack
        node = ClusterNode(self, parse_broker_config({**self._configs, **own}))
        self._nodes[number] = node
        return node

    # Faults

    def kill(self, broker: int) -> None:
        """End a broker as a killed process ends. Its files in memory stay, as in the page cache of a machine.

        Raises:
            ClosedError: The broker does not run.
        """
        self._node(broker).kill()

    def stop(self, broker: int) -> None:
        """Close a broker in order, as SIGTERM does. Does nothing if the broker does not run."""
        self._node(broker).stop()

    def restart(self, broker: int) -> None:
        """Start a broker again, after it was closed in order if it runs."""
        self._node(broker).stop()
        self._node(broker).start()
        self._wait_until_known()

    def pause(self, broker: int) -> None:
        """Stop the thread of a broker: it handles nothing, and its session expires. `resume` ends the pause.

        Raises:
            ClosedError: The broker does not run, or is paused.
        """
        self._node(broker).pause()

    def resume(self, broker: int) -> None:
        """End the pause of a broker. Does nothing if there is none."""
        self._node(broker).resume()

    def cut(self, one: int, other: int) -> None:
        """Lose all requests and responses between two brokers, until `heal`. Clients reach both."""
        if self._node(one) is self._node(other):
            raise ConfigError(f"cut({one}, {other}): a link connects two brokers")
        self._cuts.add(frozenset((one, other)))

    def cut_store(self, broker: int) -> None:
        """Break the connection of a broker to the metadata store, until `heal`. Its session expires.

        Raises:
            ClosedError: The broker does not run, or is paused.
        """
        self._node(broker).cut_store(is_cut=True)

    def heal(self) -> None:
        """End all cuts and pauses. Brokers that do not run stay down."""
        self._require_own()
        self._cuts.clear()
        for node in self._nodes.values():
            if node.is_running:
                node.heal()

    def is_cut(self, one: int, other: int) -> bool:
        """Return whether the link between two brokers is cut."""
        return frozenset((one, other)) in self._cuts

    # Topics and groups

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int = -1,
        configs: Mapping[str, Value] | None = None,
        **options: Any,
    ) -> None:
        """Create a topic, and wait until the leaders of its partitions serve it.

        Args:
            name: The name of the topic.
            partitions: The number of partitions.
            replication_factor: The number of replicas of each partition. -1 is `default.replication.factor`.
            configs: The configuration of the topic under Kafka's names.
            options: Further arguments of `headrace.Admin.create_topic`, such as `serde`.

        Raises:
            ApiError: TOPIC_ALREADY_EXISTS; or the name, a number or the configuration is not valid.
        """
        self.admin.create_topic(
            name, partitions, replication_factor=replication_factor, configs=configs, **options
        )
        self._wait(lambda: self._views.not_served(name), WAIT_S)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the broker that leads a partition; -1 if no live broker does.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic, or it has no such partition.
        """
        return self._views.leader(TopicPartition(topic, partition))

    def replicas(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """Return the brokers with a replica of a partition. The first one is the preferred leader.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic, or it has no such partition.
        """
        return self._views.replicas(TopicPartition(topic, partition))

    def isr(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """Return the in-sync replicas of a partition.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic, or it has no such partition.
        """
        return self._views.state(TopicPartition(topic, partition)).isr

    # Waiting

    def wait_in_sync(self, topic: str | None = None, *, timeout_s: float = WAIT_S) -> None:
        """Wait until all replicas are in sync: in-sync replicas with the log end offset of their leader.

        Args:
            topic: The topic. None is all topics.
            timeout_s: The timeout in seconds.

        Raises:
            TimeoutError: A replica is not in sync in time. The message says which.
        """
        self._wait(lambda: self._views.not_in_sync(topic), timeout_s)

    def wait_caught_up(
        self, group: str, topic: str | None = None, *, timeout_s: float = WAIT_S
    ) -> None:
        """Wait until a group has committed the ends of its partitions.

        Args:
            group: The group.
            topic: The topic. None is all partitions that have a committed offset.
            timeout_s: The timeout in seconds.

        Raises:
            TimeoutError: The group has not caught up in time. The message has the lag of each partition.
        """

        def behind() -> str:
            lag = self.admin.lag(group)
            wanted = set(lag if topic is None else self._views.partitions(topic))
            if wanted <= lag.keys() and lag and not any(lag[where] for where in wanted):
                return ""
            shown = ", ".join(f"{where}: {lag.get(where, 'no offset')}" for where in sorted(wanted))
            return f"group {group!r} has the lag {{{shown}}}; waited for a lag of 0"

        self._wait(behind, timeout_s)

    def wait_until(
        self, condition: Callable[[], object], *, timeout_s: float = WAIT_S, what: str = ""
    ) -> None:
        """Wait until a condition is true.

        Args:
            condition: Returns whether the condition is true. It may use this object and clients.
            timeout_s: The timeout in seconds.
            what: The name of the condition in the error.

        Raises:
            TimeoutError: The condition did not become true in time.
        """
        self._wait(lambda: "" if condition() else f"not true: {what or 'the condition'}", timeout_s)

    def _wait(self, reason: Callable[[], str], timeout_s: float) -> None:
        """Wait until there is no reason to wait."""
        end_s = time.monotonic() + timeout_s
        while text := reason():
            if time.monotonic() > end_s:
                raise TimeoutError(f"after {timeout_s} s: {text}")
            time.sleep(_LOOK_S)

    def _wait_until_known(self) -> None:
        """Wait until the brokers with a connection to the metadata store know each other."""
        connected = [number for number, node in self._nodes.items() if node.is_connected]

        def unknown() -> str:
            for number in connected:
                live = self._nodes[number].run(
                    lambda service: set(service.broker.services.membership.live)
                )
                missing = [each for each in connected if each not in live]
                if missing:
                    return f"broker {number} does not know of {missing} yet"
            return ""

        self._wait(unknown, WAIT_S)


def _cluster_configs(brokers: int) -> dict[str, Value]:
    """Return the settings of a test cluster in addition to `TEST_CONFIGS`."""
    replicas = min(brokers, 3)
    return {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "default.replication.factor": replicas,
        "min.insync.replicas": max(1, replicas - 1),
        "replica.lag.time.max.ms": 2_000,
    }
