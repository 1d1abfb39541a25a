"""Finding the partition that a request is about, with the checks that every reader's request shares."""

from __future__ import annotations

from headrace.broker.partitions.partition import Partition
from headrace.broker.services import Services


def find_partition(
    services: Services, topic: str, index: int, current_leader_epoch: int
) -> Partition:
    """Return a partition that a consumer wants to read.

    Args:
        services: The services of the broker.
        topic: The topic's name.
        index: The partition's number.
        current_leader_epoch: The epoch that the client believes in, -1 if it does not say.

    Raises:
        ApiError: With the code to answer.
    """
    partition = services.topics.require(topic).partition(index)
    partition.check_leader_epoch(current_leader_epoch)
    return partition
