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
def world() -> GroupHarness:
    """Static members a (the leader) and b, Stable in generation 2."""
    world = GroupHarness()
    assert now(world.join(instance="a")).member_id == A
    second = world.join(instance="b")
    now(world.join(A, instance="a"))
    assert now(second).member_id == B
    follower = world.sync_group(B, 2, instance="b")
    leader = world.sync_group(A, 2, {A: assignment("t", 0), B: assignment("t", 1)}, instance="a")
    assert (now(leader).error_code, now(follower).error_code) == (0, 0)
    world.take_records()
    return world


def test_a_static_member_needs_no_second_request_to_join():
    world = GroupHarness()
    response = now(world.join(instance="a"))
    assert (response.error_code, response.member_id) == (ErrorCode.NONE, A)
    assert world.take_generation().members[0].instance_id == "a"


def test_a_follower_that_restarted_takes_its_place_without_a_rebalance(world):
    before = world.group().generation
    new = member_id(3, "b")
    assert now(world.join(instance="b")) == JoinGroupResponse(
        generation_id=2,
        protocol_type="consumer",
        protocol_name="range",
        leader=A,
        member_id=new,
    )
    replaced = before.members[1]._replace(member_id=new)
    assert world.take_records() == [
        GenerationRecord("g", before._replace(members=(before.members[0], replaced)))
    ]
    assert world.group().state is GroupState.STABLE
    assert now(world.sync_group(new, 2, instance="b")).assignment == assignment("t", 1)
    assert world.heartbeat(A, 2, instance="a") == ErrorCode.NONE


def test_a_restarted_leader_has_to_skip_the_assignment(world):
    new = member_id(3, "a")
    response = now(world.join(instance="a", version=9))
    assert (response.leader, response.skip_assignment, response.generation_id) == (new, True, 2)
    assert response.members == [
        JoinGroupResponseMember(member_id=new, group_instance_id="a", metadata=subscription("t")),
        JoinGroupResponseMember(member_id=B, group_instance_id="b", metadata=subscription("t")),
    ]
    assert world.group().generation.leader == new


def test_an_older_client_that_leads_receives_the_response_of_a_follower(world):
    response = now(world.join(instance="a", version=8))
    assert (response.leader, response.skip_assignment, response.members) == (A, False, [])
    assert world.group().generation.leader == response.member_id
    assert now(world.sync_group(response.member_id, 2, instance="a")).assignment == (
        assignment("t", 0)
    )


def test_the_former_member_with_an_instance_id_is_fenced(world):
    now(world.join(instance="b"))
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert world.heartbeat(B, 2, instance="b") == fenced
    assert now(world.sync_group(B, 2, instance="b")).error_code == fenced
    assert now(world.join(B, instance="b")).error_code == fenced
    assert world.commit_code({("t", 1): 5}, member=B, generation=2, instance="b") == fenced
    (left,) = now(world.leave((B, "b"))).members
    assert left.error_code == fenced
    assert world.offsets() == {}


def test_an_unknown_instance_id_is_an_unknown_member(world):
    assert world.heartbeat(A, 2, instance="z") == ErrorCode.UNKNOWN_MEMBER_ID


def test_another_subscription_rebalances(world):
    assert parked(world.join(instance="b", protocols={"range": subscription("t", "u")}))
    assert world.group().state is GroupState.PREPARING_REBALANCE


def test_changed_user_data_does_not_rebalance(world):
    metadata = subscription("t", user_data=b"what it owned")
    assert now(world.join(instance="b", protocols={"range": metadata})).generation_id == 2
    assert world.group().state is GroupState.STABLE


def test_another_elected_protocol_rebalances(world):
    protocols = {"range": subscription("t"), "sticky": subscription("t")}
    assert now(world.join(instance="b", protocols=protocols)).generation_id == 2
    response = now(world.join(instance="b", protocols={"sticky": subscription("t")}))
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_instance_id_stays_with_its_member_if_the_new_one_cannot_be_written(world):
    world.log.failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
    response = now(world.join(instance="b"))
    assert response == JoinGroupResponse(error_code=ErrorCode.NOT_COORDINATOR)
    world.log.failure = None
    assert world.heartbeat(B, 2, instance="b") == ErrorCode.NONE


def test_a_static_member_that_restarts_during_a_rebalance_replaces_itself(world):
    waiting = world.join(B, instance="b", protocols={"range": subscription("u")})
    assert parked(waiting)
    new = world.join(instance="b")
    assert now(waiting).error_code == ErrorCode.FENCED_INSTANCE_ID
    now(world.join(A, instance="a"))
    assert now(new).generation_id == 3
    assert list(world.group().members) == [A, now(new).member_id]


def test_a_static_member_that_restarts_before_the_assignment_rebalances(world):
    leader = world.join(A, instance="a")
    follower = world.join(B, instance="b")
    assert now(leader).generation_id == now(follower).generation_id == 3
    waiting = world.sync_group(B, 3, instance="b")
    new = world.join(instance="b")
    assert now(waiting).error_code == ErrorCode.FENCED_INSTANCE_ID
    assert parked(new)
    assert world.heartbeat(A, 3, instance="a") == ErrorCode.REBALANCE_IN_PROGRESS


def test_an_absent_static_member_keeps_its_place_until_its_session_ends(world):
    reply = world.join(A, instance="a")
    for _ in range(REBALANCE_MS // 5_000 + 1):
        if not parked(reply):
            break
        world.advance(5_000)
        world.heartbeat(B, 2, instance="b")
    assert now(reply).generation_id == 3
    assert {member.member_id for member in now(reply).members} == {A, B}
    now(world.sync_group(A, 3, {A: b"all", B: b"some"}, instance="a"))
    for _ in range(3):
        world.advance(SESSION_MS // 2)
        world.heartbeat(A, 3, instance="a")
    assert B not in world.group().members


def test_static_members_that_are_all_away_are_waited_for_until_their_sessions_end(world):
    assert parked(world.join(instance="c"))
    now(world.leave(("", "c")))
    for _ in range(20):
        world.advance(SESSION_MS // 2)
        world.heartbeat(A, 2, instance="a")
    assert list(world.group().members) == [A]
    world.advance(REBALANCE_MS * 3)
    assert world.group().state is GroupState.EMPTY


def test_an_administrator_removes_a_static_member_by_instance_id(world):
    response = now(world.leave(("", "b"), ("", "z")))
    assert response.members == [
        MemberResponse(member_id="", group_instance_id="b"),
        MemberResponse(member_id="", group_instance_id="z", error_code=ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    assert list(world.group().members) == [A]
    assert world.group().state is GroupState.PREPARING_REBALANCE


def test_a_static_member_keeps_its_assignment_after_a_restart_of_the_broker(world):
    world.restart()
    response = now(world.join(instance="b"))
    assert (response.error_code, response.generation_id) == (ErrorCode.NONE, 2)
    assert world.group().state is GroupState.STABLE


def test_a_full_group_lets_a_static_member_take_its_place_again():
    world = GroupHarness(group_max_size=1)
    now(world.join(instance="a"))
    now(world.sync_group(A, 1, {A: b""}, instance="a"))
    assert now(world.join(instance="a")).error_code == ErrorCode.NONE
    assert now(world.join(instance="b")).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
