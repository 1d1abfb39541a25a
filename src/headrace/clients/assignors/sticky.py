"""The assignors that keep earlier assignments: equal, and Kafka's sticky and cooperative sticky."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Literal

from headrace.clients.assignors.balance import balance
from headrace.clients.assignors.base import (
    Assignment,
    ExistingPartitions,
    MemberSubscription,
)
from headrace.types import TopicPartition


class EqualAssignor:
    """Members get equal numbers of partitions over all topics, plus or minus one. Only surplus partitions move."""

    name = "equal"
    protocol: Literal["eager", "cooperative"] = "cooperative"

    def assign(
        self, members: Mapping[str, MemberSubscription], partition_counts: Mapping[str, int]
    ) -> Assignment:
        """Balance the partitions that the members own."""
        claims = {
            member: (subscription.generation, subscription.owned)
            for member, subscription in members.items()
        }
        return balance(members, partition_counts, claims)


class CooperativeStickyAssignor(EqualAssignor):
    """Balances as `equal` does, under the name of the assignor of Kafka's own clients."""

    name = "cooperative-sticky"

    def __init__(self) -> None:
        self._generation = -1

    def subscription_user_data(self) -> bytes:
        """Return the generation as user data, as Kafka's clients do. Older subscriptions have no field for it."""
        return struct.pack(">i", self._generation)

    def on_assignment(self, _partitions: list[TopicPartition], generation: int) -> None:
        """Store the generation of the assignment."""
        self._generation = generation

    def assign(
        self, members: Mapping[str, MemberSubscription], partition_counts: Mapping[str, int]
    ) -> Assignment:
        """Balance the partitions that the members own."""
        claims = {}
        for member, subscription in members.items():
            generation = subscription.generation
            if generation < 0 and len(subscription.user_data) == 4:
                (generation,) = struct.unpack(">i", subscription.user_data)
            claims[member] = generation, subscription.owned
        return balance(members, partition_counts, claims)


class StickyAssignor:
    """Balances, and assigns the revoked partitions to their earlier owners again."""

    name = "sticky"
    protocol: Literal["eager", "cooperative"] = "eager"

    def __init__(self) -> None:
        self._partitions: list[TopicPartition] = []
        self._generation = -1

    def subscription_user_data(self) -> bytes | None:
        """Return the earlier partitions of the member as user data, as Kafka's clients do."""
        return encode_history(self._partitions, self._generation) if self._partitions else None

    def on_assignment(self, partitions: list[TopicPartition], generation: int) -> None:
        """Store the assignment of the member for the next subscription."""
        self._partitions = partitions
        self._generation = generation

    def assign(
        self, members: Mapping[str, MemberSubscription], partition_counts: Mapping[str, int]
    ) -> Assignment:
        """Balance the partitions that the members had before."""
        existing = ExistingPartitions(partition_counts)
        claims = {
            member: decode_history(subscription.user_data, existing)
            for member, subscription in members.items()
        }
        return balance(members, partition_counts, claims)


def encode_history(partitions: list[TopicPartition], generation: int) -> bytes:
    """Encode the earlier partitions of a member as Kafka's StickyAssignorUserData, version 1."""
    topics: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        topics.setdefault(topic, []).append(number)
    out = bytearray(struct.pack(">i", len(topics)))
    for topic, numbers in topics.items():
        name = topic.encode()
        out += struct.pack(">h", len(name)) + name
        out += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return bytes(out + struct.pack(">i", generation))


def decode_history(
    data: bytes, existing: ExistingPartitions
) -> tuple[int, tuple[TopicPartition, ...]]:
    """Return the generation and the earlier partitions of a member; (-1, ()) if the bytes are of another kind.

    kafka-python writes a version of two bytes before the bytes that Kafka's own clients write.

    Args:
        data: The user data of the member's subscription.
        existing: The existing partitions. Others are left out.
    """
    for start in (0, 2):
        try:
            generation, partitions = _decode_history(data[start:], existing)
        except (struct.error, UnicodeDecodeError):
            continue
        return generation, tuple(partitions)
    return -1, ()


def _decode_history(
    data: bytes, existing: ExistingPartitions
) -> tuple[int, dict[TopicPartition, None]]:
    (count,) = struct.unpack_from(">i", data)
    position = 4
    partitions: dict[TopicPartition, None] = {}
    for _ in range(count):
        (size,) = struct.unpack_from(">h", data, position)
        topic = bytes(data[position + 2 : position + 2 + size]).decode()
        position += 2 + size
        (length,) = struct.unpack_from(">i", data, position)
        if size < 0 or not 0 <= length <= len(data):
            raise struct.error("a length is out of range")
        numbers = struct.unpack_from(f">{length}i", data, position + 4)
        position += 4 + 4 * length
        partitions.update(dict.fromkeys(existing.of(topic, numbers)))
    if position == len(data):  # version 0 has no generation
        return -1, partitions
    (generation,) = struct.unpack(">i", data[position:])
    return generation, partitions
