"""A rebalance that the broker begins, because something has changed that members cannot see."""

from __future__ import annotations

from headrace.core.coordinator.state.classic_states import GroupState
from headrace.errors import ErrorCode
from tests.fixtures.group_harness import REBALANCE_MS, GroupHarness, now, parked


def call(world: GroupHarness, group: str = "g") -> None:
    world.coordinator.rebalance(group, "attached to another topic", world.now_ms)


def test_members_of_a_stable_group_join_again_and_nothing_is_written_before() -> None:
    world = GroupHarness()
    one, two = world.stable(2)
    number = world.group().generation.number
    world.take_records()
    call(world)
    assert world.group().state is GroupState.PREPARING_REBALANCE
    assert world.take_records() == []
    for member in (one, two):
        assert world.heartbeat(member, number) == ErrorCode.REBALANCE_IN_PROGRESS
    first = world.join(one)
    assert parked(first)
    assert now(world.join(two)).generation_id == number + 1
    assert now(first).generation_id == number + 1


def test_a_member_that_does_not_come_back_is_removed() -> None:
    world = GroupHarness()
    one, _two = world.stable(2)
    call(world)
    reply = world.join(one)
    while parked(reply):
        world.advance(REBALANCE_MS // 20)
    assert [member.member_id for member in now(reply).members] == [one]


def test_members_that_wait_for_their_assignment_have_to_join_again() -> None:
    world = GroupHarness()
    one, reply = world.admitted()
    generation = now(reply).generation_id
    two, joined = world.admitted()
    now(world.join(one))
    follower = world.sync_group(two, now(joined).generation_id)
    assert parked(follower)
    call(world)
    assert now(follower).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.group().state is GroupState.PREPARING_REBALANCE
    assert now(joined).generation_id == generation + 1


def test_a_rebalance_is_not_begun_while_one_is_being_prepared() -> None:
    world = GroupHarness()
    one, two = world.stable(2)
    call(world)
    reply = world.join(one)
    call(world)
    assert parked(reply), "who has joined stays joined"
    now(world.join(two))
    assert now(reply).error_code == 0


def test_groups_without_members_are_left_alone() -> None:
    world = GroupHarness()
    call(world, "nobody")
    assert not world.coordinator.exists("nobody")
    (member,) = world.stable()
    now(world.leave((member, None)))
    world.take_records()
    call(world)
    assert world.group().state is GroupState.EMPTY
    assert world.take_records() == []


def test_a_group_supports_a_protocol_if_all_members_do() -> None:
    world = GroupHarness()
    assert world.coordinator.supports("nobody", "anything")
    world.stable(2)
    assert world.coordinator.supports("g", "range")
    assert not world.coordinator.supports("g", "equal")
