"""B3 and B4: the life of a group on the server, step by step, and its errors under Kafka's names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace import TopicPartition
from headrace.clients.config import ClientConfig
from headrace.clients.drivers import open_blocking_driver
from headrace.clients.flows import classic_group
from headrace.clients.flows.classic_group import (
    ClassicMemberSettings,
    Membership,
    encode_subscription,
)
from headrace.clients.flows.coordinator import find_coordinator
from headrace.clients.flows.offsets import (
    CommitIdentity,
    OffsetAndMetadata,
    commit_offsets,
    committed_offsets,
)
from headrace.errors import ApiError, ErrorCode, UnknownAssignorError
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupRequestAssignment, SyncGroupResponse
from tests.acceptance.place import QUICK, Member, Place, until
from tests.fixtures.consumer_simulation import ConsumerSimulation, rebalance

YOURS = classic_group.encode_assignment([TopicPartition("t", 0)])


class Peer:
    """A member by hand: one method a request."""

    def __init__(self, place: Place, group: str) -> None:
        self.place = place
        self.settings = ClassicMemberSettings(
            group_id=group, session_timeout_ms=6_000, rebalance_timeout_ms=6_000
        )
        where: dict[str, Any] = (
            {} if place.name == "in process" else {"bootstrap_servers": place.target}
        )
        self.driver = open_blocking_driver(place.target, ClientConfig(**QUICK, **where))
        self.state = self.driver.engine.state
        self.member = Membership("", -1)

    def join(self, assignor: str = "range", **settings: Any) -> JoinGroupResponse:
        chosen = ClassicMemberSettings(**{**vars_of(self.settings), **settings})
        protocols = [(assignor, encode_subscription(["t"]))]
        join = classic_group.join_group(self.state, chosen, self.member.member_id, protocols)
        answer = self.driver.run(join)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            again = classic_group.join_group(self.state, chosen, answer.member_id, protocols)
            answer = self.driver.run(again)
        if not answer.error_code:
            self.member = Membership(answer.member_id, answer.generation_id)
        return answer

    def sync(self, joined: JoinGroupResponse) -> SyncGroupResponse:
        everything = [
            SyncGroupRequestAssignment(member_id=one.member_id, assignment=YOURS)
            for one in joined.members
        ]
        return self.driver.run(
            classic_group.sync_group(self.state, self.settings, joined, everything)
        )

    def heartbeat(self, member_id: str | None = None, generation: int | None = None) -> ErrorCode:
        who = Membership(
            self.member.member_id if member_id is None else member_id,
            self.member.generation_id if generation is None else generation,
        )
        response = self.driver.run(classic_group.heartbeat(self.state, self.settings, who))
        return ErrorCode(response.error_code)

    def commit(self, topic: str, generation: int) -> None:
        who = CommitIdentity(generation, self.member.member_id)
        offsets = {TopicPartition(topic, 0): OffsetAndMetadata(3)}
        self.driver.run(commit_offsets(self.state, self.settings.group_id, offsets, who))


def vars_of(settings: ClassicMemberSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__slots__}


@pytest.fixture
def peer(place, name) -> Iterator[Peer]:
    one = Peer(place, name)
    yield one
    one.driver.close()


def stable(peer: Peer) -> Peer:
    joined = peer.join()
    assert joined.error_code == ErrorCode.NONE
    assert peer.sync(joined).error_code == ErrorCode.NONE
    return peer


def test_b3_a_groups_coordinator_is_found_by_its_name(peer, name) -> None:
    node = peer.driver.run(find_coordinator(peer.state, name))
    assert node in peer.state.metadata.brokers


def test_b3_a_member_joins_syncs_sends_heartbeats_and_leaves(peer, place, name) -> None:
    joined = peer.join()
    assert joined.member_id == joined.leader
    assert joined.generation_id == 1
    assert bytes(peer.sync(joined).assignment) == YOURS
    assert peer.heartbeat() is ErrorCode.NONE
    assert place.admin().describe_group(name).state == "Stable"
    peer.driver.run(classic_group.leave(peer.state, peer.settings, peer.member))
    assert place.admin().describe_group(name).state == "Empty"


def test_b3_a_rebalance_makes_a_new_generation(peer) -> None:
    stable(peer)
    assert peer.join().generation_id in {1, 2}, "Kafka and Headrace: a leader's join begins one"
    assert peer.heartbeat() in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}


def test_b3_a_session_without_heartbeats_ends(peer, place, name) -> None:
    joined = peer.join(session_timeout_ms=1_000)
    peer.sync(joined)
    until(lambda: place.admin().describe_group(name).state == "Empty")
    assert peer.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_b3_offsets_are_kept_by_the_coordinator(peer, place, name) -> None:
    topic = place.topic(name)
    stable(peer).commit(topic, peer.member.generation_id)
    zero = TopicPartition(topic, 0)
    found = peer.driver.run(committed_offsets(peer.state, name, [zero]))
    assert found[zero].offset == 3


def test_b4_an_unknown_member_id_is_refused(peer) -> None:
    stable(peer)
    assert peer.heartbeat(member_id="nobody") is ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("step", [-1, 1], ids=["older", "newer"])
def test_b4_an_illegal_generation_is_refused(peer, place, name, step) -> None:
    topic = place.topic(name)
    generation = stable(peer).member.generation_id
    assert peer.heartbeat(generation=generation + step) is ErrorCode.ILLEGAL_GENERATION
    with pytest.raises(ApiError) as refused:
        peer.commit(topic, generation + step)
    assert refused.value.code is ErrorCode.ILLEGAL_GENERATION


def test_b4_a_heartbeat_reports_a_rebalance(peer, place, name) -> None:
    stable(peer)
    newcomer = Member(place, name, ["t"])
    until(lambda: peer.heartbeat() is ErrorCode.REBALANCE_IN_PROGRESS, newcomer)


def test_b4_an_inconsistent_group_protocol_is_refused(peer, place, name) -> None:
    stable(peer)
    other = Peer(place, name)
    answer = other.join("sticky")
    other.driver.close()
    assert answer.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_b4_an_unknown_strategy_is_a_client_error(place, name) -> None:
    with pytest.raises(UnknownAssignorError, match=r"stikky.*did you mean 'sticky'"):
        place.consumer(name, assignor="stikky")


@pytest.mark.parametrize("session_ms", [10, 10_000_000])
def test_b4_an_invalid_session_timeout_is_refused(peer, session_ms) -> None:
    answer = peer.join(session_timeout_ms=session_ms)
    assert answer.error_code == ErrorCode.INVALID_SESSION_TIMEOUT


@pytest.mark.parametrize(
    "code", [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR]
)
def test_b4_a_member_retries_while_its_coordinator_loads_or_moves(code) -> None:
    """One broker is never without its groups for long: the answers are put in."""
    harness = ConsumerSimulation()
    harness.broker.create_topic("t", partitions=2)
    members = [harness.consumer(group="g", assignor="equal") for _ in range(2)]
    for member in members:
        member.subscribe(["t"])
    rebalance(*members)
    told: list[Any] = []

    def elsewhere(_program: Any, call: Any) -> HeartbeatResponse | None:
        if isinstance(call.request, HeartbeatRequest) and len(told) < 6:
            told.append(call)
            return HeartbeatResponse(error_code=code)
        return None

    generations = [member.core.group_metadata().generation_id for member in members]
    harness.fault = elsewhere
    rebalance(*members, rounds=60)
    assert len(told) == 6
    assert [member.core.group_metadata().generation_id for member in members] == generations
