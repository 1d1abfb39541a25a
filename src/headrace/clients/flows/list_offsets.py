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
class ScheduledCount:
    """The scheduled records of a partition (docs/guides/beyond-kafka.md)."""

    pending: int
    """The number of scheduled records; -1 if the broker cannot read its schedule."""
    earliest_due_ms: int
    """The earliest delivery time in milliseconds since 1970; -1 if there is no scheduled record."""


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """The result of ListOffsets for one partition."""

    offset: int
    """The offset; -1 if no record has the timestamp or a later one."""
    timestamp: int
    """The record's timestamp in milliseconds; -1 for EARLIEST and LATEST."""
    leader_epoch: int
    delayed: ScheduledCount | None = None
    """The scheduled records of the partition, if they were requested and the topic has a schedule; otherwise None."""


def list_offsets(
    state: ClientState,
    targets: Mapping[TopicPartition, int],
    isolation_level: int = READ_UNCOMMITTED,
    *,
    delayed: bool = False,
) -> Flow[dict[TopicPartition, ListedOffset]]:
    """Request one offset in each partition.

    Args:
        state: The client's state.
        targets: EARLIEST, LATEST, MAX_TIMESTAMP, or a timestamp in milliseconds, by partition. A timestamp finds the
            first record that is not older.
        isolation_level: With READ_COMMITTED, LATEST is the last stable offset.
        delayed: Whether to request the number of scheduled records, which only Headrace's brokers return.
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


def _delayed(found: HeadraceDelayed | None) -> ScheduledCount | None:
    return None if found is None else ScheduledCount(found.pending, found.earliest_due_ms)
