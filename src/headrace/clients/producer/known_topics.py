"""The topics that a producer writes to: each one's partitions, partitioner and serdes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Final

from headrace.clients.engine import Engine
from headrace.clients.flows import list_offsets, metadata
from headrace.clients.flows.cluster import NO_LEADER, TopicSettings
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.topic_settings import PARTITIONER, hidden_settings, topic_settings
from headrace.clients.partitioners import Partitioner, Unusable, partitioner_factory
from headrace.clients.producer.topic import ProducerTopic
from headrace.errors import ConfigError, HeadraceError
from headrace.registers import Named
from headrace.serdes.serde import AnySerde, resolve_serde
from headrace.types import TopicPartition

DEFAULT_PARTITIONER: Final = Named("key_hash")


class KnownTopics:
    """The topics that one producer has looked up; `ProducerCore` finds them in `by_name` for each record."""

    def __init__(
        self,
        engine: Engine,
        *,
        choose: Callable[[int], int],
        partitioner: str | type[Any] | Partitioner | None,
        serde: AnySerde | None,
        key_serde: AnySerde | None,
        share: Callable[[str, Named, Partitioner], Partitioner] | None,
        warn: Callable[[str], object],
    ) -> None:
        """Prepare an empty collection; the arguments are those of `ProducerCore`.

        Raises:
            ConfigError: The partitioner or the serde is unknown.
        """
        self.by_name: dict[str, ProducerTopic] = {}
        self._engine = engine
        self._choose = choose
        self._partitioner = None if partitioner is None else partitioner_factory(partitioner)
        self._has_begun = not (partitioner is None or isinstance(partitioner, str | type | Named))
        """Whether the program gave a partitioner object. It serves all topics, and `begin` is not called on it."""
        self._share = share
        self._warn = warn
        self._serde = None if serde is None else resolve_serde(serde)
        self._key_serde = None if key_serde is None else resolve_serde(key_serde)

    def learn(self, topic: str) -> Flow[None]:
        """Look up a topic's partitions, partitioner and serdes.

        Raises:
            ApiError: The topic does not exist, or the client may not describe it.
            ConfigError: The topic names a serde that is unknown in this process.
            TransportError: No broker answered in time.
        """
        yield from metadata.ensure_named(self._engine.state, topic, auto_create=True)
        settings = yield from topic_settings(self._engine.state, topic)
        self._warn_if_hidden(topic, settings)
        named = settings.partitioner or DEFAULT_PARTITIONER
        partitioner = self._new_partitioner(topic, named)
        if self._share is not None and self._partitioner is None:
            partitioner = self._share(topic, named, partitioner)
        elif not self._has_begun and hasattr(partitioner, "begin"):
            partitioner.begin((yield from self._count_records(topic)))
        known = ProducerTopic(
            topic,
            partitioner,
            self._key_serde or resolve_serde(settings.key_serde or "bytes"),
            self._serde or resolve_serde(settings.serde or "bytes"),
        )
        self.by_name.setdefault(topic, known)
        self.update_partitions([topic])

    def _new_partitioner(self, topic: str, named: Named) -> Partitioner:
        if self._partitioner is not None:
            return self._partitioner(self._choose)
        try:
            return partitioner_factory(named)(self._choose)
        except ConfigError as error:
            reason = (
                f"topic {topic!r} names its partitioner in {PARTITIONER}: {error}. Install or register it, pass "
                "another partitioner to the producer (partitioner=...), or name a partition for each record; on the "
                "command line, --partitioner NAME or MODULE:CLASS, or --partition N"
            )
            return Unusable(reason, partial(self.forget, topic))

    def _warn_if_hidden(self, topic: str, settings: TopicSettings) -> None:
        given = {
            "partitioner": self._partitioner,
            "serde": self._serde,
            "key_serde": self._key_serde,
        }
        missing = [name for name, value in given.items() if value is None]
        if missing and not settings.may_read:
            self._warn(hidden_settings(topic, "producer", ", ".join(missing)))

    def _count_records(self, topic: str) -> Flow[int]:
        """Return the number of records that a topic has had; a random number if the brokers do not answer."""
        partitions = self._engine.state.metadata.partitions(topic)
        wanted = dict.fromkeys(partitions, list_offsets.LATEST)
        try:
            found = yield from list_offsets.list_offsets(self._engine.state, wanted)
        except HeadraceError:
            return self._choose(len(partitions) or 1)
        return sum(listed.offset for listed in found.values())

    def update_partitions(self, topics: Collection[str]) -> None:
        """Update the partitions of topics from the metadata. Forget topics that were deleted and created again."""
        known = self._engine.state.metadata
        for name in topics:
            topic = self.by_name.get(name)
            partitions = known.partitions(name)
            if topic is not None and topic.is_recreated(known.topic_id(name)):
                self.forget(name)
                continue
            if topic is not None and partitions:
                topic.count = len(partitions)
                led = [each.partition for each in partitions if known.leader(each) != NO_LEADER]
                topic.available = led or [each.partition for each in partitions]

    def batch_closed(self, topic_partition: TopicPartition) -> None:
        """Report to the topic's partitioner that a batch accepts no more records."""
        topic = self.by_name.get(topic_partition.topic)
        if topic is not None and topic.batch_closed is not None:
            topic.batch_closed(topic_partition.partition, topic.available)

    def forget(self, topic: str) -> None:
        """Forget a topic, so that the next record for it looks up its serdes and its partitioner again."""
        self.by_name.pop(topic, None)
        self._engine.state.topic_settings.pop(topic, None)
