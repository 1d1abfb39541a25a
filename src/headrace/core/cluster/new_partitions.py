"""Kafka's rules for the replicas of new partitions: how many, on which brokers, and which are in sync at first."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from headrace.core.cluster.membership import Membership
from headrace.core.cluster.partition_states import state_key
from headrace.core.cluster.records import PartitionState
from headrace.errors import ApiError, ErrorCode


def check_replication_factor(replication_factor: int, *, registered: int, running: int) -> None:
    """Check whether brokers can take this number of replicas of each partition.

    As in Kafka, a broker that is not live may get a replica, but one replica has to be on a live broker.

    Args:
        replication_factor: The number of replicas.
        registered: The number of brokers that have ever registered.
        running: The number of live brokers that are not draining.

    Raises:
        ApiError: INVALID_REPLICATION_FACTOR.
    """
    if replication_factor < 1:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is {replication_factor}. Use 1 or more, or -1 for the broker's default.",
        )
    if replication_factor > registered:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is {replication_factor}, and the number of registered brokers is {registered}. "
            "Use a smaller replication factor, or start more brokers.",
        )
    if not running:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "No broker can take a new partition: all brokers are down or shut down. Try again later.",
        )


def check_assignments(
    assignments: Sequence[Sequence[int]],
    *,
    registered: Container[int],
    running: Container[int],
    replication_factor: int | None = None,
) -> None:
    """Check the brokers that a request has chosen for the replicas of new partitions.

    Args:
        assignments: The brokers of each partition.
        registered: The brokers that have ever registered.
        running: The live brokers that are not draining.
        replication_factor: The number of replicas of each partition; None for that of the first assignment.

    Raises:
        ApiError: INVALID_REPLICA_ASSIGNMENT.
    """
    for replicas in assignments:
        factor = len(replicas) if replication_factor is None else replication_factor
        replication_factor = factor
        if not replicas:
            raise _invalid("An assignment has no brokers.")
        unknown = next((broker for broker in replicas if broker not in registered), None)
        if unknown is not None:
            raise _invalid(f"An assignment has broker {unknown}, which is not registered.")
        if len(set(replicas)) < len(replicas):
            raise _invalid(f"An assignment has a broker twice: {list(replicas)[:10]}.")
        if len(replicas) != factor:
            raise _invalid(
                f"An assignment has {len(replicas)} brokers, and another partition has {factor}."
            )
        if not any(broker in running for broker in replicas):
            raise _invalid(f"No broker of the assignment {list(replicas)[:10]} is live.")


def _invalid(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def first_states(
    topic_id: bytes, replicas: Sequence[tuple[int, ...]], membership: Membership, first: int = 0
) -> Iterator[tuple[str, PartitionState]]:
    """Yield key and state of each new partition of which not all replicas are in sync at first.

    The live replicas are in sync, and the first one of them leads. Partitions without a state are led by their first
    replica, with all replicas in sync (`present_state`).

    Args:
        topic_id: The id of the topic.
        replicas: The replicas of each partition of the topic, present and new.
        membership: The live brokers. A draining broker does not count.
        first: The number of the first new partition.
    """
    running = membership.running
    for index in range(first, len(replicas)):
        isr = tuple(broker for broker in replicas[index] if broker in running)
        if isr and len(isr) < len(replicas[index]):
            epoch = running[isr[0]].broker_epoch
            yield state_key(topic_id, index), PartitionState(isr[0], epoch, isr, (), epoch)
