"""OffsetForLeaderEpoch: the end of an epoch in the leader's log. It shows truncated records (KIP-320)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.flows.routing import Answer, ask_leaders, by_topic
from headrace.protocol.codec import Message
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.types import TopicPartition


@dataclass(frozen=True, slots=True)
class EpochEnd:
    """The end of an epoch in the leader's log."""

    leader_epoch: int
    """The newest epoch in the leader's log that is not newer than the requested one; -1 if there is none."""
    offset: int
    """The offset after the last record of the epoch; -1 if there is no such epoch."""


def epoch_ends(
    state: ClientState, epochs: Mapping[TopicPartition, int]
) -> Flow[dict[TopicPartition, EpochEnd]]:
    """Request the end of an epoch in each partition.

    Args:
        state: The client's state.
        epochs: The epoch of the last read record, by partition.
    """

    def build(part: Mapping[TopicPartition, int]) -> Message:
        return OffsetForLeaderEpochRequest(
            replica_id=-1,
            topics=[
                OffsetForLeaderTopic(
                    topic=name,
                    partitions=[
                        OffsetForLeaderPartition(
                            partition=number,
                            current_leader_epoch=state.metadata.leader_epoch(
                                TopicPartition(name, number)
                            ),
                            leader_epoch=epoch,
                        )
                        for number, epoch in partitions.items()
                    ],
                )
                for name, partitions in by_topic(part).items()
            ],
        )

    return cast(
        "dict[TopicPartition, EpochEnd]", (yield from ask_leaders(state, epochs, build, _read))
    )


def _read(response: Message) -> list[Answer]:
    assert isinstance(response, OffsetForLeaderEpochResponse)
    return [
        Answer(
            TopicPartition(topic.topic, partition.partition),
            partition.error_code,
            EpochEnd(partition.leader_epoch, partition.end_offset),
        )
        for topic in response.topics
        for partition in topic.partitions
    ]
