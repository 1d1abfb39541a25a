"""The sink's connections to a cluster, and the checks of topics before a job starts."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from headrace.clients.blocking import BlockingClient, NewTopic
from headrace.clients.consumer.group_metadata import GroupMetadata
from headrace.clients.drivers import Target
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.errors import ApiError, ConfigError, ErrorCode, HeadraceError
from headrace.spark.client.cache import ClientCache
from headrace.spark.client.contact import FIRST_CONTACT_S, reach, repeat_until
from headrace.spark.client.settings import common_properties
from headrace.spark.options.reader import ClientOptions
from headrace.spark.options.sink import SinkOptions, producer_config, producer_properties
from headrace.spark.sink.claims import claim_rows, kept_claim
from headrace.spark.sink.producer import RowProducer, TaskTransaction, end_transactions
from headrace.types import TopicPartition

_EXISTS: Final = frozenset({ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE})
_ABSENT: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})


class Cluster:
    """The cluster of a write: producers, and the committed markers and claims."""

    def __init__(
        self,
        client: BlockingClient,
        new_producer: Callable[[str | None], RowProducer],
        marker_topic: str,
        claim_topic: str,
    ) -> None:
        """Use a client and producers.

        Args:
            client: Reads markers and claims, and ends transactions.
            new_producer: Opens a producer, with a transactional id or without.
            marker_topic: The topic under whose name markers are committed.
            claim_topic: The compacted topic with the records of claims.
        """
        self.client = client
        self.new_producer = new_producer
        self._marker = TopicPartition(marker_topic, 0)
        self._claims = claim_topic

    def marker(self, group: str) -> OffsetAndMetadata | None:
        """Return the marker of a group, after waiting for pending commits; None if there is none."""
        return self.client.committed_offsets(group, [self._marker]).get(self._marker)

    def mark(self, producer: RowProducer, group: str, marker: OffsetAndMetadata) -> None:
        """Add the commit of a group's marker to a producer's transaction."""
        nobody = GroupMetadata(group, -1, "", None)
        producer.send_offsets_to_transaction({self._marker: marker}, nobody)

    def kept_claim(self, name: str) -> OffsetAndMetadata | None:
        """Return a writer's claim from the compacted topic, which has it even if the offset has expired."""
        return kept_claim(self.client, self._claims, name)

    def claim(self, producer: RowProducer, name: str, claim: OffsetAndMetadata) -> None:
        """Add a claim to a producer's transaction, as an offset and as a record."""
        self.mark(producer, name, claim)
        producer.send_rows(claim_rows(self._claims, name, claim))

    def end(
        self, transactions: Sequence[TaskTransaction], *, committed: bool
    ) -> dict[TaskTransaction, HeadraceError]:
        """End transactions in parallel. Return the error of each transaction that could not be ended."""
        return end_transactions(self.client, transactions, committed=committed)


def open_cluster(options: SinkOptions, target: Target | None = None) -> Cluster:
    """Return the cluster of a write.

    All tasks of a Python worker share the client. Each task opens a producer of its own.

    Args:
        options: The options of the write.
        target: Replaces the address in the options, for example by a `Broker` in this process.
    """
    where = target or options.client.bootstrap
    properties = producer_properties(options.client)

    def new_producer(transactional_id: str | None) -> RowProducer:
        return RowProducer(
            where,
            transactional_id=transactional_id,
            serde="bytes",
            key_serde="bytes",
            recreate_topics=False,
            **properties,
        )

    client = _new_client(options.client, where) if target else clients.get(options.client)
    return Cluster(client, new_producer, options.marker_topic, options.claim_topic)


def _new_client(options: ClientOptions, where: Target) -> BlockingClient:
    return BlockingClient(where, **common_properties(producer_config(options)))


clients: Final = ClientCache(lambda options: _new_client(options, options.bootstrap))
"""The clients of writes, one for each set of options."""

_checked: set[tuple[int, SinkOptions]] = set()


def check_cluster(options: SinkOptions, within_s: float = FIRST_CONTACT_S) -> None:
    """Check once in each process, before a job starts, that the topics of a write exist.

    Args:
        options: The options of the write.
        within_s: Seconds for which refused connections are retried.

    Raises:
        ConfigError: A topic is missing and the broker does not create it, or the client is not authorized for it.
        TransportError: No broker answers.
    """
    key = (os.getpid(), options)
    if key in _checked:
        return
    client = open_cluster(options).client
    reach(client, within_s)
    if options.topic is not None:
        _check_topic(client, options.topic)
    if options.exactly_once:
        _make_topic(client, options.marker_topic, "markerTopic")
        _make_topic(client, options.claim_topic, "claimTopic", {"cleanup.policy": "compact"})
    _checked.add(key)


def _check_topic(client: BlockingClient, topic: str) -> None:
    def ask() -> ErrorCode:
        try:
            return client.metadata([topic], auto_create=True).topics[topic].error
        except ApiError as refusal:
            return refusal.code

    error = repeat_until(ask, lambda found: found not in _ABSENT)
    if error in _EXISTS:
        return
    text = f"topic {topic!r} cannot be written: {error.description}"
    if error in _ABSENT:
        text = f"topic {topic!r} does not exist, and the broker does not create it: create it, or set the option topic"
    raise ConfigError(text)


def _make_topic(
    client: BlockingClient, topic: str, option: str, configs: Mapping[str, str] | None = None
) -> None:
    error: HeadraceError | None = None
    if client.metadata([topic]).topics[topic].error not in _EXISTS:
        error = client.create_topics([NewTopic(topic, 1, -1, configs=configs or {})])[topic]
    if isinstance(error, ApiError) and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
        how = "".join(f" and {name}={value}" for name, value in (configs or {}).items())
        raise ConfigError(
            f"the topic {topic!r}, which exactly-once writes need, cannot be created: "
            f"{error}. Create it with one partition{how}, name another by the option "
            f"{option}, or set delivery=at_least_once"
        )
