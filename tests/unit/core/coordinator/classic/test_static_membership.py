"""Static members (KIP-345): an assignment belongs to the instance id, whichever member has the id at the moment."""

from __future__ import annotations

import pytest

from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import GenerationRecord
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from headrace.protocol.messages.leave_group import MemberResponse
from tests.fixtures.group_harness import (
    REBALANCE_MS,
    SESSION_MS,
    GroupHarness,
    assignment,
    member_id,
    now,
    parked,
    subscription,
)

A, B = member_id(1, "a"), member_id(2, "b")


@pytest.fixture
def harness() -> GroupHarness:
    """Static members a (the leader) and b, Stable in generation 2."""
    harness = GroupHarness()
    assert now(harness.join(instance="a")).member_id == A
    second = harness.join(instance="b")
    now(harness.join(A, instance="a"))
    assert now(second).member_id == B
    follower = harness.sync_group(B, 2, instance="b")
    leader = harness.sync_group(A, 2, {A: assignment("t", 0), B: assignment("t", 1)}, instance="a")
    assert (now(leader).error_code, now(follower).error_code) == (0, 0)
    harness.take_records()
    return harness


def test_a_static_member_needs_no_second_request_to_join():
    harness = GroupHarness()
    response = now(harness.join(instance="a"))
    assert (response.error_code, response.member_id) == (ErrorCode.NONE, A)
    assert harness.take_generation().members[0].instance_id == "a"


def test_a_restarted_static_follower_replaces_itself_without_a_rebalance(harness):
    before = harness.group().generation
    new = member_id(3, "b")
    assert now(harness.join(instance="b")) == JoinGroupResponse(
        generation_id=2,
        protocol_type="consumer",
        protocol_name="range",
        leader=A,
        member_id=new,
    )
    replaced = before.members[1]._replace(member_id=new)
    assert harness.take_records() == [
        GenerationRecord("g", before._replace(members=(before.members[0], replaced)))
    ]
    assert harness.group().state is GroupState.STABLE
    assert now(harness.sync_group(new, 2, instance="b")).assignment == assignment("t", 1)
    assert harness.heartbeat(A, 2, instance="a") == ErrorCode.NONE


def test_a_restarted_leader_has_to_skip_the_assignment(harness):
    new = member_id(3, "a")
    response = now(harness.join(instance="a", version=9))
    assert (response.leader, response.skip_assignment, response.generation_id) == (new, True, 2)
    assert response.members == [
        JoinGroupResponseMember(member_id=new, group_instance_id="a", metadata=subscription("t")),
        JoinGroupResponseMember(member_id=B, group_instance_id="b", metadata=subscription("t")),
    ]
    assert harness.group().generation.leader == new


def test_an_older_client_that_leads_receives_the_response_of_a_follower(harness):
    response = now(harness.join(instance="a", version=8))
    assert (response.leader, response.skip_assignment, response.members) == (A, False, [])
    assert harness.group().generation.leader == response.member_id
    assert now(harness.sync_group(response.member_id, 2, instance="a")).assignment == (
        assignment("t", 0)
    )


def test_the_former_member_with_an_instance_id_is_fenced(harness):
    now(harness.join(instance="b"))
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert harness.heartbeat(B, 2, instance="b") == fenced
    assert now(harness.sync_group(B, 2, instance="b")).error_code == fenced
    assert now(harness.join(B, instance="b")).error_code == fenced
    assert harness.commit_code({("t", 1): 5}, member=B, generation=2, instance="b") == fenced
    (left,) = now(harness.leave((B, "b"))).members
    assert left.error_code == fenced
    assert harness.offsets() == {}


def test_an_unknown_instance_id_is_an_unknown_member(harness):
    assert harness.heartbeat(A, 2, instance="z") == ErrorCode.UNKNOWN_MEMBER_ID


def test_another_subscription_rebalances(harness):
    assert parked(harness.join(instance="b", protocols={"range": subscription("t", "u")}))
    assert harness.group().state is GroupState.PREPARING_REBALANCE


