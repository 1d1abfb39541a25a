"""B5: the coordinator is killed at every awkward moment, and members are slow, silent or late. In virtual time.

The members are whole consumers; the broker is killed from within the handling of the request that makes the moment, and
comes back with what it had synced. That the same holds with processes is shown by tests/conformance/group_rounds.
"""

from __future__ import annotations

from typing import Any

import pytest

from headrace import TopicPartition
from headrace.errors import ApiError, ErrorCode, TransportError
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest
from tests.fixtures.consumer_simulation import ConsumerSimulation, Program, rebalance

SERVER_SIDE = "server-side"
"""No assignor of a member's: the protocol `consumer` (KIP-848), where every request is a heartbeat."""
ASSIGNORS = ["range", "equal", SERVER_SIDE]
SAME_AS = {
    JoinGroupRequest: lambda beat: beat.member_epoch == 0,
    SyncGroupRequest: lambda beat: beat.member_epoch > 0 and beat.topic_partitions is not None,
    HeartbeatRequest: lambda beat: beat.member_epoch > 0,
    LeaveGroupRequest: lambda beat: beat.member_epoch < 0,
}
"""The API that the protocol `consumer` uses in place of an API of the classic protocol."""


def is_kind(request: Any, kind: type) -> bool:
    if isinstance(request, ConsumerGroupHeartbeatRequest):
        return kind in SAME_AS and SAME_AS[kind](request)
    return isinstance(request, kind)


class Scenario:
    """A settled group of three members, and a broker that can be killed at the n-th request or answer of a kind."""

    def __init__(
        self, assignor: str, members: int = 3, session_ms: int = 10_000, **options: Any
    ) -> None:
        self.world = ConsumerSimulation(group_consumer_session_timeout_ms=session_ms)
        self.session_ms = session_ms
        self.world.broker.create_topic("t", partitions=6)
        self.assignor = assignor
        self.server_side = assignor == SERVER_SIDE
        self.members = [self.member(**options) for _ in range(members)]
        self.settle()
        self.killed = 0

    def member(self, **options: Any) -> Program:
        protocol = {"assignor": self.assignor, "session_timeout_ms": self.session_ms}
        if self.server_side:
            protocol = {"group_protocol": "consumer"}
        given = {"group": "g", "auto_offset_reset": "earliest", **protocol, **options}
        program = self.world.consumer(**given)
        program.subscribe(["t"])
        return program

    def settle(self, rounds: int = 80) -> None:
        rebalance(*self.members, rounds=rounds)
        held = [one for member in self.members for one in member.assignment()]
        assert sorted(held) == [TopicPartition("t", number) for number in range(6)]
        assert len(set(self.generations)) == 1

    @property
    def generations(self) -> list[int]:
        return [member.core.group_metadata().generation_id for member in self.members]

    def joins(self) -> int:
        calls = [call for member in self.members for call in member.calls]
        return sum(is_kind(call.request, JoinGroupRequest) for call in calls)

    def size(self) -> int:
        """The number of members that the coordinator has."""
        shard = self.world.broker.broker.services.groups._shard_of("g")
        assert shard is not None
        return len((shard.classic_groups.get("g") or shard.consumer_groups["g"]).members)

    def kill_at(self, kind: type, number: int = 1, *, answered: bool = False) -> None:
        """Kill the broker when it receives the n-th request of a kind, or when it has sent the n-th response."""
        seen: list[Any] = []

        def hook(_program: Program, call: Any) -> TransportError | None:
            if not is_kind(call.request, kind):
                return None
            seen.append(call)
            if len(seen) != number:
                return None
            self.killed += 1
            self.world.fault = self.world.lost = None
            self.world.restart_broker(crash=True)
            return None if answered else TransportError("the broker is gone")

        if answered:
            self.world.lost = hook
        else:
            self.world.fault = hook


@pytest.fixture(params=ASSIGNORS)
def scenario(request) -> Scenario:
    return Scenario(request.param)


def test_b5_1_a_coordinator_killed_after_it_noticed_a_change(scenario) -> None:
    """The broker is killed after a member has left and before the other members know."""
    gone = scenario.members.pop()
    scenario.kill_at(LeaveGroupRequest, answered=True)
    gone.close()
    assert scenario.killed == 1
    scenario.settle()


