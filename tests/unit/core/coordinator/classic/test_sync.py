"""SyncGroup: members receive their assignments when the leader's assignment is durable."""

from __future__ import annotations

import pytest

from headrace.core.coordinator.state.classic_states import GroupState
from headrace.core.coordinator.state.records import GenerationRecord
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.sync_group import SyncGroupResponse
from tests.fixtures.group_harness import (
    REBALANCE_MS,
    SESSION_MS,
    GroupHarness,
    assignment,
    now,
    parked,
)


class Harness(GroupHarness):
    """Members one (the leader) and two, in generation 2, which has no assignment yet."""

    def __init__(self) -> None:
        super().__init__()
        self.one, _ = self.admitted()
        self.two, reply = self.admitted()
        now(self.join(self.one))
        assert now(reply).generation_id == 2
        self.take_records()


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_followers_wait_for_the_leader(harness):
    follower = harness.sync_group(harness.two, 2)
    assert parked(follower)
    before = harness.group().generation
    leader = harness.sync_group(
        harness.one, 2, {harness.one: assignment("t", 0), harness.two: assignment("t", 1)}
    )
    assert now(leader) == SyncGroupResponse(
        protocol_type="consumer", protocol_name="range", assignment=assignment("t", 0)
    )
    assert now(follower).assignment == assignment("t", 1)
    members = tuple(
        member._replace(assignment=assignment("t", index))
        for index, member in enumerate(before.members)
    )
    stable = before._replace(state=GroupState.STABLE, members=members)
    assert harness.take_records() == [GenerationRecord("g", stable)]
    assert harness.group().state is GroupState.STABLE


def test_a_late_sync_receives_the_assignment_at_once(harness):
    now(harness.sync_group(harness.one, 2, {harness.two: b"yours"}))
    assert now(harness.sync_group(harness.two, 2)).assignment == b"yours"
    assert now(harness.sync_group(harness.two, 2)).assignment == b"yours"


def test_a_member_without_an_assignment_receives_empty_bytes(harness):
    follower = harness.sync_group(harness.two, 2)
    now(harness.sync_group(harness.one, 2, {harness.one: b"all", "stranger": b"?"}))
    assert now(follower) == SyncGroupResponse(protocol_type="consumer", protocol_name="range")
    assert len(harness.group().generation.members) == 2


@pytest.mark.parametrize(
    ("member", "generation", "options", "error"),
    [
        ("stranger", 2, {}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("two", 1, {}, ErrorCode.ILLEGAL_GENERATION),
        ("two", 3, {}, ErrorCode.ILLEGAL_GENERATION),
        ("two", 2, {"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("two", 2, {"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ("two", 2, {"group": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ("two", 2, {"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ("two", 2, {"instance": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_a_sync_with_a_wrong_generation_or_protocol_is_refused(
    harness, member, generation, options, error
):
    name = getattr(harness, member, member)
    assert now(harness.sync_group(name, generation, **options)).error_code == error
    assert harness.take_records() == []


def test_older_clients_need_not_name_the_protocol(harness):
    reply = harness.sync_group(harness.two, 2, protocol_type=None, protocol_name=None)
    assert parked(reply)


def test_a_new_member_sends_the_waiting_back_to_join(harness):
    follower = harness.sync_group(harness.two, 2)
    harness.admitted()
    assert now(follower).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    late = harness.sync_group(harness.one, 2, {harness.one: b"x"})
    assert now(late).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert harness.take_records() == []


def test_a_member_that_leaves_sends_the_waiting_back_to_join(harness):
    follower = harness.sync_group(harness.two, 2)
    now(harness.leave((harness.one, None)))
    assert now(follower).error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_leaver_with_a_parked_sync_is_answered(harness):
    follower = harness.sync_group(harness.two, 2)
    now(harness.leave((harness.two, None)))
    assert now(follower).error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_repeated_sync_answers_the_one_before(harness):
    lost = harness.sync_group(harness.two, 2)
    again = harness.sync_group(harness.two, 2)
    assert now(lost).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert parked(again)


def test_a_member_that_does_not_sync_in_time_is_removed(harness):
    follower = harness.sync_group(harness.two, 2)
    for _ in range(REBALANCE_MS // 5_000):
        assert parked(follower)
        harness.heartbeat(harness.one, 2)  # alive, but it never sends its assignment
        harness.advance(5_000)
    assert now(follower).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert list(harness.group().members) == [harness.two]
    assert now(harness.join(harness.two)).leader == harness.two


def test_a_member_of_a_stable_group_that_does_not_sync_in_time_is_removed(harness):
    now(harness.sync_group(harness.one, 2, {}))
    for _ in range(REBALANCE_MS // 5_000):
        for member in (harness.one, harness.two):
            assert harness.heartbeat(member, 2) == ErrorCode.NONE
        harness.advance(5_000)
    assert list(harness.group().members) == [harness.one]
    assert harness.group().state is GroupState.PREPARING_REBALANCE


def test_no_member_is_removed_after_all_have_synced(harness):
    now(harness.sync_group(harness.one, 2, {}))
    now(harness.sync_group(harness.two, 2))
    for _ in range(3 * REBALANCE_MS // 5_000):
        for member in (harness.one, harness.two):
            assert harness.heartbeat(member, 2) == ErrorCode.NONE
        harness.advance(5_000)
    assert harness.group().state is GroupState.STABLE


def test_a_waiting_member_does_not_expire_and_has_a_full_session_from_the_answer(harness):
    follower = harness.sync_group(harness.two, 2)
    for _ in range(4):
        harness.advance(SESSION_MS - 1)
        harness.heartbeat(harness.one, 2)
    now(harness.sync_group(harness.one, 2, {}))
    assert now(follower).error_code == ErrorCode.NONE
    harness.advance(SESSION_MS - 1)
    assert harness.heartbeat(harness.two, 2) == ErrorCode.NONE


def test_a_waiting_member_sent_back_to_join_has_a_full_session_too(harness):
    follower = harness.sync_group(harness.two, 2)
    for _ in range(4):
        harness.advance(SESSION_MS - 1)
        harness.heartbeat(harness.one, 2)
    harness.admitted()
    assert now(follower).error_code == ErrorCode.REBALANCE_IN_PROGRESS
    harness.advance(SESSION_MS - 1)
    assert harness.two in harness.group().members
    harness.advance(1)
    assert harness.two not in harness.group().members


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_an_assignment_that_cannot_be_written_is_asked_for_again(harness, code, told):
    follower = harness.sync_group(harness.two, 2)
    harness.log.failure = ApiError(code)
    leader = harness.sync_group(harness.one, 2, {harness.two: b"yours"})
    assert (now(leader).error_code, now(follower).error_code) == (told, told)
    assert harness.group().state is GroupState.COMPLETING_REBALANCE
    harness.log.failure = None
    now(harness.sync_group(harness.one, 2, {harness.two: b"yours"}))
    assert now(harness.sync_group(harness.two, 2)).assignment == b"yours"
