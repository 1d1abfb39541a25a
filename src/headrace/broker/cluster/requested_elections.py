"""The elections that an operator requests: of preferred leaders, or of any live replica."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.broker.cluster.control import Control, controlled
from headrace.broker.partitions.topics import Topics
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.core.cluster.controller import PARTITIONS_A_COMMIT, StateChange
from headrace.errors import ApiError, ErrorCode
from headrace.types import TopicPartition

PREFERRED: Final = 0
"""The type of an election of the first replica."""
UNCLEAN: Final = 1
"""The type of an election of any live replica, if the partition has no leader."""
_COST: Final = 4 * ENTRY_COST
"""The cost of an election."""


def elect_as_requested(
    control: Control, topics: Topics, wanted: Sequence[TopicPartition], election_type: int
) -> Work[list[ErrorCode]]:
    """Elect the leaders of partitions as the controller.

    Args:
        control: The controller.
        topics: The topics.
        wanted: The partitions.
        election_type: `PREFERRED` or `UNCLEAN`.

    Returns:
        The error codes of the partitions, in their order.
    """
    codes: list[ErrorCode] = []
    for first in range(0, len(wanted), PARTITIONS_A_COMMIT):
        some = wanted[first : first + PARTITIONS_A_COMMIT]
        codes += yield from _elect_some(control, topics, some, election_type)
    return codes


def _elect_some(
    control: Control, topics: Topics, wanted: Sequence[TopicPartition], election_type: int
) -> Work[list[ErrorCode]]:
    codes: list[ErrorCode] = []
    changed: dict[tuple[bytes, int], StateChange] = {}

    def decide() -> Sequence[StateChange]:
        codes.clear()
        changed.clear()
        for each in wanted:
            change = _decide(control, topics, each, election_type)
            if isinstance(change, StateChange):
                # A partition that the request names twice is elected once.
                changed[change.topic.topic_id, change.partition] = change
                codes.append(ErrorCode.NONE)
            else:
                codes.append(change)
        return list(changed.values())

    yield len(wanted) * _COST
    error = yield from control.change_states(decide)
    if isinstance(error, ApiError):
        decided = codes or [ErrorCode.NONE] * len(wanted)
        return [code or error.code for code in decided]
    return codes


def _decide(
    control: Control, topics: Topics, wanted: TopicPartition, election_type: int
) -> StateChange | ErrorCode:
    topic = topics.get(wanted.topic)
    if topic is None or not 0 <= wanted.partition < topic.partitions_count:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    decisions = control.decisions
    decide = decisions.preferred_leader if election_type == PREFERRED else decisions.any_leader
    return decide(controlled(topic), wanted.partition)
