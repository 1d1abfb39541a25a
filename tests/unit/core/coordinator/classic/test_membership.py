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
    harness = GroupHarness()
    first, _ = harness.stable(2)
    name = {"first": first}.get(member, member)
    assert harness.heartbeat(name, generation, **options) == error
    assert harness.take_records() == []


def test_heartbeats_extend_the_session_of_a_member():
    harness = GroupHarness()
    (first,) = harness.stable()
    for _ in range(10):
        harness.advance(SESSION_MS - 1)
        assert harness.heartbeat(first, 1) == ErrorCode.NONE


def test_heartbeats_are_accepted_while_the_assignment_is_awaited():
    harness = GroupHarness()
    first, _ = harness.admitted()
    for _ in range(3):
        harness.advance(SESSION_MS - 1)
        assert harness.heartbeat(first, 1) == ErrorCode.NONE
    assert harness.group().state is GroupState.COMPLETING_REBALANCE


def test_a_heartbeat_while_loading_is_answered_without_an_error():
    harness = GroupHarness()
    (first,) = harness.stable()
    harness.coordinator.begin(0)
    assert harness.heartbeat(first, 1) == ErrorCode.NONE
    assert now(harness.join(first)).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# --- sessions ---


def test_a_member_without_heartbeats_is_removed():
    harness = GroupHarness()
    first, second = harness.stable(2)
    harness.advance(SESSION_MS - 1)
    harness.heartbeat(first, 2)
    harness.advance(1)
    assert harness.heartbeat(first, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.heartbeat(second, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert harness.take_records() == []


def test_the_expiry_of_the_last_member_writes_an_empty_generation():
    harness = GroupHarness()
    harness.stable()
    harness.advance(SESSION_MS)
    assert harness.take_records() == [
        GenerationRecord("g", EMPTY._replace(state_timestamp_ms=START_MS + SESSION_MS))
    ]
    assert harness.group().state is GroupState.EMPTY


def test_a_member_that_had_not_joined_yet_expires_and_completes_the_join_phase():
    harness = GroupHarness()
    first, second = harness.stable(2)
    reply = harness.join(first)
    harness.advance(SESSION_MS)
    assert now(reply).generation_id == 3
    assert second not in harness.group().members


def test_a_member_answered_after_a_long_pause_has_a_full_session():
    """All timers are due at once: the join phase ends and answers members whose old sessions are due too."""
    harness = GroupHarness()
    first, second = harness.stable(2, rebalance_ms=20_000, session_ms=30_000)
    reply = harness.join(first, rebalance_ms=20_000, session_ms=30_000)
    harness.now_ms += 100_000
    harness.coordinator.expire(harness.now_ms)
    assert now(reply).generation_id == 3
    assert list(harness.group().members) == [first]
    assert second not in harness.group().members
    harness.advance(20_000 - 1)
    assert harness.heartbeat(first, 3) == ErrorCode.NONE


# --- leave ---


def test_the_leave_of_the_last_member_writes_an_empty_generation():
    harness = GroupHarness()
    (first,) = harness.stable()
    assert now(harness.leave((first, None))) == LeaveGroupResponse(
        members=[MemberResponse(member_id=first, group_instance_id=None)]
    )
    assert harness.take_records() == [GenerationRecord("g", EMPTY)]


def test_a_leaving_member_makes_the_others_join_again():
    harness = GroupHarness()
    first, second = harness.stable(2)
    now(harness.leave((first, None)))
    assert harness.take_records() == []
    assert harness.heartbeat(second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.heartbeat(first, 2) == ErrorCode.UNKNOWN_MEMBER_ID
    assert now(harness.join(second)).leader == second


def test_each_member_of_a_joint_leave_has_its_own_result():
    harness = GroupHarness()
    first, second, third = harness.stable(3)
    response = now(harness.leave((first, None), ("stranger", None), (second, "i"), (second, None)))
    assert [member.error_code for member in response.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert response.error_code == ErrorCode.NONE
    assert list(harness.group().members) == [third]


def test_leaving_completes_the_rebalance_that_waited_for_the_leaver():
    harness = GroupHarness()
    first, second = harness.stable(2)
    reply = harness.join(first)
    assert parked(reply)
    now(harness.leave((second, None)))
    assert now(reply).generation_id == 3


def test_an_unused_member_id_can_leave_without_a_rebalance():
    harness = GroupHarness()
    (first,) = harness.stable()
    given = now(harness.join()).member_id
    assert now(harness.leave((given, None))).members[0].error_code == ErrorCode.NONE
    assert harness.group().state is GroupState.STABLE
    assert harness.heartbeat(first, 1) == ErrorCode.NONE
    assert now(harness.join(given)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_leaver_with_a_parked_join_is_answered():
    harness = GroupHarness()
    harness.stable()
    second, reply = harness.admitted()
    now(harness.leave((second, None)))
    assert now(reply).error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize(
    ("group", "top", "member"),
    [
        ("other", ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID]),
        ("", ErrorCode.INVALID_GROUP_ID, []),
    ],
)
def test_leaving_an_unknown_or_unnamed_group_is_refused(group, top, member):
    response = now(GroupHarness().leave(("m", None), group=group))
    assert response.error_code == top
    assert [entry.error_code for entry in response.members] == member
