"""A topic as it exists in the cluster: its settings, and the replicas of its partitions."""

from __future__ import annotations

import base64
from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from headrace.broker.topic_names import INTERNAL_TOPICS
from headrace.config.broker import BrokerConfig
from headrace.config.topic import TopicConfig
from headrace.config.topic_parsing import parse_topic_config
from headrace.core.coordinator.runtime import Reply
from headrace.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    InvalidConfigError,
)
from headrace.ports import Entropy

_ID_ATTEMPTS: Final = 100


class Topic:
    """A topic as it exists in the cluster. `LocalPartitions` has the partitions that this broker serves."""

    __slots__ = (
        "config",
        "deletion",
        "directory_ids",
        "is_internal",
        "name",
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
        self.replicas = replicas
        """The brokers of each partition. The first one is the preferred leader."""
        self.directory_ids = directory_ids
        """The id of the log directory of each partition; "" for the first log directory."""
        self.deletion: TopicDeletion | None = None
        """The deletion of the topic on this broker; None while the broker has the topic."""

    @property
    def partitions_count(self) -> int:
        """The number of partitions."""
        return len(self.replicas)


class TopicDeletion:
    """The deletion of a topic on this broker."""

    __slots__ = ("error", "forgotten", "is_removed")

    def __init__(self, forgotten: Reply[Any]) -> None:
        self.forgotten = forgotten
        """A reply that is ready when the offsets that groups have committed for the topic are durably deleted."""
        self.error: ApiError | None = None
        """The error because of which files may be left; None if there is none."""
        self.is_removed = False
        """Whether all files are removed."""


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
