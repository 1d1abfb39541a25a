"""Finding the partition that a request is about, with the checks that every reader's request shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.partition import Partition

if TYPE_CHECKING:
    from headrace.broker.broker import Broker


def find_partition(broker: Broker, topic: str, index: int, current_leader_epoch: int) -> Partition:
    """Return a partition that a consumer wants to read.

    Args:
        broker: The broker.
        topic: The topic's name.
        index: The partition's number.
        current_leader_epoch: The epoch that the client believes in, -1 if it does not say.

    Raises:
        ApiError: With the code to answer.
    """
    partition = broker.topics.require(topic).partition(index)
    partition.check_leader_epoch(current_leader_epoch)
    return partition
