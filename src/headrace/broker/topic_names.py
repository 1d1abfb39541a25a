"""The rules for topic names. Names become directory names, so no other name may pass.

The rules are Kafka's (`org.apache.kafka.common.internals.Topic`).
"""

from __future__ import annotations

import re
from typing import Final

from headrace.errors import InvalidTopicError
from headrace.types import TopicPartition

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTIONS_TOPIC: Final = "__transaction_state"
INTERNAL_TOPICS: Final = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC})
NAME_LIMIT: Final = 249
DELETED_NAMES_LIMIT: Final = 1000
_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Refuse a name that a topic cannot have.

    Raises:
        InvalidTopicError: The message has the reason.
    """
    if not name:
        raise InvalidTopicError("the topic name is empty")
    if name in {".", ".."}:
        raise InvalidTopicError(f"the topic name cannot be {name!r}")
    if len(name) > NAME_LIMIT:
        raise InvalidTopicError(f"the topic name is longer than {NAME_LIMIT} characters")
    if _LEGAL.fullmatch(name) is None:
        raise InvalidTopicError(
            f"the topic name {name!r} has a character other than a-z, A-Z, 0-9, '.', '_' and '-'"
        )


def schedule_of(topic_partition: TopicPartition) -> TopicPartition:
    """Return the directory name of a partition's schedule. It is not a valid topic name."""
    return TopicPartition(f"~{topic_partition.topic}", topic_partition.partition)


def is_schedule(topic_partition: TopicPartition) -> bool:
    """Return whether this is the name of a schedule."""
    return topic_partition.topic.startswith("~")


def topic_of(topic_partition: TopicPartition) -> str:
    """Return the topic of a partition, or of a schedule."""
    return topic_partition.topic.removeprefix("~")


def metric_name(name: str) -> str:
    """Return the name in Kafka's metrics. Two topics must not have the same one."""
    return name.replace(".", "_")


class DeletedNames:
    """The names of deleted topics, until a client asks for a topic of that name.

    A name is remembered without a time limit, but not over a restart. If there are too many, the oldest is forgotten.
    """

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, name: str) -> None:
        """Remember that a topic was deleted."""
        self._names.pop(name, None)
        self._names[name] = None
        if len(self._names) > DELETED_NAMES_LIMIT:
            del self._names[next(iter(self._names))]

    def forget(self, name: str) -> bool:
        """Forget a name. Return whether it was remembered."""
        return name in self._names and self._names.pop(name) is None
