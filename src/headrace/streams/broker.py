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
    checks_arguments,
    shown,
    unchecked,
)
from headrace.clients.config import ClientConfig
from headrace.clients.drivers import Driver, open_blocking_driver
from headrace.clients.drivers.interrupts import uninterrupted
from headrace.clients.drivers.unclosed import at_exit, warn_unclosed
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.flows.list_offsets import READ_COMMITTED, READ_UNCOMMITTED
from headrace.clients.flows.topic_settings import topic_settings
from headrace.clients.topic_strategies import (
    PartitionerChoice,
    StorageChoice,
    Strategies,
    check_topic_config,
)
from headrace.clock import SteadyClock
from headrace.config.broker import parse_broker_config
from headrace.config.options import Value, render_value
from headrace.config.units import plain_number
from headrace.errors import ConfigError
from headrace.records.directives import directives
from headrace.serdes.serde import AnySerde, SerdeOf, resolve_serde
from headrace.server.descriptors import descriptor_limit, segment_files
from headrace.server.entropy import OsEntropy
from headrace.server.log import LoggingJournal, RateLimited
from headrace.server.stores import open_stores, warn_of_exposed
from headrace.streams.clock import Clock
from headrace.streams.given import TopicObjects
from headrace.streams.partitioners import TopicPartitioners
from headrace.streams.world import World
from headrace.types import TopicPartition, V

CLIENT_ID: Final = "headrace-embedded"
EMBEDDED: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.heartbeat.interval.ms": "200",
}
"""What differs from a server's defaults: members of one program join one after another, none waits for the others."""
ANY_REPLICATION: Final = -1
"""The broker decides how many replicas a topic has."""

T = TypeVar("T")

if TYPE_CHECKING:
    from headrace.clients.admin.core import AdminCore
    from headrace.clients.consumer.records import ConsumerRecord
    from headrace.clients.flows.admin import ConfigEntry
    from headrace.clients.flows.cluster import TopicMetadata
    from headrace.clients.producer.blocking import Producer
    from headrace.clients.producer.delivery import RecordMetadata
    from headrace.streams.groups import Group