def test_changed_user_data_does_not_rebalance(harness):
    metadata = subscription("t", user_data=b"what it owned")
    assert now(harness.join(instance="b", protocols={"range": metadata})).generation_id == 2
    assert harness.group().state is GroupState.STABLE


def test_another_elected_protocol_rebalances(harness):
    protocols = {"range": subscription("t"), "sticky": subscription("t")}
    assert now(harness.join(instance="b", protocols=protocols)).generation_id == 2
    response = now(harness.join(instance="b", protocols={"sticky": subscription("t")}))
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_instance_id_stays_with_its_member_if_the_new_one_cannot_be_written(harness):
    harness.log.failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
    response = now(harness.join(instance="b"))
    assert response == JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
    harness.log.failure = None
    assert harness.heartbeat(B, 2, instance="b") == ErrorCode.NONE


def test_a_static_member_that_restarts_during_a_rebalance_replaces_itself(harness):
    waiting = harness.join(B, instance="b", protocols={"range": subscription("u")})
    assert parked(waiting)
    new = harness.join(instance="b")
    assert now(waiting).error_code == ErrorCode.FENCED_INSTANCE_ID
    now(harness.join(A, instance="a"))
    assert now(new).generation_id == 3
    assert list(harness.group().members) == [A, now(new).member_id]


def test_a_static_member_that_restarts_before_the_assignment_rebalances(harness):
    leader = harness.join(A, instance="a")
    follower = harness.join(B, instance="b")
    assert now(leader).generation_id == now(follower).generation_id == 3
    waiting = harness.sync_group(B, 3, instance="b")
    new = harness.join(instance="b")
    assert now(waiting).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert parked(new)
    assert harness.heartbeat(A, 3, instance="a") == ErrorCode.REBALANCE_IN_PROGRESS


def test_an_absent_static_member_keeps_its_assignment_until_its_session_expires(harness):
    reply = harness.join(A, instance="a")
    for _ in range(REBALANCE_MS // 5_000 + 1):
        if not parked(reply):
            break
        harness.advance(5_000)
        harness.heartbeat(B, 2, instance="b")
    assert now(reply).generation_id == 3
    assert {member.member_id for member in now(reply).members} == {A, B}
    now(harness.sync_group(A, 3, {A: b"all", B: b"some"}, instance="a"))
    for _ in range(3):
        harness.advance(SESSION_MS // 2)
        harness.heartbeat(A, 3, instance="a")
    assert B not in harness.group().members


def test_static_members_that_are_all_away_are_waited_for_until_their_sessions_end(harness):
    assert parked(harness.join(instance="c"))
    now(harness.leave(("", "c")))
    for _ in range(20):
        harness.advance(SESSION_MS // 2)
        harness.heartbeat(A, 2, instance="a")
    assert list(harness.group().members) == [A]
    harness.advance(REBALANCE_MS * 3)
    assert harness.group().state is GroupState.EMPTY


def test_an_administrator_removes_a_static_member_by_instance_id(harness):
    response = now(harness.leave(("", "b"), ("", "z")))
    assert response.members == [
        MemberResponse(member_id="", group_instance_id="b"),
        MemberResponse(member_id="", group_instance_id="z", error_code=ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    assert list(harness.group().members) == [A]
    assert harness.group().state is GroupState.PREPARING_REBALANCE


def test_a_static_member_keeps_its_assignment_after_a_restart_of_the_broker(harness):
    harness.restart()
    response = now(harness.join(instance="b"))
    assert (response.error_code, response.generation_id) == (ErrorCode.NONE, 2)
    assert harness.group().state is GroupState.STABLE


def test_a_full_group_accepts_a_static_member_that_replaces_itself():
    harness = GroupHarness(group_max_size=1)
    now(harness.join(instance="a"))
    now(harness.sync_group(A, 1, {A: b""}, instance="a"))
    assert now(harness.join(instance="a")).error_code == ErrorCode.NONE
    assert now(harness.join(instance="b")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
