"""A member joins its group with a scripted coordinator."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from headrace.clients.assignors import RangeAssignor
from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.classic import ClassicProtocolMember
from headrace.clients.consumer.member import NewAssignment
from headrace.clients.engine import Engine
from headrace.clients.flows.classic_group import (
    REBALANCE_SLACK_MS,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace.types import TopicPartition
from tests.unit.clients.flows.test_groups import coordinated
from tests.unit.clients.scripted import ScriptedDriver, known_state

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Group:
    """A coordinator that answers joins with scripted error codes."""

    def __init__(self, join_codes=(), sync_codes=(), *, leader: bool = True) -> None:
        self.join_codes = list(join_codes)
        self.sync_codes = list(sync_codes)
        self.leader = leader
        self.generation = 0
        self.synced: list[SyncGroupRequest] = []
        self.members: list[str] = []

    def answer(self, call):
        if isinstance(call.request, JoinGroupRequest):
            return self._join(call.request)
        assert isinstance(call.request, SyncGroupRequest)
        self.synced.append(call.request)
        code = self.sync_codes.pop(0) if self.sync_codes else 0
        if code:
            return SyncGroupResponse(error_code=code)
        return SyncGroupResponse(assignment=encode_assignment([T1]))

    def _join(self, request: JoinGroupRequest) -> JoinGroupResponse:
        self.members.append(request.member_id)
        code = self.join_codes.pop(0) if self.join_codes else 0
        member = request.member_id or "m-1"
        if code:
            return JoinGroupResponse(error_code=code, member_id=member)
        self.generation += 1
        members = [
            JoinGroupResponseMember(member_id=name, metadata=encode_subscription(frozenset("t")))
            for name in (member, "z")
        ]
        return JoinGroupResponse(
            generation_id=self.generation,
            protocol_name="range",
            leader=member if self.leader else "z",
            member_id=member,
            members=members if self.leader else [],
        )


class Home:
    """The consumer of a member that owns nothing."""

    owned: ClassVar[list[TopicPartition]] = []
    failures: ClassVar[list[Exception]] = []
    assignor = None

    def subscribed(self):
        yield from ()
        return frozenset("t")

    def count_partitions(self, topics):
        assert topics == frozenset("t")
        yield from ()
        return {"t": 2}

    def failed(self, error: Exception) -> None:
        raise AssertionError(error)

    def warn(self, text: str) -> None:
        raise AssertionError(text)


class Silent:
    lost_connections = 0

    def submit(self, call, deadline_ms, on_done) -> None:
        """Drop heartbeats without a response."""


def join_group(
    group: Group, member_id: str = ""
) -> tuple[NewAssignment, ClassicProtocolMember, ScriptedDriver]:
    driver = ScriptedDriver(coordinated(group.answer))
    engine = Engine(
        known_state({}), Silent(), now_ms=0, request_timeout_ms=1000, jitter=lambda: 1.0
    )
    home: Any = Home()
    member = ClassicProtocolMember(
        engine, ConsumerConfig(group_id="g"), [RangeAssignor()], home, home
    )
    member.member_id = member_id
    return driver.run(member._converse()), member, driver


def test_the_leader_computes_the_assignment_for_all() -> None:
    group = Group(join_codes=[ErrorCode.MEMBER_ID_REQUIRED])
    arrival, member, driver = join_group(group)
    assert arrival == NewAssignment(1, (T1,), {"t": 2})
    assert (member.member_id, member.generation) == ("m-1", 1)
    assert group.members == ["", "m-1"], (
        "the id that was given is used in the second join (KIP-394)"
    )
    [sync] = group.synced
    assert {entry.member_id: decode_assignment(entry.assignment) for entry in sync.assignments} == {
        "m-1": [T0],
        "z": [T1],
    }
    assert driver.sleeps == []


def test_a_follower_sends_no_assignment() -> None:
    group = Group(leader=False)
    join_group(group)
    assert group.synced[0].assignments == []


@pytest.mark.parametrize("code", [ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION])
def test_a_rebalance_during_the_sync_starts_over(code: ErrorCode) -> None:
    group = Group(sync_codes=[code])
    arrival, _, _ = join_group(group)
    assert arrival.generation == 2
    assert group.members == ["", "m-1"]


def test_a_forgotten_member_joins_as_a_new_one() -> None:
    group = Group(join_codes=[ErrorCode.UNKNOWN_MEMBER_ID])
    join_group(group, "old")
    assert group.members == ["old", ""]


@pytest.mark.parametrize(
    "code", [ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorCode.INVALID_SESSION_TIMEOUT]
)
def test_a_refused_join_raises_an_error_that_names_the_group(code: ErrorCode) -> None:
    with pytest.raises(ApiError, match="cannot join group 'g'") as raised:
        join_group(Group(join_codes=[code]))
    assert raised.value.code == code


def test_a_join_is_waited_for_as_long_as_a_session_and_then_asked_for_again() -> None:
    _, _, driver = join_group(Group())
    [call] = [call for call in driver.calls if isinstance(call.request, JoinGroupRequest)]
    assert call.timeout_ms == ConsumerConfig().session_timeout_ms + REBALANCE_SLACK_MS