@checks_arguments
class Broker:
    """A Kafka broker in this process: no server, no threads of its own, ready in milliseconds.

        broker = headrace.Broker()                     # in memory; headrace.Broker(data="directory") keeps it
        broker.create_topic("orders", partitions=6, serde="json")
        broker.publish("orders", {"id": 1}, key=b"alice")
        producer = headrace.Producer(broker)

    A context manager that closes itself. It is what clients take in place of an address. Any thread may use it.
    """

    _core_type: ClassVar[type[CoreBroker]] = CoreBroker
    """What decides; tests have one that can be made to fail."""
    _world_type: ClassVar[type[World]] = World

    def __init__(
        self,
        data: str | Path | None = None,
        *,
        clock: Clock | None = None,
        configs: Mapping[str, Value] | None = None,
    ) -> None:
        """Open a broker.

        Args:
            data: The directory to keep everything in; None keeps it in memory, for as long as the broker is open.
            clock: The time of the broker and of its clients; None is the process's. A `ManualClock` is for tests.
            configs: The broker's configuration under Kafka's names: text, numbers or booleans.

        Raises:
            ConfigError: A configuration is unknown or malformed.
            StorageError: The directory is in use, or what is in it cannot be read.
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
            self._partitioners = TopicPartitioners(self._stores.metadata)
            self._world = self._world_type(
                core, clock, objects=objects, partitioners=self._partitioners, owner=self
            )
            core.open(self.now_ms())
        except BaseException:
            self._stores.close()  # else nobody could try again
            raise
        self._config = ClientConfig(client_id=CLIENT_ID)
        self._driver: Driver = open_blocking_driver(self, self._config)
        self._producer: Producer | None = None
        self._closing = False
        at_exit(self, Broker._end_of_program, is_broker=True)

    @property
    def _port(self) -> World:
        """What the broker's clients in this process use."""
        return self._world

    @property
    def clock(self) -> Clock:
        """The time of the broker and of its clients in this process."""
        return self._world.clock

    def now_ms(self) -> int:
        """Return the broker's time, in milliseconds since 1970."""
        return self._world.now_ms()

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
            name: Its name.
            partitions: How many partitions it has.
            configs: Its configuration under Kafka's names: text, numbers or booleans.
            storage: Where its records are kept: "array" or "linked" (in memory), "files" (in the broker's directory),
                the name of a storage that was registered, the class of one, or a log directory, which is a
                `headrace.ports.FileSystem`. None is files, or linked if the broker is in memory.
            partitioner: The partitioner that Headrace's producers use, unless they are told otherwise: a name, which
                is built in, registered or offered by an installed package; or a class or an object, of which the
                topic keeps the name and the parameters.
            partitioner_parameters: What the partitioner is made with, as keyword arguments; kept as JSON.
            serde: The serde of its values: a name, a class or an object; or a type, whose values are JSON.
            serde_parameters: What the serde is made with, as keyword arguments; kept as JSON. `{"schema": ...}` for
                "avro".
            key_serde: The serde of its keys.
            key_serde_parameters: What the serde of its keys is made with.

        Raises:
            ConfigError: Nothing is known here by the name of a partitioner or serde, or the parameters do not fit it.
            ApiError: TOPIC_ALREADY_EXISTS, or what is wrong with name, partitions or configuration.
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
        """Delete a topic and what is in it.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION.
        """
        self._run(self._admin.delete_topic(name))
        self._look_again(name)

    def add_partitions(self, topic: str, total: Int32) -> None:
        """Give a topic more partitions, `total` altogether; groups that run here divide them anew at once.

        Raises:
            ApiError: INVALID_PARTITIONS: it has as many already.
        """
        self._run(self._admin.add_partitions(topic, total))
        self._world.topic_changed(topic)

    def truncate(
        self, topic: str, before: int | Mapping[int, int] | None = None
    ) -> dict[TopicPartition, int]:
        """Delete a topic's records below an offset.

        Args:
            topic: The topic.
            before: The offset, or one for each partition; None deletes all records.

        Returns:
            Where each partition begins now.
        """
        return self._run(self._admin.truncate(topic, before))

    def topics(self) -> list[str]:
        """Return the names of all topics but the broker's own, sorted."""
        return self._run(self._admin.topics(internal=False))

    def describe_topic(self, name: str) -> TopicMetadata:
        """Return a topic's id and partitions."""
        return self._run(self._admin.describe_topic(name))

    def configs(self, topic: str) -> dict[str, ConfigEntry]:
        """Return a topic's configuration, and where each value comes from, under Kafka's names."""
        return self._run(self._admin.configs(topic))

    def alter_configs(self, topic: str, changes: Mapping[str, Value | None]) -> None:
        """Change a topic's configuration; None takes back what was set.

        Raises:
            ApiError: INVALID_CONFIG.
        """
        self._run(self._admin.alter_configs(topic, changes))
        self._look_again(topic)

    def _look_again(self, topic: str) -> None:
        """Have `publish` obey what the topic's metadata say by now."""
        if self._producer is not None:
            with self._producer._driver.enter():  # noqa: SLF001 - it is this broker's
                self._producer._core.forget(topic)  # noqa: SLF001 - it is this broker's

    # Groups

    def create_group(
        self,
        name: str,
        *,
        assignor: str | None = None,
        topics: str | Iterable[str] | None = None,
        pattern: str | None = None,
    ) -> Group:
        """Create a consumer group; members that subscribe to nothing themselves read what it is attached to.

        Args:
            name: Its name.
            assignor: The name of the assignor that divides its partitions; None is range.
            topics: The topics that it is attached to, or
            pattern: a regular expression that matches their whole names. With neither, members wait.

        Raises:
            ApiError: INVALID_REQUEST: it was created before. INVALID_CONFIG: a name or the pattern is malformed.
        """
        group = self.group(name)
        group.create(assignor, topics, pattern)
        return group

    def group(self, name: str) -> Group:
        """Return a group by its name, whether or not it is there."""
        from headrace.streams.groups import Group  # noqa: PLC0415 - not every broker has groups

        return Group(name, self._driver)

    def groups(self) -> list[str]:
        """Return the names of all groups, sorted."""
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
        """Write a record and return where it went; partition and bytes are as the topic's metadata says.

        Each call writes a batch of one record. For many, a `Producer` is faster.

        Args:
            topic: Where to.
            value: The content; None deletes the key in a compacted topic.
            key: The key.
            headers: Name and value pairs.
            timestamp_ms: The record's time, milliseconds since 1970; None is now.
            partition: The partition, instead of the partitioner's.
            deliver_at_ms: When the record comes, milliseconds since 1970, on topics with `headrace.delay.enable`.
            delay_ms: How long after it is sent it comes, instead of a time.
            ttl_ms: How long after its time it expires, on topics with `headrace.ttl.enable`.
            tags: What consumers with `tags=` choose by.
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
            offset: Where to begin.
            limit: How many records at most.
            serde: How values are read; None is what the topic's metadata says, else bytes.
            key_serde: How keys are read, likewise.
            isolation_level: "read_committed" ends where a transaction is open, and leaves out records of aborted ones;
                "read_uncommitted" returns them all.

        Raises:
            ApiError: There is no such partition, or OFFSET_OUT_OF_RANGE.
            ConfigError: There is no such isolation level.
            CorruptRecordError: What is stored is damaged.
            SerializationError: A key or value cannot be read.
        """
        from headrace.streams.reading import RecordReader  # noqa: PLC0415 - not every broker is read so

        levels = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
        if isolation_level not in levels:
            raise ConfigError(
                f"isolation_level is one of {', '.join(levels)}, not {isolation_level!r}"
            )
        self._state.topic_settings.pop(topic, None)  # the topic may be another one by now
        settings = self._run(topic_settings(self._state, topic))
        records = RecordReader(
            TopicPartition(topic, partition),
            value_serde=resolve_serde(serde or settings.serde or "bytes"),
            key_serde=resolve_serde(key_serde or settings.key_serde or "bytes"),
            isolation_level=levels[isolation_level],
        )
        return self._run(records.read(self._state, offset, limit))

    @uninterrupted
    def _publisher(self) -> Producer:
        if self._producer is None:
            from headrace.clients.producer.blocking import Producer  # noqa: PLC0415 - not every broker publishes

            with self._world.condition:  # threads may come here at once
                if self._producer is None:
                    producer = Producer(self, linger_ms=0, client_id=CLIENT_ID)
                    producer._has_owner = True  # noqa: SLF001 - it is this broker's
                    self._producer = producer
        return self._producer

    # Time and other processes

    @uninterrupted
    def advance(self, duration_ms: int) -> None:
        """Move a `ManualClock`, with everything that happens on the way.

        Args:
            duration_ms: By how many milliseconds.
        """
        self._world.advance(duration_ms)

    @uninterrupted
    def listen(self, address: str = "127.0.0.1:0", *, insecure: bool = False) -> str:
        """Serve the broker over TCP too, to clients in other processes; local ones go on as before.

        May be called again for another address. It ends with `close`.

        Args:
            address: HOST:PORT, or NAME://HOST:PORT for a listener with TLS or SASL, of which the broker's configuration
                says the rest; port 0 lets the system choose.
            insecure: Whether other machines may connect though the listener does not both encrypt and authenticate.

        Returns:
            HOST:PORT with the port that was chosen.

        Raises:
            ConfigError: The address is taken, malformed, or reached by other machines; or the clock is moved by hand.
            ClosedError: The broker is closed.
        """
        return self._world.listen(address, insecure=insecure)

    # Life

    def __del__(self) -> None:
        # There is no such attribute if it could not be opened.
        if not getattr(self, "_closing", True) and not self._world.disowned:
            warn_unclosed(self, "close()", self.close)

    def _end_of_program(self, timeout_s: float) -> None:  # noqa: ARG002 - closing waits for nobody
        """Close at the end of the program, so that a directory is whole."""
        self.close()

    @uninterrupted
    def close(self) -> None:
        """Close the broker: what it keeps in a directory is whole, what it keeps in memory is gone.

        Its clients' calls fail from now on, also those in other processes if it listens.
        """
        with self._world.condition:
            if self._closing or self._world.disowned:
                return
            self._closing = True
        if self._producer is not None:
            self._producer.close()
        self._driver.close()
        self._world.close()
        with self._world.condition:
            self._keep_partitioners()
            if (
                not self._world.sync_stuck
            ):  # else it is left as after a crash, and the next start recovers
                self._core.close(self.now_ms())
            self._stores.close()

    def _keep_partitioners(self) -> None:
        try:
            self._partitioners.save(self._core.services.topics)
        except Exception as error:  # noqa: BLE001 - of the disk or of the program's own class; the broker closes well
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
