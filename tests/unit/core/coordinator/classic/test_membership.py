"""Heartbeats, leaving, and sessions that end."""

from __future__ import annotations

import pytest

from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import Generation, GenerationRecord
from headrace.errors import ErrorCode
from headrace.protocol.messages.leave_group import LeaveGroupResponse, MemberResponse
from tests.fixtures.group_harness import SESSION_MS, START_MS, GroupHarness, now, parked

EMPTY = Generation(2, GroupState.EMPTY, "consumer", None, None, START_MS)


# --- heartbeat ---


@pytest.mark.parametrize(
    ("member", "generation", "options", "error"),
    [
        ("first", 2, {}, ErrorCode.NONE),
        ("first", 1, {}, ErrorCode.ILLEGAL_GENERATION),
        ("first", 3, {}, ErrorCode.ILLEGAL_GENERATION),
        ("stranger", 2, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", -1, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("first", 2, {"instance": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("first", 2, {"group": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("first", 2, {"group": ""}, ErrorCode.INVALID_GROUP_ID),
    ],
)
def test_a_heartbeat_with_a_wrong_member_or_generation_is_refused(
    member, generation, options, error
):
    world = GroupHarness()
    first, _ = world.stable(2)
    name = {"first": first}.get(member, member)
    assert world.heartbeat(name, generation, **options) == error
    assert world.take_records() == []


def test_heartbeats_extend_the_session_of_a_member():
    world = GroupHarness()
    (first,) = world.stable()
    for _ in range(10):
        world.advance(SESSION_MS - 1)
        assert world.heartbeat(first, 1) == ErrorCode.NONE


def test_heartbeats_are_accepted_while_the_assignment_is_awaited():
    world = GroupHarness()
    first, _ = world.admitted()
    for _ in range(3):
        world.advance(SESSION_MS - 1)
        assert world.heartbeat(first, 1) == ErrorCode.NONE
    assert world.group().state is GroupState.COMPLETING_REBALANCE


def test_a_heartbeat_while_loading_is_answered_without_an_error():
    world = GroupHarness()
    (first,) = world.stable()
    world.coordinator._shards.clear()
    assert world.heartbeat(first, 1) == ErrorCode.NONE
    assert now(world.join(first)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# --- sessions ---


def test_a_member_without_heartbeats_is_removed():
    world = GroupHarness()
    first, second = world.stable(2)
    world.advance(SESSION_MS - 1)
    world.heartbeat(first, 2)
    world.advance(1)
    assert world.heartbeat(first, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(second, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.take_records() == []


def test_the_expiry_of_the_last_member_writes_an_empty_generation():
    world = GroupHarness()
    world.stable()
    world.advance(SESSION_MS)
    assert world.take_records() == [
        GenerationRecord("g", EMPTY._replace(state_timestamp_ms=START_MS + SESSION_MS))
    ]
    assert world.group().state is GroupState.EMPTY


def test_a_member_that_had_not_joined_yet_expires_and_completes_the_join_phase():
    world = GroupHarness()
    first, second = world.stable(2)
    reply = world.join(first)
    world.advance(SESSION_MS)
    assert now(reply).generation_id == 3
    assert second not in world.group().members


def test_a_member_answered_after_a_long_pause_has_a_full_session():
    """All timers are due at once: the join phase ends and answers members whose old sessions are due too."""
    world = GroupHarness()
    first, second = world.stable(2, rebalance_ms=20_000, session_ms=30_000)
    reply = world.join(first, rebalance_ms=20_000, session_ms=30_000)
    world.now_ms += 100_000
    world.coordinator.expire(world.now_ms)
    assert now(reply).generation_id == 3
    assert list(world.group().members) == [first]
    assert second not in world.group().members
    world.advance(20_000 - 1)
    assert world.heartbeat(first, 3) == ErrorCode.NONE


# --- leave ---


def test_the_leave_of_the_last_member_writes_an_empty_generation():
    world = GroupHarness()
    (first,) = world.stable()
    assert now(world.leave((first, None))) == LeaveGroupResponse(
        members=[MemberResponse(member_id=first, group_instance_id=None)]
    )
    assert world.take_records() == [GenerationRecord("g", EMPTY)]


def test_a_leaving_member_makes_the_others_join_again():
    world = GroupHarness()
    first, second = world.stable(2)
    now(world.leave((first, None)))
    assert world.take_records() == []
    assert world.heartbeat(second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert world.heartbeat(first, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert now(world.join(second)).leader == second


def test_several_leave_at_once_each_with_an_outcome_of_its_own():
    world = GroupHarness()
    first, second, third = world.stable(3)
    response = now(world.leave((first, None), ("stranger", None), (second, "i"), (second, None)))
    assert [member.error_code for member in response.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert response.error_code == ErrorCode.NONE
    assert list(world.group().members) == [third]


def test_leaving_completes_the_rebalance_that_waited_for_the_leaver():
    world = GroupHarness()
    first, second = world.stable(2)
    reply = world.join(first)
    assert parked(reply)
    now(world.leave((second, None)))
    assert now(reply).generation_id == 3


def test_an_unused_member_id_can_leave_without_a_rebalance():
    world = GroupHarness()
    (first,) = world.stable()
    given = now(world.join()).member_id
    assert now(world.leave((given, None))).members[0].error_code == ErrorCode.NONE
    assert world.group().state is GroupState.STABLE
    assert world.heartbeat(first, 1) == ErrorCode.NONE
    assert now(world.join(given)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leaver_with_a_parked_join_is_answered():
    world = GroupHarness()
    world.stable()
    second, reply = world.admitted()
    now(world.leave((second, None)))
    assert now(reply).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("group", "top", "member"),
    [
        ("other", ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID]),
        ("", ErrorCode.INVALID_GROUP_ID, []),
    ],
)
def test_leaving_a_group_that_is_not_there(group, top, member):
    response = now(GroupHarness().leave(("m", None), group=group))
    assert response.error_code == top
    assert [entry.error_code for entry in response.members] == member
