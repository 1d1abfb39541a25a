"""The producer that all workers of one app share, and their requests for topics, limits and rights."""

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
DELAYED: Final = {"headrace.delay.enable": "true"}
LARGEST_RECORD_BYTES: Final = 96 << 20
"""The largest record in bytes that the producer accepts. The limits of topics are lower."""
BATCH_OVERHEAD_BYTES: Final = 128
"""The most bytes that a batch with one record adds to key, value and headers."""
HEADROOM_BYTES: Final = 64 << 10
"""The most bytes that the headers of a dead letter, or of a record in a retry topic, add to a record."""
DEFAULT_MESSAGE_BYTES: Final = 1_048_588
"""The assumed largest record of a topic, in bytes, if its configuration may not be read."""
CLOSE_TIMEOUT_S: Final = 1.0
"""How long, in seconds, records that are in flight when the app ends may take to be written."""
SAFE: Final[dict[str, Any]] = {"serde": "bytes", "key_serde": "bytes", "recreate_topics": False}
"""Fixed settings of the app's producers. The app creates its topics itself, with the partitions that they need."""
STEP_TIMEOUT_MS: Final = 5_000
"""How long one step of a transaction may take, at most."""


MAX_MESSAGE_BYTES: Final = "max.message.bytes"
_NOT_TO_CHOOSE: Final = {
    "serde": "results become bytes by @app.publishes(..., serde=), or by the topic's metadata",
    "key_serde": "keys become bytes by their type",
    "bootstrap_servers": "App(target) says where the brokers are",
    "client_id": "App(client_id=) says it",
    "transactional_id": "@app.worker(..., transactional_id=) says it",
    "transaction_timeout_ms": "@app.worker(..., transaction_timeout_ms=) says it",
}

LIMIT_HOLDS_S: Final = 1.0
"""A limit that refuses a record is not asked for again so soon: of several letters for one record all are measured by
the same one."""

_log: Final = logging.getLogger("headrace.workers")