def test_b5_1_a_coordinator_killed_after_it_noticed_a_death(scenario) -> None:
    """The broker is killed after a session has expired and before the other members know."""
    scenario.members.pop().die()
    before = scenario.generations
    while scenario.size() == 3:
        scenario.world.advance(100)
    scenario.world.restart_broker(crash=True)
    scenario.settle()
    assert min(scenario.generations) > max(before)


def test_b5_2_a_coordinator_killed_after_it_notified_some_members(scenario) -> None:
    newcomer = scenario.member()
    scenario.members.append(newcomer)
    scenario.kill_at(HeartbeatRequest, number=2)
    scenario.settle()
    assert scenario.killed == 1


@pytest.mark.parametrize("number", [1, 2, 3])
def test_b5_3_a_coordinator_killed_after_it_received_some_joins(scenario, number) -> None:
    scenario.kill_at(JoinGroupRequest, number=number)
    # Under the classic protocol all join when one does.
    scenario.members += [scenario.member() for _ in range(number if scenario.server_side else 1)]
    scenario.settle()
    assert scenario.killed == 1


@pytest.mark.parametrize("number", [1, 2, 3])
def test_b5_4_a_coordinator_killed_after_the_new_generation_is_durable(scenario, number) -> None:
    """The phase of joins is over and written; its answers are lost one by one."""
    scenario.members.pop().die()
    kind = SyncGroupRequest if scenario.server_side else JoinGroupRequest
    scenario.kill_at(kind, number=min(number, 2), answered=True)
    scenario.settle()
    assert scenario.killed == 1


@pytest.mark.parametrize("number", [1, 2, 3])
def test_b5_5_a_coordinator_killed_after_it_sent_some_responses(scenario, number) -> None:
    scenario.members += [scenario.member() for _ in range(number if scenario.server_side else 1)]
    scenario.kill_at(SyncGroupRequest, number=number, answered=True)
    scenario.settle()
    assert scenario.killed == 1


def test_b5_unchanged_membership_causes_no_rebalance(scenario) -> None:
    generations, joins = scenario.generations, scenario.joins()
    for _ in range(3):
        scenario.world.restart_broker(crash=True)
        scenario.settle()
    assert (scenario.generations, scenario.joins()) == (generations, joins)


@pytest.mark.parametrize("assignor", ["equal", SERVER_SIDE])
@pytest.mark.parametrize("failure", ["a closed connection", "no answer"])
def test_b5_consumers_fetch_while_they_look_for_a_coordinator(failure, assignor) -> None:
    scenario = Scenario(assignor, members=1, session_ms=45_000)  # the default; then it owns nothing
    (reader,) = scenario.members
    scenario.world.fill("t", 6, 200)

    def away(_program: Program, call: Any) -> TransportError | None:
        if call.channel != "group" and not isinstance(call.request, FindCoordinatorRequest):
            return None
        return TransportError("closed" if failure == "a closed connection" else "no answer in time")

    scenario.world.fault = away
    for _ in range(8):
        scenario.world.advance(1_000)
        assert reader.poll(1_000, max_records=10)
    assert reader.requests(FindCoordinatorRequest), "it looks"
    assert reader.requests(FetchRequest)
    scenario.world.fault = None
    scenario.settle()


def test_b5_a_session_without_an_answer_is_the_coordinators_failure() -> None:
    scenario = Scenario("equal", members=1)
    (reader,) = scenario.members
    looked = len(reader.requests(FindCoordinatorRequest))
    silent = True

    def hang(_program: Program, call: Any) -> Any:
        if silent and isinstance(call.request, HeartbeatRequest):
            return TransportError("no answer in time")
        return None

    scenario.world.fault = hang
    for _ in range(30):
        reader.poll(500)
    assert len(reader.requests(FindCoordinatorRequest)) > looked
    silent = False
    scenario.settle()


def test_b5_a_client_refreshes_stale_metadata_with_backoff() -> None:
    scenario = Scenario("equal", members=1)
    (reader,) = scenario.members
    scenario.world.fault = lambda _program, call: (
        TransportError("gone") if isinstance(call.request, FetchRequest) else None
    )
    asked = len(reader.requests(MetadataRequest))
    for _ in range(20):
        reader.poll(500)
    most = 10_000 // reader.config.retry_backoff_ms + 1
    assert 1 <= len(reader.requests(MetadataRequest)) - asked <= most, "ten seconds of failures"


