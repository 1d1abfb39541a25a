"""B6: a thousand members of one group join and leave, each a whole consumer, around one broker in virtual time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from headrace.core.coordinator.group_coordinator import GroupCoordinator
from headrace.types import TopicPartition
from tests.fixtures.consumer_simulation import ConsumerSimulation, Program

MEMBERS = 1_000
TOPICS = 4
PARTITIONS = 250
INTERVAL_MS = 5_000
HEARTBEAT_COST_S = 0.002
"""Processor time that the coordinator may need for a heartbeat, in seconds.

It is many times the usual cost, and far less than a look at all members of the group would take.
"""


class Crowd:
    """Members that poll at intervals, and the cost of their heartbeats for the coordinator."""

    def __init__(self) -> None:
        self.world = ConsumerSimulation(
            group_consumer_heartbeat_interval_ms=INTERVAL_MS, group_consumer_max_size=MEMBERS
        )
        for number in range(TOPICS):
            self.world.broker.create_topic(f"t{number}", partitions=PARTITIONS)
        self.members: list[Program] = []
        self.spent_s = 0.0
        self.heartbeats = 0

    def join(self, count: int) -> None:
        for number in range(count):
            member = self.world.consumer(
                group="g",
                group_protocol="consumer",
                auto_offset_reset="earliest",
                enable_auto_commit=False,
                fetch_max_wait_ms=600_000,
            )
            member.engine.spawn(member.core.subscribe([f"t{number % TOPICS}"]))
            self.members.append(member)
        self.poll()

    def leave(self, gone: list[Program]) -> None:
        for member in gone:
            member.engine.spawn(member.core.close("nothing", 10_000))
        self.world.settle()
        for member in gone:
            self.world.programs.remove(member)
            self.members.remove(member)

    def poll(self) -> None:
        for member in self.members:
            member.engine.advance(self.world.now_ms)
            member.engine.spawn(member.core.poll(0))
        self.world.settle()

    def settle(self) -> int:
        """Return the number of heartbeat intervals until all members have their partitions."""
        for interval in range(10):
            if all(member.core.joined for member in self.members) and self.owned() == self.wanted():
                return interval
            self.world.advance(INTERVAL_MS)
            self.poll()
        raise AssertionError("the group does not come to rest")

    def owned(self) -> list[TopicPartition]:
        return sorted(name for member in self.members for name in member.core.assigned)

    def wanted(self) -> list[TopicPartition]:
        names = [f"t{number}" for number in range(TOPICS)]
        return [TopicPartition(name, number) for name in names for number in range(PARTITIONS)]

    def cost_s(self) -> float:
        """Return the cost of a heartbeat for the coordinator since the last call."""
        cost_s = self.spent_s / max(1, self.heartbeats)
        self.spent_s, self.heartbeats = 0.0, 0
        return cost_s


@pytest.fixture
def crowd(monkeypatch: pytest.MonkeyPatch) -> Crowd:
    crowd = Crowd()
    handle: Any = GroupCoordinator.consumer_group_heartbeat

    def timed(self: GroupCoordinator, *arguments: Any, **options: Any) -> Any:
        began_s = time.process_time()
        try:
            return handle(self, *arguments, **options)
        finally:
            crowd.spent_s += time.process_time() - began_s
            crowd.heartbeats += 1

    monkeypatch.setattr(GroupCoordinator, "consumer_group_heartbeat", timed)
    return crowd


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_b6_a_thousand_members_join_and_leave(crowd: Crowd) -> None:
    crowd.join(MEMBERS)
    assert crowd.settle() <= 4
    assert crowd.cost_s() < HEARTBEAT_COST_S
    loads = [len(member.core.assigned) for member in crowd.members]
    assert max(loads) - min(loads) <= 1
    crowd.world.advance(INTERVAL_MS)
    assert crowd.heartbeats == MEMBERS, "each says that it lives"
    assert crowd.cost_s() < HEARTBEAT_COST_S
    crowd.leave(crowd.members[: MEMBERS // 2])
    assert crowd.settle() <= 3
    assert crowd.cost_s() < HEARTBEAT_COST_S
