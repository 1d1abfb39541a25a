"""The rules for the replicas of new partitions, with Kafka's errors."""

from __future__ import annotations

import pytest

from headrace.core.cluster.membership import LiveBroker, Membership
from headrace.core.cluster.new_partitions import (
    check_assignments,
    check_replication_factor,
    first_states,
)
from headrace.core.cluster.partition_states import state_key
from headrace.core.cluster.records import PartitionState
from headrace.errors import ApiError, ErrorCode

TOPIC = bytes(15) + b"\x01"


@pytest.mark.parametrize(
    ("replication_factor", "registered", "running"), [(1, 1, 1), (1, 3, 3), (3, 3, 3), (3, 3, 1)]
)
def test_a_replication_factor_is_at_most_the_number_of_registered_brokers(
    replication_factor: int, registered: int, running: int
) -> None:
    check_replication_factor(replication_factor, registered=registered, running=running)


@pytest.mark.parametrize(
    ("replication_factor", "registered", "running", "message"),
    [
        (3, 2, 2, "the number of registered brokers is 2"),
        (1, 3, 0, "No broker can take a new partition"),
        (0, 3, 3, "The replication factor is 0"),
        (-2, 3, 3, "The replication factor is -2"),
    ],
)
def test_a_replication_factor_that_is_not_possible_is_refused(
    replication_factor: int, registered: int, running: int, message: str
) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        check_replication_factor(replication_factor, registered=registered, running=running)
    assert caught.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


def check(
    *assignments: list[int], running: tuple[int, ...] = (1, 2, 3), factor: int | None = None
) -> None:
    check_assignments(
        assignments, registered={1, 2, 3, 4}, running=running, replication_factor=factor
    )


def test_assignments_may_name_brokers_that_are_not_live() -> None:
    check([1, 2], [4, 3], [3, 1])
    check([2], [1], factor=1)


@pytest.mark.parametrize(
    ("assignments", "factor", "reason"),
    [
        ([[1], []], None, "no brokers"),
        ([[1], [9]], None, "broker 9"),
        ([[1, 1]], None, "twice"),
        ([[1, 2], [1]], None, "has 1 brokers"),
        ([[1], [1]], 2, "another partition has 2"),
        ([[1], [4]], None, "is live"),
    ],
)
def test_an_assignment_that_is_not_possible_is_refused(
    assignments: list[list[int]], factor: int | None, reason: str
) -> None:
    with pytest.raises(ApiError, match=reason) as caught:
        check(*assignments, factor=factor)
    assert caught.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_partitions_whose_replicas_all_run_have_no_stored_state() -> None:
    membership = Membership()
    membership.live = {1: LiveBroker(1, 5), 2: LiveBroker(2, 6)}
    assert dict(first_states(TOPIC, [(1, 2), (2, 1)], membership)) == {}


def test_the_first_running_replica_leads_and_only_running_replicas_are_in_sync() -> None:
    membership = Membership()
    membership.live = {
        1: LiveBroker(1, 5),
        2: LiveBroker(2, 6),
        3: LiveBroker(3, 7, is_draining=True),
    }
    replicas = [(1, 4), (4, 3, 2, 1), (1, 2)]
    assert dict(first_states(TOPIC, replicas, membership)) == {
        state_key(TOPIC, 0): PartitionState(1, 5, (1,), (), 5),
        state_key(TOPIC, 1): PartitionState(2, 6, (2, 1), (), 6),
    }
    assert list(dict(first_states(TOPIC, replicas, membership, 1))) == [state_key(TOPIC, 1)]