def grow(scenario: Scenario, count: int) -> None:
    wanted = CreatePartitionsTopic(name="t", count=count, assignments=None)
    answer = scenario.world.broker.call(CreatePartitionsRequest(topics=[wanted], timeout_ms=1000))
    assert answer.results[0].error_code == 0


@pytest.mark.parametrize("assignor", ["equal", SERVER_SIDE])
def test_b5_partitions_of_subscribed_topics_change(assignor) -> None:
    scenario = Scenario(assignor, members=2)
    grow(scenario, 9)
    rebalance(*scenario.members, rounds=40)
    assert sorted(len(member.assignment()) for member in scenario.members) == [4, 5]


def test_b5_topics_appear_that_match_a_pattern() -> None:
    world = ConsumerSimulation()
    member = world.consumer(group="g")
    member.subscribe(pattern="t.*", exclude=["tx"])
    rebalance(member)
    for topic in ("t1", "tx", "t2"):
        world.broker.create_topic(topic)
    rebalance(member, rounds=20)
    assert [topic for topic, _ in member.assignment()] == ["t1", "t2"]


@pytest.mark.parametrize("assignor", ["equal", SERVER_SIDE])
def test_b5_members_commit_and_send_heartbeats_during_a_rebalance(assignor) -> None:
    """A commit under the generation that ends still counts while the group prepares the next."""
    scenario = Scenario(assignor, members=1)
    (first,) = scenario.members
    scenario.world.fill("t", 6, 5)
    assert first.poll(1_000, max_records=5)
    place = next(record for record in first.assignment())
    second = scenario.member()
    scenario.world.settle()
    first.commit({place: 1})
    assert first.committed(place) == {place: 1}
    scenario.members.append(second)
    scenario.settle()


def frozen(scenario: Scenario, member: Program, duration_ms: int) -> None:
    """Stop a member as SIGSTOP does; the other members go on."""
    scenario.world.programs.remove(member)
    others = [one for one in scenario.members if one is not member]
    rebalance(*others, rounds=duration_ms // 500)
    scenario.world.programs.append(member)


def test_b5_a_member_that_pauses_before_its_join_gets_no_partitions(scenario) -> None:
    late = scenario.members[0]
    before = scenario.generations[0]
    frozen(scenario, late, 40_000)
    others = scenario.members[1:]
    assert sum(len(member.assignment()) for member in others) == 6
    with pytest.raises((ApiError, TransportError)) as refused:
        late.run(late.core.commit({late.assignment()[0]: 0}), 5_000)
    if isinstance(refused.value, ApiError):
        assert refused.value.code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}
    scenario.settle()  # the member joins again
    assert min(scenario.generations) > before


def test_b5_a_member_that_pauses_after_its_join_has_a_full_session_from_the_answer() -> None:
    scenario = Scenario("range")  # an eager group: cooperative members join twice by themselves
    sleeper = scenario.member()
    answers: list[Any] = []

    def count(program: Program, call: Any) -> None:
        if program is sleeper and isinstance(call.request, JoinGroupRequest):
            answers.append(call)

    scenario.world.lost = count
    for _ in range(100):
        rebalance(*scenario.members, sleeper, rounds=1)
        if len(answers) == 2:  # the answer to the first join only contains the member id
            break
    scenario.world.lost = None
    scenario.members.append(sleeper)
    joins = len(sleeper.requests(JoinGroupRequest))
    # Of ten, less the margin; the moment since the answer counts too.
    frozen(scenario, sleeper, 7_000)
    scenario.settle()
    assert len(sleeper.requests(JoinGroupRequest)) == joins, "no member joined again"


@pytest.mark.parametrize("assignor", ["equal", SERVER_SIDE])
def test_b5_slow_consumers_are_expelled_and_return(assignor) -> None:
    scenario = Scenario(assignor, members=1)
    slow = scenario.member(max_poll_interval_ms=15_000)
    scenario.members.append(slow)
    scenario.settle()
    rebalance(scenario.members[0], rounds=60)  # the slow one's program does not poll
    assert len(scenario.members[0].assignment()) == 6
    assert any("poll" in warning for warning in slow.warnings), slow.warnings
    scenario.settle()
    assert slow.assignment()
