"""A few simulation runs, and runs that must find a missing defence. `make simulate` does ten thousand runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequestTopicPartitions as Places,
)
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatResponseTopicPartitions as GivenPlaces,
)
from tests.simulation.cluster_simulation import ClusterSimulation
from tests.simulation.defences import DEFENCES, without
from tests.simulation.machine import ViolationError
from tests.simulation.owners import PartitionOwners

SEEDS = [7, 12, 27, 34]
"""The seeds of short runs, which include every fault and both versions of every protocol."""
TOPIC = b"t" * 16
TRIED = 80
"""The number of seeds, from the given first one, within which a missing defence must be found."""
FIRST = {
    "producers are known after a restart (B2)": 43,
    "markers of old epochs end nothing (B6)": 2,
    "what is prepared is completed after a restart (B7)": 23,
    "transactions have a time (B10)": 5,
    "old epochs are fenced (B11)": 6,
    "members of old generations commit nothing (C3)": 68,
    "partitions wait for their owner (C6)": 5,
}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_invariant_holds(seed: int) -> None:
    ClusterSimulation(seed).run()


@pytest.mark.slow
def test_a_seed_determines_its_run() -> None:
    simulations = [ClusterSimulation(SEEDS[0]) for _ in range(2)]
    for simulation in simulations:
        simulation.run()
    assert simulations[0].counts == simulations[1].counts
    assert simulations[0].machine.schedule.events == simulations[1].machine.schedule.events


class _Group:
    """A group for the checker of assignments, with the attributes of the broker's group."""

    def __init__(self) -> None:
        self.owners = PartitionOwners("g")
        self.members: list[str] = []

    def heartbeat(self, member: str, epoch: int, owned: list[int] | None = None) -> Any:
        partitions_owned = None if owned is None else [Places(topic_id=TOPIC, partitions=owned)]
        request = ConsumerGroupHeartbeatRequest(
            group_id="g", member_id=member, member_epoch=epoch, topic_partitions=partitions_owned
        )
        self.owners.asked(request)
        return request

    def respond(self, request: Any, epoch: int, *partitions: int) -> None:
        assigned = [GivenPlaces(topic_id=TOPIC, partitions=list(partitions))]
        response = ConsumerGroupHeartbeatResponse(
            member_epoch=epoch, assignment=Assignment(topic_partitions=assigned)
        )
        self.owners.answered(request, response)
        group = SimpleNamespace(members=self.members)
        shard = SimpleNamespace(consumer_groups={"g": group})
        groups = SimpleNamespace(_shard_of=lambda _group: shard)
        broker: Any = SimpleNamespace(services=SimpleNamespace(groups=groups))
        self.owners.check(broker)


def test_the_checker_finds_a_partition_with_two_owners() -> None:
    group = _Group()
    group.members = ["a", "b"]
    group.respond(group.heartbeat("a", 0), 1, 0, 1)
    group.heartbeat("a", 1, [0])
    group.respond(group.heartbeat("b", 0), 2, 1)
    with pytest.raises(ViolationError, match="b was assigned"):
        group.respond(group.heartbeat("b", 2), 2, 0)


def test_a_late_heartbeat_makes_no_member_an_owner() -> None:
    group = _Group()
    group.members = ["b"]  # member a was removed
    group.respond(group.heartbeat("b", 0), 2, 0, 1)
    group.members = ["a", "b"]
    group.respond(group.heartbeat("a", 0), 3)
    group.heartbeat("a", 1, [1])
    group.respond(group.heartbeat("b", 2), 3, 0, 1)


def test_a_member_that_missed_a_response_may_revoke_with_its_previous_epoch() -> None:
    group = _Group()
    group.members = ["a", "b"]
    group.respond(group.heartbeat("a", 0), 1, 0)
    group.respond(group.heartbeat("a", 1), 2, 0, 1)  # the response is lost
    group.heartbeat("a", 1, [0])
    group.respond(group.heartbeat("b", 0), 3, 1)


@pytest.mark.slow  # not in `make check`
@pytest.mark.parametrize("defence", DEFENCES)
def test_a_missing_defence_is_noticed(defence: str) -> None:
    first = FIRST.get(defence, 0)
    with without(defence):
        for seed in range(first, first + TRIED):
            try:
                ClusterSimulation(seed).run()
            except AssertionError:
                return
    pytest.fail(f"no check failed in {TRIED} runs without the defence: {defence}")
