"""ListOffsets: the first, last or timestamped offset of each partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.flows.routing import Answer, ask_leaders, by_topic
from headrace.protocol.codec import Message
from headrace.protocol.messages.list_offsets import (
    HeadraceDelayed,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from headrace.types import TopicPartition

EARLIEST: Final = -2
"""The log start offset."""
LATEST: Final = -1
"""The high watermark; the last stable offset under read_committed."""
MAX_TIMESTAMP: Final = -3
"""The record with the greatest timestamp."""

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


@dataclass(frozen=True, slots=True)
class Delayed:
    """The delayed records that wait for their time (docs/guides/beyond-kafka.md)."""

    pending: int
    """How many; -1 if the broker cannot read its schedule."""
    earliest_due_ms: int
    """When the first is due, in milliseconds since 1970; -1 if none waits."""


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """An offset found by a question for a time or a place."""

    offset: int
    """The offset; -1 if no record has the timestamp or a later one."""
    timestamp: int
    """The record's timestamp in milliseconds; -1 for EARLIEST and LATEST."""
    leader_epoch: int
    delayed: Delayed | None = None
    """The scheduled records of the partition, if they were requested and the topic has a schedule; otherwise None."""


def list_offsets(
    state: ClientState,
    targets: Mapping[TopicPartition, int],
    isolation_level: int = READ_UNCOMMITTED,
    *,
    delayed: bool = False,
) -> Flow[dict[TopicPartition, ListedOffset]]:
    """Find an offset in each partition.

    Args:
        state: The client's state.
        targets: Partition to EARLIEST, LATEST, MAX_TIMESTAMP or a timestamp in milliseconds: the first record that
            is not older.
        isolation_level: READ_COMMITTED makes LATEST the last stable offset.
        delayed: Ask, too, how many delayed records wait; only Headrace's brokers know.
    """

    def build(part: Mapping[TopicPartition, int]) -> Message:
        return ListOffsetsRequest(
            replica_id=-1,
            isolation_level=isolation_level,
            headrace_delayed=delayed,
            topics=[
                ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsPartition(
                            partition_index=number,
                            timestamp=timestamp,
                            current_leader_epoch=state.metadata.leader_epoch(
                                TopicPartition(name, number)
                            ),
                        )
                        for number, timestamp in partitions.items()
                    ],
                )
                for name, partitions in by_topic(part).items()
            ],
        )

    return cast(
        "dict[TopicPartition, ListedOffset]", (yield from ask_leaders(state, targets, build, _read))
    )


def _read(response: Message) -> list[Answer]:
    assert isinstance(response, ListOffsetsResponse)
    return [
        Answer(
            TopicPartition(topic.name, partition.partition_index),
            partition.error_code,
            ListedOffset(
                partition.offset,
                partition.timestamp,
                partition.leader_epoch,
                _delayed(partition.headrace_delayed),
            ),
        )
        for topic in response.topics
        for partition in topic.partitions
    ]


def _delayed(found: HeadraceDelayed | None) -> Delayed | None:
    return None if found is None else Delayed(found.pending, found.earliest_due_ms)
