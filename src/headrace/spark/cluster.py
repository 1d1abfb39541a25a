"""The only place of the Spark source that knows of a client: three questions to a cluster, and connections kept."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import fields
from typing import Any, Final, Protocol
from uuid import UUID

from headrace.clients.blocking import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    BlockingClient,
    FetchedPartition,
    FetchPosition,
)
from headrace.clients.config import ClientConfig, ConsumerConfig, parse_config
from headrace.errors import ApiError, ConfigError, ErrorCode
from headrace.spark.options.reader import ClientOptions
from headrace.spark.source.offsets import TopicDescription
from headrace.types import TopicPartition

FETCH_BYTES: Final = 8 << 20
"""Default of `kafka.max.partition.fetch.bytes` here: a task reads one partition, and mostly as much as there is."""
MAX_CLIENTS: Final = 16
_ABSENT: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})
_NOT_READY: Final = frozenset({ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE})


class SourceClient(Protocol):
    """What the source asks of a cluster."""

    def topology(self, names: Sequence[str] | None) -> dict[str, TopicDescription]:
        """Return the topics of those names that exist; None is all but internal ones."""

    def offsets(
        self, partitions: Collection[TopicPartition], position: int
    ) -> dict[TopicPartition, int]:
        """Return the first (EARLIEST) or the next (LATEST) offset of each partition."""

    def fetch(self, topic_partition: TopicPartition, offset: int) -> FetchedPartition:
        """Return raw batches from `offset` on, or after a short wait none; errors are told, not raised."""


class ClusterClient:
    """A `SourceClient` over Headrace's own blocking client."""

    def __init__(self, options: ClientOptions) -> None:
        """Prepare a client; nothing is connected before the first question.

        Raises:
            ConfigError: A `kafka.*` option is unknown or malformed.
        """
        self._config = consumer_config(options)
        self._isolation = (
            READ_COMMITTED if self._config.isolation_level == "read_committed" else READ_UNCOMMITTED
        )
        self._client = BlockingClient(options.bootstrap, **_common(self._config))

    def topology(self, names: Sequence[str] | None) -> dict[str, TopicDescription]:
        """See `SourceClient`."""
        found: dict[str, TopicDescription] = {}
        for name, topic in self._client.metadata(names).topics.items():
            if topic.error in _ABSENT or (names is None and topic.is_internal):
                continue
            if topic.error not in _NOT_READY:
                raise ApiError.for_code(topic.error, f"topic {name}")
            topic_id = UUID(bytes=topic.topic_id)
            found[name] = TopicDescription(
                str(topic_id) if topic_id.int else "", tuple(topic.partitions)
            )
        return found

    def offsets(
        self, partitions: Collection[TopicPartition], position: int
    ) -> dict[TopicPartition, int]:
        """See `SourceClient`."""
        if not partitions:
            return {}
        listed = self._client.list_offsets(dict.fromkeys(partitions, position), self._isolation)
        return {each: found.offset for each, found in listed.items()}

    def fetch(self, topic_partition: TopicPartition, offset: int) -> FetchedPartition:
        """See `SourceClient`."""
        max_bytes = self._config.max_partition_fetch_bytes
        fetched = self._client.fetch(
            {topic_partition: FetchPosition(offset, max_bytes=max_bytes)},
            max_wait_ms=self._config.fetch_max_wait_ms,
            min_bytes=self._config.fetch_min_bytes,
            max_bytes=max(max_bytes, self._config.fetch_max_bytes),
            isolation_level=self._isolation,
        )
        return fetched[topic_partition]

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def consumer_config(options: ClientOptions) -> ConsumerConfig:
    """Return the configuration that the `kafka.*` options of a read make.

    Raises:
        ConfigError: One of them is unknown or malformed.
    """
    try:
        return parse_config(
            ConsumerConfig,
            dict(options.properties),
            bootstrap_servers=options.bootstrap,
            client_id="headrace-spark",
            max_partition_fetch_bytes=FETCH_BYTES,
        )
    except ConfigError as error:
        raise ConfigError(f"kafka.* options: {error}") from None


def _common(config: ConsumerConfig) -> dict[str, Any]:
    """Return what of a consumer's configuration every client has, and was given."""
    given = {field.name: getattr(config, field.name) for field in fields(ClientConfig)}
    defaults = {field.name: field.default for field in fields(ClientConfig)}
    return {
        name: value
        for name, value in given.items()
        if name != "bootstrap_servers" and value != defaults[name]
    }


_clients: dict[tuple[int, ClientOptions], ClusterClient] = {}


def shared_client(options: ClientOptions) -> ClusterClient:
    """Return this process's client for those options.

    Spark's Python workers live longer than tasks and are not tied to a partition; the connections stay with the
    process. The process id is part of the key because workers are forked: a socket must not be used by two.
    """
    key = (os.getpid(), options)
    client = _clients.get(key)
    if client is None:
        while len(_clients) >= MAX_CLIENTS:
            _clients.pop(next(iter(_clients))).close()
        client = _clients[key] = ClusterClient(options)
    return client
