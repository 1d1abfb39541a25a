"""The outlet: the producer that all workers of one app share, and their requests for topics, limits and permissions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any, Final

from headrace.clients.config import ClientConfig, ProducerConfig, parse_config
from headrace.clients.consumer.aio import Consumer
from headrace.clients.drivers import Target, open_aio_driver
from headrace.clients.engine import UNLIMITED_MS
from headrace.clients.flows import metadata, offsets, rights
from headrace.clients.flows.admin import NewTopic, create_topics, describe_configs
from headrace.clients.flows.cluster import TopicSettings
from headrace.clients.flows.list_offsets import (
    LATEST,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    list_offsets,
)
from headrace.clients.flows.topic_settings import topic_settings
from headrace.clients.producer.aio import Producer
from headrace.clients.producer.delivery import RecordMetadata
from headrace.clock import SteadyClock
from headrace.config.resources import ConfigResourceType
from headrace.dead_letters.letter_headers import Headers
from headrace.errors import ApiError, ConfigError, ErrorCode, HeadraceError, MessageTooLargeError
from headrace.records.builder import RecordFields, build_batch
from headrace.records.compression import Compression
from headrace.registers import Named
from headrace.serdes.serde import Serde, resolve_serde
from headrace.serdes.typed import writer_of_type
from headrace.types import TopicPartition

CREATE_TIMEOUT_MS: Final = 30_000
"""The timeout of a CreateTopics request, in milliseconds."""
DELAYED: Final = {"headrace.delay.enable": "true"}
"""The configuration of topics with scheduled records, on Headrace's brokers."""
LARGEST_RECORD_BYTES: Final = 96 << 20
"""The largest record in bytes that the producer accepts. The limits of topics are lower."""
BATCH_OVERHEAD_BYTES: Final = 128
"""The most bytes that a batch with one record adds to key, value and headers."""
HEADROOM_BYTES: Final = 64 << 10
"""The most bytes that the headers of a dead letter, or of a record in a retry topic, add to a record."""
DEFAULT_MESSAGE_BYTES: Final = 1_048_588
"""The assumed largest record of a topic, in bytes, if its configuration may not be read."""
CLOSE_TIMEOUT_S: Final = 1.0
"""The longest wait at the end of the app for records that are in flight, in seconds."""
SAFE: Final[dict[str, Any]] = {"serde": "bytes", "key_serde": "bytes", "recreate_topics": False}
"""Fixed settings of the app's producers. The app creates its topics itself, with the partitions that they need."""
STEP_TIMEOUT_MS: Final = 5_000
"""The longest time of one step of a transaction, in milliseconds."""
MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_NOT_TO_CHOOSE: Final = {
    "serde": "@app.publishes(..., serde=), or the topic's metadata, determine how results are encoded",
    "key_serde": "the type of a key determines how it is encoded",
    "bootstrap_servers": "App(target) has the addresses of the brokers",
    "client_id": "use App(client_id=)",
    "transactional_id": "use @app.worker(..., transactional_id=)",
    "transaction_timeout_ms": "use @app.worker(..., transaction_timeout_ms=)",
}
"""Producer properties that the app sets itself, each with the right place for the setting."""
LIMIT_HOLDS_S: Final = 1.0
"""The least time in seconds between two requests for a topic's record limit. So the smaller and smaller dead letters of
one record are measured by the same limit."""

_log: Final = logging.getLogger("headrace.workers")


