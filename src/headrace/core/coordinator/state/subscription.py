"""Subscriptions and assignments of classic consumers, which are opaque everywhere else in the coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from headrace.errors import HeadraceError
from headrace.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
)
from headrace.types import FileRange

LAST_VERSION: Final = 3
_VERSION_BYTES: Final = 2

NamedPartitions = frozenset[tuple[str, int]]
"""Partitions by the names of their topics."""


class Protocol(NamedTuple):
    """One protocol (assignor) that a classic member supports, with its metadata."""

    name: str
    metadata: bytes


def size_of(protocols: Iterable[Protocol]) -> int:
    """Return the size in bytes of the names and metadata of protocols."""
    return sum(len(protocol.name) + len(protocol.metadata) for protocol in protocols)


class ClassicSubscription(NamedTuple):
    """The subscription that a consumer sends to the leader of its group."""

    topics: tuple[str, ...]
    """The names of the subscribed topics, sorted."""
    owned: NamedPartitions
    """Partitions that the member still owns while it rebalances. Empty for members of the eager protocol."""
    generation: int
    """The generation in which the member received `owned`; -1 if the subscription has no such field."""
    rack_id: str | None


class GroupSubscription(NamedTuple):
    """The union of the subscriptions of all members of a generation."""

    topics: frozenset[str]
    owned: NamedPartitions
    """The partitions that members still own. A leader that moves partitions assigns these to no member at first."""


def read_subscription(metadata: bytes) -> ClassicSubscription | None:
    """Return the subscription in a member's metadata, or None if it cannot be decoded."""
    try:
        version = min(version_of(metadata), LAST_VERSION)
        said, _ = ConsumerProtocolSubscription.decode(memoryview(metadata), _VERSION_BYTES, version)
    except (HeadraceError, ValueError, IndexError):
        return None
    owned = frozenset((part.topic, i) for part in said.owned_partitions for i in part.partitions)
    return ClassicSubscription(
        tuple(sorted(set(said.topics))), owned, said.generation_id, said.rack_id
    )


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """Return the topics of a ConsumerProtocolSubscription, or None if it cannot be read.

    Later versions only append fields, so every version is read as version 0.
    """
    try:
        subscription, _ = ConsumerProtocolSubscription.decode(
            memoryview(metadata), _VERSION_BYTES, 0
        )
    except (HeadraceError, ValueError, IndexError):
        return None
    return frozenset(subscription.topics)


def read_assignment(assignment: bytes) -> NamedPartitions | None:
    """Return the partitions of a ConsumerProtocolAssignment, or None if it cannot be decoded."""
    if not assignment:
        return frozenset()
    try:
        given, _ = ConsumerProtocolAssignment.decode(memoryview(assignment), _VERSION_BYTES, 0)
    except (HeadraceError, ValueError, IndexError):
        return None
    return frozenset((part.topic, i) for part in given.assigned_partitions for i in part.partitions)


def encode_assignment(version: int, partitions: Mapping[str, Iterable[int]]) -> bytes:
    """Return the ConsumerProtocolAssignment of partitions, by topic name."""
    version = min(version, LAST_VERSION)
    message = ConsumerProtocolAssignment(
        assigned_partitions=[
            ConsumerProtocolAssignmentTopicPartition(topic=topic, partitions=list(indexes))
            for topic, indexes in partitions.items()
        ]
    )
    payloads: Any = message.encode(version, version.to_bytes(_VERSION_BYTES, "big"))
    return b"".join(payload for payload in payloads if not isinstance(payload, FileRange))


def version_of(data: bytes) -> int:
    """Return the version that data begins with.

    Raises:
        ValueError: The data has no valid version.
    """
    version = int.from_bytes(data[:_VERSION_BYTES], "big", signed=True)
    if version < 0 or len(data) < _VERSION_BYTES:
        raise ValueError(f"version {version} of a consumer's protocol")
    return version
