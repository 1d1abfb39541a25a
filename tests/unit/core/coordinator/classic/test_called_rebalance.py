"""A rebalance that the broker begins, because something has changed that members cannot see."""

from __future__ import annotations

from headrace.core.coordinator.state.classic_states import GroupState
from headrace.errors import ErrorCode
from tests.fixtures.group_harness import REBALANCE_MS, GroupHarness, now, parked


def call(harness: GroupHarness, group: str = "g") -> None:
    harness.coordinator.rebalance(group, "attached to another topic", harness.now_ms)


def test_a_requested_rebalance_writes_nothing_before_members_rejoin() -> None:
    harness = GroupHarness()
    one, two = harness.stable(2)
    number = harness.group().generation.number
    harness.take_records()
    call(harness)
    assert harness.group().state is GroupState.PREPARING_REBALANCE
    assert harness.take_records() == []
    for member in (one, two):
        assert harness.heartbeat(member, number) == ErrorCode.REBALANCE_IN_PROGRESS
    first = harness.join(one)
    assert parked(first)
    assert now(harness.join(two)).generation_id == number + 1
    assert now(first).generation_id == number + 1


def test_a_member_that_does_not_rejoin_is_removed() -> None:
    harness = GroupHarness()
    one, _two = harness.stable(2)
    call(harness)
    reply = harness.join(one)
    while parked(reply):
        harness.advance(REBALANCE_MS // 20)
    assert [member.member_id for member in now(reply).members] == [one]


def test_members_that_wait_for_their_assignment_have_to_join_again() -> None:
    harness = GroupHarness()
    one, reply = harness.admitted()
    generation = now(reply).generation_id
    two, joined = harness.admitted()
    now(harness.join(one))
    follower = harness.sync_group(two, now(joined).generation_id)
    assert parked(follower)
    call(harness)
    assert now(follower).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.group().state is GroupState.PREPARING_REBALANCE
    assert now(joined).generation_id == generation + 1


def test_a_rebalance_is_not_begun_while_one_is_being_prepared() -> None:
    harness = GroupHarness()
    one, two = harness.stable(2)
    call(harness)
    reply = harness.join(one)
    call(harness)
    assert parked(reply), "who has joined stays joined"
    now(harness.join(two))
    assert now(reply).error_code == 0


def test_groups_without_members_are_left_alone() -> None:
    harness = GroupHarness()
    call(harness, "nobody")
    assert not harness.coordinator.exists("nobody")
    (member,) = harness.stable()
    now(harness.leave((member, None)))
    harness.take_records()
    call(harness)
    assert harness.group().state is GroupState.EMPTY
    assert harness.take_records() == []


def test_a_group_supports_a_protocol_if_all_members_do() -> None:
    harness = GroupHarness()
    assert harness.coordinator.supports("nobody", "anything")
    harness.stable(2)
    assert harness.coordinator.supports("g", "range")
    assert not harness.coordinator.supports("g", "equal")
