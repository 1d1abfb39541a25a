"""The offsets that groups have committed for a deleted topic."""

from __future__ import annotations

from typing import Any

from headrace.broker.context import LatestTime
from headrace.broker.partitions.topics import Topics
from headrace.broker.waiting.steps import OFFSET_COST, STEP_COST, Work
from headrace.core.coordinator.group_coordinator import GroupCoordinator
from headrace.core.coordinator.runtime import Reply, gather


def forget_offsets(
    groups: GroupCoordinator, topics: Topics, time: LatestTime, name: str
) -> Work[Reply[Any]]:
    """Delete the offsets that groups have committed for a topic, in steps. The reply waits until that is durable.

    Args:
        groups: The group coordinator.
        topics: The topics. If a topic of this name exists again, the offsets that were committed for it stay.
        time: The time of the latest call of the broker.
        name: The name of the deleted topic.
    """
    deleted_ms = time.now_ms
    # Without the wait, a topic of this name that is created meanwhile would inherit the offsets.
    while groups.is_loading:
        yield STEP_COST
    replies: list[Reply[None]] = []
    for count, written in groups.forget_offsets(
        name, deleted_ms, lambda: topics.get(name) is not None
    ):
        replies += written
        yield count * OFFSET_COST
    return gather(replies)