class Outlet:
    """Writes records, looks topics up and creates them; to be created and used on one running event loop."""

    def __init__(
        self,
        target: Target,
        client_id: str,
        properties: Mapping[str, Any],
        producer: Mapping[str, Any] | None = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            target: Where the brokers are.
            client_id: The name by which they know the app.
            properties: Properties of all clients.
            producer: Properties of the producers besides; see `producer_properties`.
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
        """Topics that are there: how large their records may be, and when that was asked by the event loop's clock."""
        self._settings_until_s: dict[str, float] = {}
        """The time until which a topic's serde settings are cached, by topic, in seconds of the event loop's clock."""

    def transactional(self, transactional_id: str, timeout_ms: int) -> Producer:
        """Return a new producer for transactions. What it is given leaves with the commit.

        Args:
            transactional_id: Its name.
            timeout_ms: After which the coordinator aborts a transaction. A step of one may take half of it, so that
                what cannot be delivered is aborted here, and the producer stays.
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
        """Return the time: the broker's where it is in this process."""
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
        """Write a value and return where it went, when it is safe.

        Args:
            topic: Where to.
            value: The content; None is a record without a value.
            key: Bytes, which are written as they are, or what the topic's metadata say (`headrace.key.serde`), or else
                text or what JSON can say.
            headers: Name and value pairs.
            serde: How the value becomes bytes; None is what the topic's metadata say, or else its type: bytes and text
                as they are, everything else as JSON.
        """
        data, encoded = await self.encode(topic, value, key, serde)
        return await self.write(topic, data, key=encoded, headers=headers)

    async def encode(
        self, topic: str, value: Any, key: Any, serde: Serde | None = None
    ) -> tuple[bytes | None, bytes | None]:
        """Return value and key as bytes, as `publish` writes them."""
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
        """Write bytes and return where they went, when they are safe."""
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
        """Return what a topic's metadata say of serdes; after `metadata.max.age.ms` it may be another topic."""
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
        """Make sure that a topic takes a record, as far as its metadata tell.

        Args:
            topic: Where to.
            record: Key, value, headers and timestamp.
            size: The bytes of key, value and headers.

        Raises:
            ApiError: There is no such topic, it may not be seen, or the record is too large for it.
        """
        if topic not in self._checked:
            await self._producer.partitions_for(topic)
            await self._ask_for_limit(topic)
        limit, asked_s = self._checked[topic]
        is_old = asyncio.get_running_loop().time() > asked_s + LIMIT_HOLDS_S
        if size + BATCH_OVERHEAD_BYTES > limit and is_old:  # the topic may take larger ones by now
            limit = await self._ask_for_limit(topic)
        if size + BATCH_OVERHEAD_BYTES <= limit:
            return
        codec = Compression[self._producer.config.compression_type.upper()]
        compressed = codec and len(build_batch([record], compression=codec))
        if not compressed or compressed > limit:
            raise MessageTooLargeError(
                f"a record of {size} bytes for topic {topic!r} exceeds its max.message.bytes={limit}"
                + (f" with {codec.name.lower()}, too" if codec else "")
            )

    async def _ask_for_limit(self, topic: str) -> int:
        limit, now_s = await self.max_message_bytes(topic), asyncio.get_running_loop().time()
        self._checked[topic] = limit, now_s
        return limit

    def forget(self, topic: str) -> None:
        """Look at a topic again before the next record: it has refused one."""
        self._checked.pop(topic, None)

    async def max_message_bytes(self, topic: str) -> int:
        """Return how large a topic's records may be, by its configuration, or Kafka's default where that is hidden."""
        flow = describe_configs(self._driver.engine.state, ConfigResourceType.TOPIC, [topic])
        try:
            entries = (await self._driver.run(flow)).get(topic, [])
        except ApiError:
            entries = []
        values = [one.value for one in entries if one.name == MAX_MESSAGE_BYTES and one.value]
        return int(values[0]) if values else DEFAULT_MESSAGE_BYTES

    async def partition_counts(self, topics: Collection[str]) -> dict[str, int]:
        """Return how many partitions topics have; 0 for one that does not exist."""
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
            partitions: The number of partitions by name; -1 is the broker's default.
            delayed: Whether records can be delayed in them, if the broker is one that delays.
            max_message_bytes: How large their records may be; None is the broker's default.
            configs: Their configuration besides.

        Raises:
            ApiError: The broker refuses one.
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
        """Return what the app may do to topics, as far as the broker tells."""
        return await self._driver.run(rights.rights_on_topics(self._driver.engine.state, topics))

    async def rights_on_group(self, group: str) -> rights.Rights:
        """Return what the app may do to a group, as far as the broker tells."""
        return await self._driver.run(rights.rights_on_group(self._driver.engine.state, group))

    # Positions

    async def committed(
        self, group: str, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return what a group has committed, when no transaction is about to change it."""
        flow = offsets.committed_offsets(self._driver.engine.state, group, partitions)
        return {name: at.offset for name, at in (await self._driver.run(flow)).items()}

    async def settled(self, topics: Collection[str]) -> bool:
        """Whether everything in these topics can be read by those who read what is committed."""
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
        """Return where partitions end, with what open transactions have written."""
        state = self._driver.engine.state
        flow = list_offsets(state, dict.fromkeys(partitions, LATEST), READ_UNCOMMITTED)
        return {name: at.offset for name, at in (await self._driver.run(flow)).items()}

    def reader(self) -> Consumer:
        """Return a new consumer without a group, of what is committed."""
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
            _log.warning("records were in flight to their topics when the app ended: %s", error)
        finally:
            await self._driver.close()


def producer_properties(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of an app's producers.

    Args:
        given: Those of `App(producer={...})`, which win over the defaults.

    Raises:
        ConfigError: One is unknown, or not the program's to choose.
    """
    properties = {name.replace(".", "_"): value for name, value in given.items()}
    for name, reason in _NOT_TO_CHOOSE.items():
        if name in properties:
            raise ConfigError(f"producer={{{name!r}: ...}}: {reason}")
    config = parse_config(ProducerConfig, properties)
    if config.acks == 0:
        raise ConfigError(
            "producer={'acks': 0}: a record counts as handled when its results are safe"
        )
    return {"max_request_size": LARGEST_RECORD_BYTES, **properties}
