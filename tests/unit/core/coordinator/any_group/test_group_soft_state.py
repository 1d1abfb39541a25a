"""Soft state of a group ends with the thing that it describes: expressions, permissions, targets, rebalances."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.context import CloseConnection
from headrace.broker.session import Session
from headrace.core.coordinator.state.classic_states import GroupState
from headrace.errors import ErrorCode
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.security.acls import Operation, PatternType, Permission, ResourceType
from headrace.security.principal import Principal
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.classic_consumers import ClassicConsumer
from tests.fixtures.consumer_group_harness import Consumer, ConsumerGroupHarness, given
from tests.fixtures.group_harness import now, parked
from tests.simulation.groups import requests
from tests.unit.core.coordinator.consumer.test_mixed_group import settle


@pytest.fixture
def world() -> ConsumerGroupHarness:
    world = ConsumerGroupHarness()
    world.topics.create("t", 6)
    return world


def join(world: ConsumerGroupHarness, member: str, regex: str) -> set[tuple[bytes, int]]:
    answer = world.join(member, subscribed_topic_regex=regex)
    assert answer.error_code == ErrorCode.NONE, answer
    return given(answer) or set()


@pytest.mark.parametrize("way", ["leaves", "expires", "changes its mind"])
def test_an_expression_is_resolved_again_for_the_next_member_that_subscribes(world, way):
    world.topics.create("orders", 2)
    assert join(world, "a", "orders.*") == world.topics.partitions("orders")
    if way == "leaves":
        world.send(member_id="a", member_epoch=-1)
    elif way == "expires":
        world.advance(60_000)
    else:
        epoch = world.group().holding("a").epoch
        world.send(
            member_id="a",
            member_epoch=epoch,
            subscribed_topic_names=["t"],
            subscribed_topic_regex="",
            owned=[],
        )
        world.send(member_id="a", member_epoch=-1)
    assert join(world, "b", "orders.*") == world.topics.partitions("orders")


def test_a_new_topic_of_an_expression_is_assigned_although_another_member_sent_a_heartbeat_first(
    world,
):
    members = {name: join(world, name, f"{name}.*") for name in ("a", "b")}
    assert members == {"a": set(), "b": set()}
    world.topics.create("b1", 2)
    for _ in range(3):
        for name in members:
            epoch = world.group().holding(name).epoch
            answer = world.send(member_id=name, member_epoch=epoch, owned=[])
            members[name] |= given(answer) or set()
    assert members == {"a": set(), "b": world.topics.partitions("b1")}


def test_a_joining_member_drops_an_earlier_subscription(world):
    world.topics.create("orders", 2)
    join(world, "a", "orders.*")
    world.send(member_id="a", member_epoch=-1)
    first = world.join("b", instance_id="i", subscribed_topic_regex="orders.*")
    assert given(first) == world.topics.partitions("orders")
    world.send(member_id="b", member_epoch=-2, instance_id="i")
    restarted = world.join("c", "t", instance_id="i")
    assert given(restarted) == world.topics.partitions("t")


def test_a_topic_that_becomes_visible_is_assigned_by_the_expression():
    harness = BrokerHarness(authorizer_class_name="headrace")
    harness.create_topic("orders")
    session = Session(listener="test", principal=Principal("alice"), client_host="127.0.0.1")

    def allow(kind: ResourceType, name: str, operation: Operation) -> None:
        creation = AclCreation(
            resource_type=kind,
            resource_name=name,
            resource_pattern_type=PatternType.LITERAL,
            principal="User:alice",
            host="*",
            operation=operation,
            permission_type=Permission.ALLOW,
        )
        (result,) = harness.call(CreateAclsRequest(creations=[creation])).results
        assert result.error_code == ErrorCode.NONE, result.error_message

    def beat(epoch: int) -> Any:
        joining = epoch == 0
        request = ConsumerGroupHeartbeatRequest(
            group_id="g",
            member_id="m",
            member_epoch=epoch,
            rebalance_timeout_ms=60_000 if joining else -1,
            subscribed_topic_regex="ord.*" if joining else None,
            topic_partitions=[] if joining else None,
        )
        answer = harness.call(request, session=session)
        assert answer.error_code == ErrorCode.NONE, answer.error_message
        return answer

    allow(ResourceType.GROUP, "g", Operation.READ)
    harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
    first = beat(0)
    assert first.assignment.topic_partitions == []
    allow(ResourceType.TOPIC, "orders", Operation.READ)
    second = beat(first.member_epoch)
    assert len(second.assignment.topic_partitions) == 1


def test_an_online_upgrade_by_a_static_member_ends_with_everything_assigned(world):
    dynamic = ClassicConsumer(world, "t")
    static = ClassicConsumer(world, "t", instance="s0")
    settle(dynamic, static)
    assert len(static.owned) == 3
    dynamic.leave()
    assert world.group_state() is GroupState.PREPARING_REBALANCE
    modern = Consumer(world, "m", "t", instance="s0")
    settle(modern)
    assert modern.owned == world.topics.partitions("t")


def test_an_online_downgrade_by_a_static_member_ends_with_everything_assigned(world):
    static = Consumer(world, "x", "t", instance="i0")
    one, other = ClassicConsumer(world, "t"), ClassicConsumer(world, "t")
    settle(static, one, other)
    static.leave(-2)
    other.leave()
    settle(one)
    again = ClassicConsumer(world, "t", instance="i0")
    again.beat()
    again.beat()
    assert world.group() is None
    assert world.group_state() is GroupState.PREPARING_REBALANCE, (
        "the member owns 2 of the 3 partitions of its target, and the generation has no leader"
    )
    settle(one, again)
    assert one.owned | again.owned == world.topics.partitions("t")


def test_a_consumer_joins_a_group_whose_founder_left_during_the_initial_delay():
    world = ConsumerGroupHarness(group_initial_rebalance_delay_ms=3000)
    world.topics.create("t", 2)
    member = now(world.classic_join(client="c")).member_id
    founding = world.classic_join(member)
    assert parked(founding)
    now(world.classic_leave(member))
    consumer = Consumer(world, "m", "t")
    consumer.beat()
    assert consumer.owned == world.topics.partitions("t")
    world.advance(10_000)
    consumer.beat()
    assert consumer.owned == world.topics.partitions("t"), "the former rebalance came to an end"
    assert "g" not in world.coordinator._shards[0].classic_groups


# --- classic groups and partitions that are added ---


def test_a_classic_group_rejoins_with_the_next_heartbeat_when_a_topic_has_grown(world):
    members = [IncuriousConsumer(world, "t") for _ in range(2)]
    settle(*members)
    world.topics.grow("t", 8)
    settle(*members)
    assert members[0].owned | members[1].owned == world.topics.partitions("t")


def test_a_classic_group_rejoins_when_a_topic_that_it_waits_for_is_created(world):
    members = [IncuriousConsumer(world, "t", "later") for _ in range(2)]
    settle(*members)
    world.topics.create("later", 2)
    settle(*members)
    assert members[0].owned | members[1].owned == world.topics.partitions("t", "later")


def test_a_classic_group_without_a_leader_sees_added_partitions(world):
    modern = Consumer(world, "m", "t", instance="i")
    other = IncuriousConsumer(world, "t")
    settle(modern, other)
    again = IncuriousConsumer(world, "t", instance="i")
    settle(again, other)
    assert world.coordinator._shards[0].classic_groups["g"].generation.leader is None
    world.topics.grow("t", 8)
    settle(again, other)
    assert again.owned | other.owned == world.topics.partitions("t")


def test_partitions_added_before_a_restart_are_assigned_after_the_restart(world):
    members = [IncuriousConsumer(world, "t") for _ in range(2)]
    settle(*members)
    world.topics.grow("t", 8)
    world.restart()
    settle(*members)
    assert members[0].owned | members[1].owned == world.topics.partitions("t")


def test_other_topics_make_no_rebalance(world):
    member = IncuriousConsumer(world, "t")
    settle(member)
    generation = member.generation
    for name in ("other", "another"):
        world.topics.create(name, 3)
        settle(member)
    world.topics.delete("other")
    settle(member)
    assert member.generation == generation


def test_a_leader_that_omits_partitions_must_rejoin_once_for_each_change(world):
    member = IncuriousConsumer(world, "t")
    member.counts = {"t": 6}
    settle(member)
    generation = member.generation
    for grown in (1, 2):
        world.topics.grow("t", 6 + grown)
        settle(member)
        world.topics.create(f"other{grown}", 1)
        settle(member)
        assert member.generation == generation + grown, "once, not with every heartbeat"


class IncuriousConsumer(ClassicConsumer):
    """A member that does not watch topics. As a leader it assigns with current metadata, or with `counts`."""

    counts: dict[str, int] | None = None

    def beat(self, fate: str = "answered") -> None:
        self.topics_seen = self.world.topics.changes
        super().beat(fate)

    def assigned(self, members: list[tuple[str, bytes]]) -> dict[str, bytes]:
        if self.counts is None:
            return super().assigned(members)
        topics, real = self.world.topics, dict(self.world.topics.sizes)
        for name, count in self.counts.items():
            topics.sizes[name] = topics.sizes[name]._replace(partitions_count=count)
        try:
            return super().assigned(members)
        finally:
            topics.sizes = real


# --- leaders that assign by old metadata ---


class Rejoined:
    """The leader of a classic group on a whole broker. The topic `t` has two partitions, and later four."""

    def __init__(self) -> None:
        self.harness = BrokerHarness(group_initial_rebalance_delay_ms=0)
        self.harness.create_topic("t", partitions=2)
        self.harness.call(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
        required = self.join("")
        self.member = required.member_id
        self.generation = self.join(self.member).generation_id
        assert self.sync(2).error_code == ErrorCode.NONE

    def grow(self, count: int) -> None:
        added = CreatePartitionsTopic(name="t", count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[added], timeout_ms=1000)
        assert self.harness.call(request).results[0].error_code == ErrorCode.NONE

    def join(self, member: str) -> Any:
        request = requests.join(
            "g", member, None, topics=["t"], session_timeout_ms=10_000, rebalance_timeout_ms=10_000
        )
        return self.harness.call(request)

    def rejoin(self) -> None:
        assert self.heartbeat() == ErrorCode.REBALANCE_IN_PROGRESS
        self.generation = self.join(self.member).generation_id

    def heartbeat(self) -> int:
        request = HeartbeatRequest(
            group_id="g", generation_id=self.generation, member_id=self.member
        )
        return int(self.harness.call(request).error_code)

    def sync(self, count: int) -> Any:
        given = requests.assignments({self.member: [("t", index) for index in range(count)]})
        return self.harness.call(requests.sync("g", self.member, None, self.generation, given), 4)


def test_a_leader_that_assigns_by_old_metadata_is_disconnected_once_so_that_it_refreshes_them():
    member = Rejoined()
    member.grow(4)
    member.rejoin()
    with pytest.raises(CloseConnection, match="old metadata"):
        member.sync(2)
    assert member.join(member.member).generation_id == member.generation, "no further rebalance"
    assert member.sync(4).error_code == ErrorCode.NONE
    assert member.heartbeat() == ErrorCode.NONE


def test_a_second_assignment_that_leaves_partitions_out_is_accepted():
    member = Rejoined()
    for grown in (4, 5):
        member.grow(grown)
        member.rejoin()
        with pytest.raises(CloseConnection):
            member.sync(2)
        assert member.sync(2).error_code == ErrorCode.NONE
        assert [member.heartbeat() for _ in range(3)] == [ErrorCode.NONE] * 3


def test_a_leader_with_fresh_metadata_keeps_its_connection():
    member = Rejoined()
    member.grow(4)
    member.rejoin()
    assert member.sync(4).error_code == ErrorCode.NONE
    assert member.heartbeat() == ErrorCode.NONE


def test_partitions_that_are_moving_are_not_without_a_reader(world):
    members = [IncuriousConsumer(world, "t", cooperative=True) for _ in range(2)]
    settle(*members)
    world.topics.grow("t", 8)
    settle(*members)
    assert members[0].owned | members[1].owned == world.topics.partitions("t")
    generation = members[0].generation
    late = IncuriousConsumer(world, "t", cooperative=True)
    settle(*members, late)
    assert [len(member.owned) for member in (*members, late)] == [3, 3, 2]
    assert members[0].generation == generation + 2, "one to give up, and one to take over"
