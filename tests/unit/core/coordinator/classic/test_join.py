"""JoinGroup: which members are accepted, when the join phase completes, which member leads, and what is written."""

from __future__ import annotations

import pytest

from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import Generation, GenerationRecord, StoredMember
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from tests.fixtures.group_harness import (
    REBALANCE_MS,
    SESSION_MS,
    START_MS,
    GroupHarness,
    assignment,
    member_id,
    now,
    parked,
    subscription,
)

TOPIC = subscription("t")


def stored(name: str, *, subscribed: bytes = TOPIC, assigned: bytes = b"") -> StoredMember:
    return StoredMember(
        name, None, "client", "/127.0.0.1", REBALANCE_MS, SESSION_MS, subscribed, assigned
    )


def generation(number: int, *names: str, at_ms: int = START_MS, leader: str = "") -> Generation:
    return Generation(
        number,
        GroupState.COMPLETING_REBALANCE,
        "consumer",
        "range",
        leader or names[0],
        at_ms,
        tuple(stored(name) for name in names),
    )


# --- entry ---


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": "g" * 40_000}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "x" * 40_000}, ErrorCode.INVALID_REQUEST),
        ({"instance": "x" * 40_000}, ErrorCode.INVALID_REQUEST),
        ({"member": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_an_invalid_join_is_refused_and_leaves_no_state(options, error):
    harness = GroupHarness()
    response = now(harness.join(**options))
    assert response.error_code == error
    assert response.member_id == options.get("member", "")
    assert harness.take_records() == []
    assert now(harness.coordinator.list_groups([], [], harness.now_ms)) == (ErrorCode.NONE, [])


@pytest.mark.parametrize("session_ms", [6_000, 1_800_000])
def test_the_bounds_of_the_session_timeout_are_allowed(session_ms):
    assert (
        now(GroupHarness().join(session_ms=session_ms)).error_code == ErrorCode.MEMBER_ID_REQUIRED
    )


def test_a_new_member_receives_an_id_and_joins_with_the_id():
    harness = GroupHarness()
    assert now(harness.join()) == JoinGroupResponse(
        error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id(1)
    )
    assert harness.take_records() == []
    assert now(harness.join(member_id(1))) == JoinGroupResponse(
        generation_id=1,
        protocol_type="consumer",
        protocol_name="range",
        leader=member_id(1),
        member_id=member_id(1),
        members=[JoinGroupResponseMember(member_id=member_id(1), metadata=TOPIC)],
    )
    assert harness.take_records() == [GenerationRecord("g", generation(1, member_id(1)))]
    assert harness.group().state is GroupState.COMPLETING_REBALANCE


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_before_version_4_a_new_member_is_admitted_at_once(version):
    harness = GroupHarness()
    response = now(harness.join(version=version))
    assert (response.error_code, response.generation_id) == (ErrorCode.NONE, 1)


def test_version_0_uses_its_session_timeout_for_the_rebalance():
    harness = GroupHarness()
    now(harness.join(version=0, rebalance_ms=-1))
    assert harness.take_generation().members[0].rebalance_timeout_ms == SESSION_MS


def test_an_id_that_is_not_used_expires_with_its_session():
    harness = GroupHarness()
    given = now(harness.join()).member_id
    harness.advance(SESSION_MS - 1)
    assert given in harness.group().pending
    harness.advance(1)
    assert now(harness.join(given)).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert now(harness.coordinator.list_groups([], [], harness.now_ms))[1] == []


def test_an_unused_member_id_does_not_keep_a_group_from_being_empty():
    harness = GroupHarness()
    (first,) = harness.stable()
    given = now(harness.join()).member_id
    harness.leave((first, None))
    assert harness.group().state is GroupState.EMPTY
    assert harness.commit_code({("t", 0): 5}) == ErrorCode.NONE
    assert now(harness.join(given)).generation_id == 3


def test_the_number_of_pending_member_ids_is_bounded():
    harness = GroupHarness(pending_members_max=3)
    given = [now(harness.join()).member_id for _ in range(5)]
    assert list(harness.group().pending) == given[2:]
    assert now(harness.join(given[0])).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert now(harness.join(given[4])).error_code == ErrorCode.NONE


def test_a_member_id_begins_with_a_bounded_part_of_the_client_id():
    given = now(GroupHarness().join(client="c" * 32_000)).member_id
    assert len(given) == 255 + 37


# --- the initial rebalance ---


def test_an_empty_group_waits_for_more_members():
    harness = GroupHarness(group_initial_rebalance_delay_ms=3_000)
    first, reply = harness.admitted()
    harness.advance(2_999)
    assert parked(reply)
    assert harness.group().state is GroupState.PREPARING_REBALANCE
    harness.advance(1)
    assert now(reply).generation_id == 1
    assert harness.take_records() == [
        GenerationRecord("g", generation(1, first, at_ms=START_MS + 3_000))
    ]


def test_the_initial_delay_grows_while_members_arrive_up_to_the_rebalance_timeout():
    harness = GroupHarness(group_initial_rebalance_delay_ms=3_000)
    options = {"rebalance_ms": 8_000}
    replies = [harness.admitted(**options)[1]]
    for _ in range(3):
        harness.advance(2_500)
        replies.append(harness.admitted(**options)[1])
    assert all(map(parked, replies))
    harness.advance(499)
    assert all(map(parked, replies))
    harness.advance(1)
    assert [now(reply).generation_id for reply in replies] == [1, 1, 1, 1]
    assert len(now(replies[0]).members) == 4
    assert [len(now(reply).members) for reply in replies[1:]] == [0, 0, 0]


def test_a_group_whose_founders_leave_before_its_first_generation_leaves_no_trace():
    harness = GroupHarness(group_initial_rebalance_delay_ms=3_000)
    member, reply = harness.admitted()
    now(harness.leave((member, None)))
    assert now(reply).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    harness.advance(3_000)
    assert harness.take_records() == []
    assert now(harness.coordinator.list_groups([], [], harness.now_ms))[1] == []


# --- the join phase ---


def test_a_new_member_rebalances_a_stable_group_when_all_have_joined_again():
    harness = GroupHarness()
    (first,) = harness.stable()
    second, reply = harness.admitted()
    assert parked(reply)
    assert harness.heartbeat(first, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.take_records() == []
    rejoined = now(harness.join(first))
    assert (rejoined.generation_id, rejoined.leader) == (2, first)
    assert {member.member_id for member in rejoined.members} == {first, second}
    assert (now(reply).generation_id, now(reply).members) == (2, [])
    assert harness.take_records() == [GenerationRecord("g", generation(2, first, second))]


def test_a_member_that_does_not_join_in_time_is_left_out():
    harness = GroupHarness()
    first, second = harness.stable(2)
    harness.join(first)
    for _ in range(REBALANCE_MS // 5_000):
        harness.advance(4_999)
        assert harness.heartbeat(second, 2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.take_records() == []
    harness.advance(REBALANCE_MS // 5_000)
    (record,) = harness.take_records()
    assert record == GenerationRecord("g", generation(3, first, at_ms=START_MS + REBALANCE_MS))
    assert harness.heartbeat(second, 2) == ErrorCode.UNKNOWN_MEMBER_ID


def test_the_join_phase_waits_for_the_longest_rebalance_timeout():
    harness = GroupHarness()
    first, _ = harness.stable(2, session_ms=1_000_000)
    harness.join(first, rebalance_ms=90_000)
    harness.advance(89_999)
    assert harness.group().state is GroupState.PREPARING_REBALANCE
    harness.advance(1)
    assert harness.group().state is GroupState.COMPLETING_REBALANCE


def test_the_join_phase_waits_for_pending_member_ids():
    harness = GroupHarness()
    (first,) = harness.stable()
    given = now(harness.join()).member_id
    reply = harness.join(first)
    assert parked(reply)
    assert now(harness.join(given)).generation_id == 2
    assert now(reply).generation_id == 2


def test_the_join_phase_continues_when_a_pending_member_id_expires():
    harness = GroupHarness()
    (first,) = harness.stable(session_ms=1_000_000)
    now(harness.join())
    reply = harness.join(first)
    harness.advance(SESSION_MS)
    assert now(reply).generation_id == 2


def test_a_new_member_that_went_away_while_waiting_is_forgotten_after_five_minutes():
    harness = GroupHarness()
    (first,) = harness.stable(rebalance_ms=1_000_000)
    _, reply = harness.admitted(rebalance_ms=1_000_000)
    for _ in range(60):
        assert parked(reply)
        harness.advance(5_000)
        harness.heartbeat(first, 1)
    assert now(reply).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert list(harness.group().members) == [first]


def test_a_member_waiting_in_join_does_not_expire():
    harness = GroupHarness()
    first, second = harness.stable(2)
    reply = harness.join(first)
    for _ in range(4):
        harness.advance(SESSION_MS - 1)
        harness.heartbeat(second, 2)
    assert parked(reply)
    assert first in harness.group().members


def test_a_repeated_join_answers_the_one_before():
    harness = GroupHarness()
    first, second = harness.stable(2)
    lost = harness.join(first)
    again = harness.join(first)
    assert now(lost).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert parked(again)
    harness.join(second)
    assert now(again).generation_id == 3


def test_a_join_phase_that_cannot_be_written_fails_every_join_and_is_retried():
    harness = GroupHarness()
    (first,) = harness.stable()
    _, reply = harness.admitted()
    harness.log.failure = ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert now(harness.join(first)) == JoinGroupResponse(
        error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, member_id=first
    )
    assert now(reply).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert harness.group().generation.number == 1
    assert harness.heartbeat(first, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    harness.log.failure = None
    second = now(reply).member_id
    retried = harness.join(second)
    assert now(harness.join(first)).generation_id == 2
    assert now(retried).generation_id == 2


# --- the leader ---


def test_the_leader_stays_leader_when_it_joins_again():
    harness = GroupHarness()
    first, second = harness.stable(2)
    reply = harness.join(second, protocols={"range": subscription("t", "u")})
    now(harness.join(first))
    assert now(reply).leader == first


def test_the_first_joined_member_leads_if_the_old_leader_is_missing():
    harness = GroupHarness()
    first, second, third = harness.stable(3)
    now(harness.leave((first, None)))
    early = harness.join(second)
    late = harness.join(third)
    assert now(early).leader == now(late).leader == second
    assert len(now(early).members) == 2


# --- joining again ---


def test_the_leader_of_a_stable_group_rebalances_it_by_joining():
    harness = GroupHarness()
    (first,) = harness.stable()
    assert now(harness.join(first)).generation_id == 2


def test_an_unchanged_follower_of_a_stable_group_gets_the_present_generation():
    harness = GroupHarness()
    first, second = harness.stable(2)
    response = now(harness.join(second))
    assert response == JoinGroupResponse(
        generation_id=2,
        protocol_type="consumer",
        protocol_name="range",
        leader=first,
        member_id=second,
    )
    assert harness.group().state is GroupState.STABLE
    assert harness.take_records() == []


def test_a_changed_follower_rebalances_a_stable_group():
    harness = GroupHarness()
    _, second = harness.stable(2)
    assert parked(harness.join(second, protocols={"range": subscription("other")}))
    assert harness.group().state is GroupState.PREPARING_REBALANCE


def test_while_the_assignment_is_awaited_an_unchanged_member_gets_its_answer_again():
    harness = GroupHarness()
    first, reply = harness.admitted()
    assert now(harness.join(first)) == now(reply)
    assert len(now(reply).members) == 1


def test_while_the_assignment_is_awaited_a_changed_member_rebalances():
    harness = GroupHarness()
    first, _ = harness.admitted()
    response = now(harness.join(first, protocols={"range": subscription("other")}))
    assert response.generation_id == 2


def test_a_known_id_in_an_empty_group_is_unknown():
    harness = GroupHarness()
    (first,) = harness.stable()
    now(harness.leave((first, None)))
    assert harness.group().state is GroupState.EMPTY
    assert now(harness.join(first)).error_code == ErrorCode.UNKNOWN_MEMBER_ID


# --- protocols ---


def test_every_member_votes_for_its_favourite_among_the_common_protocols():
    harness = GroupHarness()
    harness.stable(protocols={"a": b"1", "b": b"1"})
    second, _ = harness.admitted(protocols={"b": b"2", "a": b"2"})
    third, _ = harness.admitted(protocols={"c": b"3", "b": b"3", "a": b"3"})
    response = now(harness.join(member_id(1), protocols={"a": b"1", "b": b"1"}))
    assert response.protocol_name == "b"
    assert [member.metadata for member in response.members] == [b"1", b"2", b"3"]
    assert [second, third] == [member.member_id for member in response.members][1:]


def test_a_member_without_a_common_protocol_is_refused():
    harness = GroupHarness()
    harness.stable(2, protocols={"a": b"", "b": b""})
    response = now(harness.join(protocols={"c": b""}))
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert now(harness.join(protocol_type="connect", protocols={"a": b""})).error_code == (
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    )
    assert harness.group().state is GroupState.STABLE


@pytest.mark.parametrize("protocol_type", ["connect", "sr"])
def test_any_type_of_protocol_can_be_coordinated(protocol_type):
    harness = GroupHarness()
    member, reply = harness.admitted(protocol_type=protocol_type, protocols={"v0": b"\x00any"})
    assert (now(reply).protocol_type, now(reply).protocol_name) == (protocol_type, "v0")
    response = now(
        harness.sync_group(
            member, 1, {member: b"work"}, protocol_type=protocol_type, protocol_name="v0"
        )
    )
    assert response.assignment == b"work"


def test_an_empty_group_accepts_members_of_another_protocol_type():
    harness = GroupHarness()
    (first,) = harness.stable()
    now(harness.leave((first, None)))
    _, reply = harness.admitted(protocol_type="connect", protocols={"v0": b""})
    assert (now(reply).protocol_type, now(reply).generation_id) == ("connect", 3)


# --- size ---


def test_a_full_group_refuses_new_members():
    harness = GroupHarness(group_max_size=2)
    harness.stable(2)
    response = now(harness.join())
    assert response == JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED)
    assert harness.group().state is GroupState.STABLE


def test_a_full_group_keeps_members_that_join_again():
    harness = GroupHarness(group_max_size=2)
    first, second = harness.stable(2)
    reply = harness.join(first)
    assert now(harness.join(second)).error_code == ErrorCode.NONE
    assert now(reply).generation_id == 3


def test_the_last_member_to_join_a_full_rebalance_is_refused():
    harness = GroupHarness(group_max_size=2)
    first, second = harness.stable(2)
    given = now(harness.join()).member_id
    assert given == ""
    leader = harness.join(first)
    assert parked(leader)
    newcomer, reply = harness.admitted()
    assert now(harness.join(second)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert now(reply).generation_id == now(leader).generation_id == 3
    assert set(harness.group().members) == {first, newcomer}


def test_a_loaded_group_that_is_too_large_rebalances_at_once():
    harness = GroupHarness()
    first, second, third = harness.stable(3)
    harness.config = type(harness.config)(group_initial_rebalance_delay_ms=0, group_max_size=2)
    harness.restart()
    assert harness.group().state is GroupState.PREPARING_REBALANCE
    replies = [harness.join(first), harness.join(second)]
    assert now(harness.join(third)).error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert [now(reply).generation_id for reply in replies] == [4, 4]


def test_generations_start_again_at_one_after_the_last_number():
    harness = GroupHarness()
    (first,) = harness.stable()
    group = harness.group()
    group.generation = group.generation._replace(number=2**31 - 1)
    assert now(harness.join(first)).generation_id == 1


def test_a_stored_generation_has_the_protocol_that_the_members_elected():
    harness = GroupHarness()
    (first,) = harness.stable()
    assert harness.group().generation.members[0].assignment == assignment("t", 0)
    assert harness.group().members[first].metadata("range") == TOPIC