class Outlet:
    """Writes records, looks topics up and creates them. It is created and used on one running event loop."""

    def __init__(
        self,
        target: Target,
        client_id: str,
        properties: Mapping[str, Any],
        producer: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare the clients. They connect with the first request.

        Args:
            target: The addresses of the brokers, or a broker in this process.
            client_id: The client id of the app.
            properties: Properties of all clients.
            producer: Further properties of the producers; see `producer_properties`.
        """
        self.target = target
        self._client_id = client_id
        self._shared = dict(properties)
        self._properties = {**properties, **producer_properties(producer or {})}
        self._where = {"bootstrap_servers": target} if isinstance(target, str) else {}
        config = parse_config(ClientConfig, properties, client_id=client_id, **self._where)
        self._driver = open_aio_driver(target, config)
        self._producer = Producer(
            target, **{"linger_ms": 0, "client_id": client_id, **self._properties, **SAFE}
        )
        self._clock = SteadyClock()
        self._serdes: dict[Named | type[Any], Serde] = {}
        self._checked: dict[str, tuple[int, float]] = {}
        """The record limit in bytes, and the time of its request in seconds of the loop's clock, by topic."""
        self._settings_until_s: dict[str, float] = {}
        """The time until which a topic's serde settings are cached, by topic, in seconds of the event loop's clock."""

    def transactional(self, transactional_id: str, timeout_ms: int) -> Producer:
        """Return a new producer for transactions. It sends its records with the commit.

        Args:
            transactional_id: The transactional id.
            timeout_ms: The time after which the coordinator aborts a transaction, in milliseconds. One step may take
                half of it. So the producer aborts records that cannot be delivered before the coordinator fences it.
        """
        return Producer(
            self.target,
            **{
                "client_id": self._client_id,
                **self._properties,
                **SAFE,
                "linger_ms": 2 * STEP_TIMEOUT_MS,
                "max_block_ms": min(STEP_TIMEOUT_MS, timeout_ms // 2),
                "transactional_id": transactional_id,
                "transaction_timeout_ms": timeout_ms,
            },
        )

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970: the time of the broker if the broker is in this process."""
        if isinstance(self.target, str):
            return self._clock.now_ms()
        return self.target.now_ms()

    # Writing

    async def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        serde: Serde | None = None,
    ) -> RecordMetadata:
        """Write a value, wait until it is acknowledged, and return its partition and offset.

        Args:
            topic: The topic.
            value: The value; None writes a record without a value.
            key: The key. Bytes are written as they are. The topic's key serde (`headrace.key.serde`) encodes other
                keys. Without one, text is written as it is, and other keys as JSON.
            headers: Pairs of a name and a value.
            serde: The serde of the value; None is the topic's serde. Without one, bytes and text are written as they
                are, and other values as JSON.
        """
        data, encoded = await self.encode(topic, value, key, serde)
        return await self.write(topic, data, key=encoded, headers=headers)

    async def encode(
        self, topic: str, value: Any, key: Any, serde: Serde | None = None
    ) -> tuple[bytes | None, bytes | None]:
        """Return value and key as bytes, encoded as `publish` describes."""
        data = None
        if value is not None:
            data = (serde or await self._serde_for(topic, value)).serialize(value)
        if key is None or isinstance(key, bytes):
            return data, key
        named = (await self.settings(topic)).key_serde
        return data, self._serde(type(key) if named is None else named).serialize(key)

    async def write(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> RecordMetadata:
        """Write bytes, wait until they are acknowledged, and return their partition and offset."""
        sent = await self._producer.send(
            topic,
            value,
            key=key,
            headers=headers,
            timestamp_ms=timestamp_ms,
            partition=partition,
        )
        return await sent

    async def _serde_for(self, topic: str, value: Any) -> Serde:
        settings = await self.settings(topic)
        return self._serde(type(value) if settings.serde is None else settings.serde)

    def _serde(self, kind: Named | type[Any]) -> Serde:
        serde = self._serdes.get(kind)
        if serde is None:
            made = resolve_serde(kind) if isinstance(kind, Named) else writer_of_type(kind)
            serde = self._serdes[kind] = made
        return serde

    # Topics

    async def settings(self, topic: str) -> TopicSettings:
        """Return the serde settings of a topic. They are cached for `metadata.max.age.ms`."""
        state, now_s = self._driver.engine.state, asyncio.get_running_loop().time()
        known = state.topic_settings.get(topic)
        if known is not None and now_s < self._settings_until_s.get(topic, 0):
            return known
        state.topic_settings.pop(topic, None)
        found = await self._driver.run(topic_settings(state, topic))
        age_s = self._producer.config.metadata_max_age_ms / 1000
        self._settings_until_s[topic] = now_s + age_s
        return found

    async def check_record(self, topic: str, record: RecordFields, size: int) -> None:
        """Check that a topic accepts a record, as far as the topic's metadata show.

        Args:
            topic: The topic.
            record: Key, value, headers and timestamp.
            size: The size of key, value and headers in bytes.

        Raises:
            ApiError: The topic does not exist, may not be described, or accepts only smaller records.
        """
        if topic not in self._checked:
            await self._producer.partitions_for(topic)
            await self._ask_for_limit(topic)
        limit, asked_s = self._checked[topic]
        is_old = asyncio.get_running_loop().time() > asked_s + LIMIT_HOLDS_S
        if size + BATCH_OVERHEAD_BYTES > limit and is_old:  # the limit may have been raised
            limit = await self._ask_for_limit(topic)
        if size + BATCH_OVERHEAD_BYTES <= limit:
            return
        codec = Compression[self._producer.config.compression_type.upper()]
        compressed = codec and len(build_batch([record], compression=codec))
        if not compressed or compressed > limit:
            raise MessageTooLargeError(
                f"a record of {size} bytes for topic {topic!r} exceeds its max.message.bytes={limit}"
                + (f", also after compression with {codec.name.lower()}" if codec else "")
            )

    async def _ask_for_limit(self, topic: str) -> int:
        limit, now_s = await self.max_message_bytes(topic), asyncio.get_running_loop().time()
        self._checked[topic] = limit, now_s
        return limit

    def forget(self, topic: str) -> None:
        """Forget the limit of a topic that has refused a record. The next record asks for it again."""
        self._checked.pop(topic, None)

    async def max_message_bytes(self, topic: str) -> int:
        """Return the record limit of a topic in bytes, or Kafka's default if the configuration may not be read."""
        flow = describe_configs(self._driver.engine.state, ConfigResourceType.TOPIC, [topic])
        try:
            entries = (await self._driver.run(flow)).get(topic, [])
        except ApiError:
            entries = []
        values = [one.value for one in entries if one.name == MAX_MESSAGE_BYTES and one.value]
        return int(values[0]) if values else DEFAULT_MESSAGE_BYTES

    async def partition_counts(self, topics: Collection[str]) -> dict[str, int]:
        """Return the number of partitions of topics; 0 for a topic that does not exist."""
        state = self._driver.engine.state
        known = await self._driver.run(metadata.refresh(state, topics))
        return {topic: len(known.partitions(topic)) for topic in topics}

    async def create_topics(
        self,
        partitions: Mapping[str, int],
        *,
        delayed: bool = False,
        max_message_bytes: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create topics that do not exist yet.

        Args:
            partitions: The number of partitions, by topic; -1 is the broker's default.
            delayed: Whether the topics accept scheduled records. Brokers without scheduled records ignore this.
            max_message_bytes: The record limit in bytes; None is the broker's default.
            configs: Further configuration.

        Raises:
            ApiError: The broker refuses to create a topic.
        """
        counts = await self.partition_counts(partitions)
        wanted = {**(configs or {}), **(DELAYED if delayed else {})}
        if max_message_bytes is not None:
            wanted[MAX_MESSAGE_BYTES] = str(max_message_bytes)
        missing = [
            NewTopic(name, partitions[name], configs=wanted)
            for name, count in counts.items()
            if not count
        ]
        if not missing:
            return
        flow = create_topics(self._driver.engine.state, missing, CREATE_TIMEOUT_MS)
        outcomes: Mapping[str, ApiError | None] = await self._driver.run(flow, UNLIMITED_MS)
        for error in outcomes.values():
            if error is not None and error.code == ErrorCode.INVALID_CONFIG and delayed:
                await self.create_topics(
                    partitions, max_message_bytes=max_message_bytes, configs=configs
                )
                return
            if error is not None and error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
                raise error

    # Rights

    async def rights_on_topics(self, topics: Collection[str]) -> dict[str, rights.Rights]:
        """Return the permissions of the app on topics, as far as the broker returns them."""
        return await self._driver.run(rights.rights_on_topics(self._driver.engine.state, topics))

    async def rights_on_group(self, group: str) -> rights.Rights:
        """Return the permissions of the app on a group, as far as the broker returns them."""
        return await self._driver.run(rights.rights_on_group(self._driver.engine.state, group))

    # Offsets

    async def committed(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the committed offsets of a group. The call waits until no pending transaction can change them."""
        flow = offsets.committed_offsets(self._driver.engine.state, group, partitions)
        return {name: at.offset for name, at in (await self._driver.run(flow)).items()}

    async def settled(self, topics: Collection[str]) -> bool:
        """Return whether consumers with isolation level "read_committed" can read all records of some topics."""
        state = self._driver.engine.state
        await self._driver.run(metadata.ensure(state, topics))
        names = [name for topic in topics for name in state.metadata.partitions(topic)]
        wanted = dict.fromkeys(names, LATEST)
        committed = await self._driver.run(list_offsets(state, wanted, READ_COMMITTED))
        written = await self._driver.run(list_offsets(state, wanted, READ_UNCOMMITTED))
        return all(committed[name].offset == written[name].offset for name in names)

    async def written_ends(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the end offsets of partitions, which include the records of open transactions."""
        state = self._driver.engine.state
        flow = list_offsets(state, dict.fromkeys(partitions, LATEST), READ_UNCOMMITTED)
        return {name: at.offset for name, at in (await self._driver.run(flow)).items()}

    def reader(self) -> Consumer:
        """Return a new consumer without a group, with isolation level "read_committed"."""
        return Consumer(
            self.target,
            **{
                "client_id": self._client_id,
                **self._shared,
                "enable_auto_commit": False,
                "isolation_level": "read_committed",
                "serde": "bytes",
                "key_serde": "bytes",
            },
        )

    async def close(self) -> None:
        """Close the connections. Records in flight belong to input records that are not committed."""
        try:
            await self._producer.close(CLOSE_TIMEOUT_S)
        except HeadraceError as error:
            _log.warning(
                "records were still in flight to their topics when the app ended: %s", error
            )
        finally:
            await self._driver.close()


def producer_properties(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of an app's producers.

    Args:
        given: The properties of `App(producer={...})`. They take precedence over the defaults.

    Raises:
        ConfigError: A property is unknown, or the app sets it itself.
    """
    properties = {name.replace(".", "_"): value for name, value in given.items()}
    for name, reason in _NOT_TO_CHOOSE.items():
        if name in properties:
            raise ConfigError(f"producer={{{name!r}: ...}}: {reason}")
    config = parse_config(ProducerConfig, properties)
    if config.acks == 0:
        raise ConfigError(
            "producer={'acks': 0}: a record is finished when its results are acknowledged, so acks cannot be 0"
        )
    return {"max_request_size": LARGEST_RECORD_BYTES, **properties}
