"""`headrace.Broker`: a broker inside the program."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from headrace.broker.broker import Broker as CoreBroker
from headrace.clients.arguments import (
    Count,
    Int32,
    OffsetNumber,
    checked,
    checks_arguments,
    shown,
    unchecked,
)
from headrace.clients.config import ClientConfig
from headrace.clients.drivers import Driver, open_blocking_driver
from headrace.clients.drivers.interrupts import uninterrupted
from headrace.clients.drivers.unclosed import at_exit, warn_unclosed
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.topic_strategies import (
    PartitionerChoice,
    StorageChoice,
    Strategies,
    check_topic_config,
)
from headrace.clock import SteadyClock
from headrace.config.broker import parse_broker_config
from headrace.config.listeners import parse_listener, parse_protocol_map
from headrace.config.options import Value, render_value
from headrace.config.units import plain_number
from headrace.embedded.clock import Clock
from headrace.embedded.own_producer import CLIENT_ID, OwnProducer
from headrace.embedded.runtime import BrokerRuntime
from headrace.embedded.shared_partitioners import TopicPartitioners
from headrace.embedded.topic_objects import TopicObjects
from headrace.errors import ConfigError
from headrace.records.directives import directives
from headrace.serdes.serde import AnySerde, SerdeOf
from headrace.server.descriptors import descriptor_limit, segment_files
from headrace.server.entropy import OsEntropy
from headrace.server.log import LoggingJournal, RateLimited
from headrace.server.stores import open_stores, warn_of_exposed
from headrace.types import TopicPartition, V

EMBEDDED: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "200",
}
"""The settings with other defaults than in a server: the members of one program join one after another."""
ANY_REPLICATION: Final = -1
"""The replication factor of new topics: -1 lets the broker decide."""

T = TypeVar("T")

if TYPE_CHECKING:
    from headrace.clients.admin.core import AdminCore
    from headrace.clients.consumer.records import ConsumerRecord
    from headrace.clients.flows.admin import ConfigEntry
    from headrace.clients.flows.cluster import TopicMetadata
    from headrace.clients.producer.delivery import RecordMetadata
    from headrace.embedded.groups import Group


@checks_arguments
class Broker:
    """A Kafka broker in this process. It needs no server and no thread, and it is ready in milliseconds.

        broker = headrace.Broker()                     # in memory; headrace.Broker(data="directory") keeps it
        broker.create_topic("orders", partitions=6, serde="json")
        broker.publish("orders", {"id": 1}, key=b"alice")
        producer = headrace.Producer(broker)

    Clients accept it in place of an address. Any thread may use it. As a context manager it closes itself at the end.
    """

    _core_type: ClassVar[type[CoreBroker]] = CoreBroker
    """The class of the broker core. `headrace.testing.Broker` has a core that can inject faults."""
    _runtime_type: ClassVar[type[BrokerRuntime]] = BrokerRuntime
    """The class of the runtime."""

    def __init__(
        self,
        data: str | Path | None = None,
        *,
        clock: Clock | None = None,
        configs: Mapping[str, Value] | None = None,
    ) -> None:
        """Open a broker.

        Args:
            data: The data directory; None keeps all data in memory until the broker is closed.
            clock: The clock of the broker and of its clients; None is the clock of the process. A `ManualClock` is for
                tests.
            configs: The broker's configuration under Kafka's names. Values are text, numbers or booleans.

        Raises:
            ConfigError: A name in `configs` is unknown, or its value is not valid.
            StorageError: Another process uses the directory, or its content cannot be read.
        """
        if clock is not None and not callable(getattr(clock, "now_ms", None)):
            raise ConfigError(f"clock is an object with now_ms(), or None, not {shown(clock)}")
        given = {
            name: plain_number(name, render_value(value)) for name, value in (configs or {}).items()
        }
        config = parse_broker_config({**EMBEDDED, **given})
        directories = [] if data is None else [Path(data)]
        objects = TopicObjects()
        self._stores = open_stores(directories, objects.storages)
        journal = RateLimited(LoggingJournal(), SteadyClock().now_ms)
        warn_of_exposed(directories, journal)
        try:
            core = self._core_type(
                config,
                files=self._stores.files,
                further=self._stores.further,
                metadata=self._stores.metadata,
                storages=self._stores.storages,
                entropy=OsEntropy(),
                journal=journal,
                segment_files=segment_files(descriptor_limit(raise_it=False)),
                check_topic_config=check_topic_config,
            )
            self._core = core
            self._partitioners = TopicPartitioners(core.services.metadata)
            self._runtime = self._runtime_type(
                core, clock, objects=objects, partitioners=self._partitioners, owner=self
            )
            core.open(self.now_ms())
        except BaseException:
            self._stores.close()  # so that a further attempt can lock the directory
            raise
        self._config = ClientConfig(client_id=CLIENT_ID)
        self._driver: Driver = open_blocking_driver(self, self._config)
        self._own_producer = OwnProducer(self, self._runtime.condition)
        self._publisher = self._own_producer.get
        self._closing = False
        at_exit(self, Broker._end_of_program, is_broker=True)

    @property
    def _port(self) -> BrokerRuntime:
        """The interface for the clients in this process."""
        return self._runtime

    @property
    def clock(self) -> Clock:
        """The clock of the broker and of its clients in this process."""
        return self._runtime.clock

    def now_ms(self) -> int:
        """Return the broker's time, in milliseconds since 1970."""
        return self._runtime.now_ms()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Topics

    def create_topic(
        self,
        name: str,
        partitions: Int32 = 1,
        *,
        configs: Mapping[str, Value] | None = None,
        storage: StorageChoice | None = None,
        partitioner: PartitionerChoice | None = None,
        partitioner_parameters: Mapping[str, Any] | None = None,
        serde: AnySerde | None = None,
        serde_parameters: Mapping[str, Any] | None = None,
        key_serde: AnySerde | None = None,
        key_serde_parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """Create a topic.

        Args:
            name: The name of the topic.
            partitions: The number of partitions.
            configs: The configuration of the topic under Kafka's names. Values are text, numbers or booleans.
            storage: Where the records are stored: "array" or "linked" (in memory), "files" (in the data directory), the
                name of a registered storage, the class of a storage, or a log directory, which is a
                `headrace.ports.FileSystem`. None is "files", or "linked" if the broker is in memory.
            partitioner: The partitioner that Headrace's producers use for the topic, unless they name another one: a
                name, a class or an object. A name is built in, registered, or belongs to an installed package. The
                topic keeps the name and the parameters of a class or an object.
            partitioner_parameters: Keyword arguments of the partitioner. The topic keeps them as JSON.
            serde: The serde of values: a name, a class or an object; or a type, whose values are written as JSON.
            serde_parameters: Keyword arguments of the serde, for example `{"schema": ...}` for "avro". The topic keeps
                them as JSON.
            key_serde: The serde of keys.
            key_serde_parameters: Keyword arguments of the serde of keys.

        Raises:
            ConfigError: No partitioner or serde of that name is known here, or it does not accept the parameters.
            ApiError: TOPIC_ALREADY_EXISTS; or the name, the number of partitions or the configuration is not valid.
        """
        self._run(
            self._admin.create_topic(
                name,
                partitions,
                ANY_REPLICATION,
                dict(configs or {}),
                Strategies(
                    storage,
                    partitioner,
                    partitioner_parameters,
                    serde,
                    serde_parameters,
                    key_serde,
                    key_serde_parameters,
                ),
            )
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic and its records.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        self._run(self._admin.delete_topic(name))
        self._own_producer.forget(name)

    def add_partitions(self, topic: str, total: Int32) -> None:
        """Add partitions to a topic, up to `total`. Groups with members in this process rebalance at once.

        Raises:
            ApiError: INVALID_PARTITIONS: The topic has that many partitions, or more.
        """
        self._run(self._admin.add_partitions(topic, total))
        self._runtime.topic_changed(topic)

    def truncate(
        self, topic: str, before: int | Mapping[int, int] | None = None
    ) -> dict[TopicPartition, int]:
        """Delete a topic's records below an offset.

        Args:
            topic: The topic.
            before: One offset for all partitions, or an offset for each partition; None deletes all records.

        Returns:
            The new log start offset of each partition.
        """
        return self._run(self._admin.truncate(topic, before))

    def topics(self) -> list[str]:
        """Return the names of all topics in order, without the broker's internal topics."""
        return self._run(self._admin.topics(internal=False))

    def describe_topic(self, name: str) -> TopicMetadata:
        """Return a topic's id and partitions."""
        return self._run(self._admin.describe_topic(name))

    def configs(self, topic: str) -> dict[str, ConfigEntry]:
        """Return a topic's configuration under Kafka's names. Each entry names the source of its value."""
        return self._run(self._admin.configs(topic))

    def alter_configs(self, topic: str, changes: Mapping[str, Value | None]) -> None:
        """Change a topic's configuration. None resets a setting to its default.

        Raises:
            ApiError: INVALID_CONFIG: A name is unknown, or its value is not valid.
        """
        self._run(self._admin.alter_configs(topic, changes))
        self._own_producer.forget(topic)

    # Groups

    def create_group(
        self,
        name: str,
        *,
        assignor: str | None = None,
        topics: str | Iterable[str] | None = None,
        pattern: str | None = None,
    ) -> Group:
        """Create a consumer group. Members without a subscription of their own read the group's attached topics.

        Args:
            name: The name of the group.
            assignor: The name of the assignor; None is "range".
            topics: The attached topics; None attaches `pattern`.
            pattern: A regular expression that must match the whole name of an attached topic; None attaches `topics`.
                A group with neither has no partitions until topics are attached.

        Raises:
            ApiError: INVALID_REQUEST: The group exists. INVALID_CONFIG: A name or the pattern is not valid.
        """
        group = self.group(name)
        group.create(assignor, topics, pattern)
        return group

    def group(self, name: str) -> Group:
        """Return the object for a group. The group need not exist."""
        from headrace.embedded.groups import Group  # noqa: PLC0415 - not every broker has groups

        return Group(name, self._driver)

    def groups(self) -> list[str]:
        """Return the names of all groups in order."""
        return [listing.group_id for listing in self._run(self._admin.groups())]

    # Records without clients

    @unchecked
    def publish(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
        deliver_at_ms: int | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
        tags: Collection[str] = (),
    ) -> RecordMetadata:
        """Write a record, and return its partition and offset. The topic's metadata select partitioner and serdes.

        Each call writes a batch of one record. A `Producer` writes many records faster.

        Args:
            topic: The topic.
            value: The value; None deletes the key in a compacted topic.
            key: The key.
            headers: Pairs of a name and a value.
            timestamp_ms: The record's timestamp in milliseconds since 1970; None is the present time.
            partition: The partition; None lets the partitioner choose.
            deliver_at_ms: The delivery time in milliseconds since 1970, for topics with `headrace.delay.enable`.
            delay_ms: The time from sending to delivery in milliseconds, in place of `deliver_at_ms`.
            ttl_ms: The time from the record's timestamp to its expiry in milliseconds, for topics with
                `headrace.ttl.enable`.
            tags: The tags by which consumers with `tags=` select records.
        """
        sent = self._publisher().send(
            topic,
            value,
            key=key,
            headers=directives(headers),
            timestamp_ms=timestamp_ms,
            partition=partition,
            deliver_at_ms=deliver_at_ms,
            delay_ms=delay_ms,
            ttl_ms=ttl_ms,
            tags=tags,
        )
        return sent.result()

    def read(
        self,
        topic: str,
        partition: Count,
        offset: OffsetNumber,
        limit: Count = 100,
        *,
        serde: SerdeOf[V] | None = None,
        key_serde: AnySerde | None = None,
        isolation_level: str = "read_committed",
    ) -> list[ConsumerRecord[V]]:
        """Return records of one partition, without a group and without a consumer.

        Args:
            topic: The topic.
            partition: The partition.
            offset: The first offset.
            limit: The most records to return.
            serde: The serde of values; None is the serde of the topic, or bytes if the topic has none.
            key_serde: The serde of keys; None is the key serde of the topic, or bytes if the topic has none.
            isolation_level: "read_committed" stops before the first open transaction, and leaves out records of aborted
                transactions; "read_uncommitted" returns all records.

        Raises:
            ApiError: The partition does not exist, or OFFSET_OUT_OF_RANGE.
            ConfigError: The isolation level is unknown.
            CorruptRecordError: A stored batch is damaged.
            SerializationError: A key or value cannot be decoded.
        """
        from headrace.embedded.record_reader import new_reader  # noqa: PLC0415 - few programs read this way

        where = TopicPartition(topic, partition)
        reader = new_reader(
            self._state,
            self._run,
            where,
            serde=serde,
            key_serde=key_serde,
            isolation_level=isolation_level,
        )
        return self._run(reader.read(self._state, offset, limit))

    # Time and other processes

    @uninterrupted
    def advance(self, duration_ms: int) -> None:
        """Move a `ManualClock` forward, and perform all work that is due on the way.

        Args:
            duration_ms: The distance in milliseconds.
        """
        self._runtime.advance(duration_ms)

    @uninterrupted
    @checked
    def listen(self, address: str = "127.0.0.1:0", *, insecure: bool = False) -> str:
        """Serve the broker over TCP, too: clients in other processes can connect. Local clients continue as before.

        Each call adds an address. `close` ends all listeners.

        Args:
            address: HOST:PORT, or NAME://HOST:PORT for a listener with TLS or SASL that the broker's configuration
                declares. Port 0 lets the system choose.
            insecure: Whether to listen on an address that other machines reach without both encryption and
                authentication.

        Returns:
            HOST:PORT with the port that was chosen.

        Raises:
            ConfigError: The address is in use, malformed, or reachable from other machines; or the clock is a
                `ManualClock`.
            ClosedError: The broker is closed.
        """
        from headrace.embedded.listening import LoopbackListener  # noqa: PLC0415 - asyncio is slow to import
        from headrace.server.listen import check_exposure  # noqa: PLC0415 - asyncio is slow to import

        config = self._core.config
        protocols = parse_protocol_map(config.listener_security_protocol_map)
        wanted = parse_listener(address, protocols)
        check_exposure(wanted, config, insecure=insecure)
        return self._runtime.listen(wanted, LoopbackListener)

    # Life

    def __del__(self) -> None:
        # The attribute is missing if the constructor raised.
        if not getattr(self, "_closing", True) and not self._runtime.disowned:
            warn_unclosed(self, "close()", self.close)

    def _end_of_program(self, timeout_s: float) -> None:  # noqa: ARG002 - `close` takes no timeout
        """Close the broker at the end of the program, so that the next start needs no recovery."""
        self.close()

    @uninterrupted
    def close(self) -> None:
        """Close the broker. Data in a directory is complete; data in memory is gone.

        From now on all calls of its clients fail, also in other processes.
        """
        with self._runtime.condition:
            if self._closing or self._runtime.disowned:
                return
            self._closing = True
        self._own_producer.close()
        self._driver.close()
        self._runtime.close()
        with self._runtime.condition:
            self._save_partitioners()
            if not self._runtime.sync_stuck:  # otherwise the next start recovers, as after a crash
                self._core.close(self.now_ms())
            self._stores.close()

    def _save_partitioners(self) -> None:
        try:
            self._partitioners.save(self._core.services.topics)
        except Exception as error:  # noqa: BLE001 - a full disk or a faulty partitioner must not stop `close`
            self._core.services.journal.error("partitioners_not_kept", error=repr(error))

    @property
    def _admin(self) -> AdminCore:
        from headrace.clients.admin.core import AdminCore  # noqa: PLC0415 - not every broker is administered

        return AdminCore(self._state, self._config)

    @property
    def _state(self) -> ClientState:
        return self._driver.engine.state

    def _run(self, flow: Flow[T]) -> T:
        return self._driver.run(flow)
