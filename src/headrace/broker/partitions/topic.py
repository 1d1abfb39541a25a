"""A topic: its settings, and its partitions."""

from __future__ import annotations

import base64
from collections.abc import Callable, Container, Mapping
from typing import Final

from headrace.broker.replication.partition import Partition
from headrace.broker.topic_names import INTERNAL_TOPICS
from headrace.config.broker import BrokerConfig
from headrace.config.topic import TopicConfig
from headrace.config.topic_parsing import parse_topic_config
from headrace.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    InvalidConfigError,
    StorageUnavailableError,
    UnknownTopicOrPartitionError,
)
from headrace.ports import Entropy

_ID_ATTEMPTS: Final = 100


class Topic:
    """A topic with its partitions."""

    __slots__ = (
        "config",
        "directory_ids",
        "is_internal",
        "name",
        "partitions",
        "replicas",
        "settings",
        "topic_id",
    )

    def __init__(
        self,
        name: str,
        topic_id: bytes,
        settings: Mapping[str, str],
        config: TopicConfig,
        replicas: list[tuple[int, ...]],
        *,
        directory_ids: list[str],
    ) -> None:
        self.name = name
        self.topic_id = topic_id
        self.settings = dict(settings)
        """The settings of the topic itself as text, by Kafka's names."""
        self.config = config
        self.is_internal = name in INTERNAL_TOPICS
        self.partitions: list[Partition | None] = []
        """The partitions by number. None if a partition cannot be served: its data is damaged, or its log directory is
        out of service."""
        self.replicas = replicas
        """The brokers of each partition. The first one is the preferred leader."""
        self.directory_ids = directory_ids
        """The id of the log directory of each partition; "" for the first log directory."""

    def partition(self, index: int) -> Partition:
        """Return one partition.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION, or KAFKA_STORAGE_ERROR when it cannot be served.
        """
        if not 0 <= index < len(self.partitions):
            raise UnknownTopicOrPartitionError(f"{self.name} has no partition {index}")
        partition = self.partitions[index]
        if partition is None:
            raise StorageUnavailableError(
                f"{self.name}-{index} is not served: its data is damaged, its log directory is out of service, or its "
                "files cannot be opened now; the broker's log says which"
            )
        return partition


CheckConfig = Callable[[TopicConfig], None]
"""Raises ConfigError for a configuration that clients may not set."""


def accept_any(_config: TopicConfig) -> None:
    """Accept every configuration of a topic."""


def acceptable_config(
    settings: Mapping[str, str | None], broker_config: BrokerConfig, check: CheckConfig
) -> TopicConfig:
    """Return the configuration of a topic that has these settings of its own.

    Raises:
        InvalidConfigError: A name is unknown or a value not acceptable.
    """
    try:
        config = parse_topic_config(settings, broker_config)
        check(config)
    except ConfigError as error:
        raise InvalidConfigError(str(error)) from error
    return config


def new_topic_id(entropy: Entropy, taken: Container[bytes]) -> bytes:
    """Return an id that no topic has.

    Kafka does not use ids whose text begins with a dash, because tools would read them as options. It reserves the
    smallest ids.

    Raises:
        ApiError: The source of random numbers gives no usable id.
    """
    for _ in range(_ID_ATTEMPTS):
        topic_id = entropy.uuid()
        dashed = base64.urlsafe_b64encode(topic_id).startswith(b"-")
        if not dashed and int.from_bytes(topic_id) > 100 and topic_id not in taken:
            return topic_id
    raise ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, "no topic id could be found")
