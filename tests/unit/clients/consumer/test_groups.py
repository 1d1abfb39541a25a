"""Groups of consumers with one broker, in virtual time: assignments, notifications, slow members, dead members."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.assignors import EqualAssignor
from headrace.errors import (
    ApiError,
    ErrorCode,
    FencedInstanceIdError,
    NotAssignedError,
    RebalanceInProgressError,
    TransportError,
)
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace.protocol.messages.sync_group import SyncGroupRequest
from headrace.types import TopicPartition
from tests.fixtures.consumer_simulation import ConsumerSimulation, Program, rebalance

EAGER = ["range", "roundrobin", "sticky"]
COOPERATIVE = ["equal", "cooperative-sticky"]
SERVER_SIDE = "server-side"
"""The value in place of an assignor for the protocol `consumer` (KIP-848)."""
ANY_WAY = [*EAGER, *COOPERATIVE, SERVER_SIDE]

BOTH = pytest.mark.parametrize("assignor", ["equal", SERVER_SIDE])


class Listener:
    """A listener that records its calls."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("revoked", [number for _, number in partitions]))

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("assigned", [number for _, number in partitions]))

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("lost", [number for _, number in partitions]))


def make_simulation(partitions: int = 6, records: int = 0) -> ConsumerSimulation:
    simulation = ConsumerSimulation()
    simulation.broker.create_topic("t", partitions=partitions)
    if records:
        simulation.fill("t", partitions, records)
    return simulation


def member(simulation: ConsumerSimulation, assignor: Any = "equal", **options) -> Program:
    listener = options.pop("listener", None)
    topics = options.pop("topics", ["t"])
    defaults = {"group": "g", "auto_offset_reset": "earliest", "assignor": assignor}
    if assignor == SERVER_SIDE:
        defaults |= {"assignor": None, "group_protocol": "consumer"}
    program = simulation.consumer(**defaults | options)
    program.subscribe(topics, listener=listener)
    return program


def numbers(program: Program) -> list[int]:
    return [number for _, number in program.assignment()]


@pytest.mark.parametrize("assignor", ANY_WAY)
def test_partitions_are_shared_and_given_back(assignor: str) -> None:
    simulation = make_simulation()
    first, second = member(simulation, assignor), member(simulation, assignor)
    rebalance(first, second)
    assert sorted(numbers(first) + numbers(second)) == list(range(6))
    assert len(numbers(first)) == len(numbers(second)) == 3
    second.close()
    rebalance(first)
    assert numbers(first) == list(range(6))


@pytest.mark.parametrize("assignor", ANY_WAY)
def test_a_killed_members_partitions_go_to_those_alive(assignor: str) -> None:
    simulation = make_simulation()
    first, second = member(simulation, assignor), member(simulation, assignor)
    rebalance(first, second)
    second.die()
    rebalance(first, rounds=100)
    assert numbers(first) == list(range(6))


@pytest.mark.parametrize("assignor", ANY_WAY)
def test_every_record_is_read_once_through_graceful_rebalances(assignor: str) -> None:
    simulation = make_simulation(records=40)
    seen: list[bytes] = []
    first = member(simulation, assignor)
    programs = [first]
    for step in range(60):
        for program in programs:
            seen += [record.value for record in program.poll(10, 7)]
        if step == 5:
            programs.append(member(simulation, assignor))
        if step == 15:
            programs.pop(0).close()
        simulation.advance(300)
    assert sorted(seen) == sorted(f"t-{p}-{n}".encode() for p in range(6) for n in range(40))


def test_eager_members_revoke_all_partitions_and_cooperative_members_only_moved_ones() -> None:
    told = {}
    for assignor in ("range", "equal"):
        simulation = make_simulation()
        listener = Listener()
        first = member(simulation, assignor, listener=listener)
        rebalance(first, rounds=2)
        second = member(simulation, assignor)
        rebalance(first, second)
        told[assignor] = listener.told
    assert told["range"] == [
        ("assigned", [0, 1, 2, 3, 4, 5]),
        ("revoked", [0, 1, 2, 3, 4, 5]),
        ("assigned", [0, 1, 2]),
    ]
    assert [entry for entry in told["equal"] if entry[1]] == [
        ("assigned", [0, 1, 2, 3, 4, 5]),
        ("revoked", [3, 4, 5]),
    ]


def test_a_cooperative_member_reads_on_while_the_group_rebalances() -> None:
    simulation = make_simulation(records=50)
    first, busy = member(simulation, max_poll_records=1), member(simulation)
    rebalance(first, busy)
    newcomer = member(simulation)
    newcomer.poll(10)
    simulation.advance(3_500)
    held = set(numbers(first))
    records = [record for _ in range(8) for record in first.poll(0)]
    assert first.core._member is not None
    assert first.core._member.joining, "its join waits for a program that works"
    assert len(records) == 8
    assert {record.partition for record in records} <= held
    first.commit()


@BOTH
def test_a_partition_never_has_two_owners(assignor: str) -> None:
    simulation = make_simulation(partitions=8)
    owners: dict[int, str] = {}

    class Owner(Listener):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def on_assigned(self, partitions: list[TopicPartition]) -> None:
            for _, number in partitions:
                assert number not in owners, f"{self.name} was given what {owners[number]} has"
                owners[number] = self.name

        def on_revoked(self, partitions: list[TopicPartition]) -> None:
            for _, number in partitions:
                del owners[number]

    programs: list[Program] = []
    for name in "abcd":
        programs.append(member(simulation, assignor, listener=Owner(name)))
        rebalance(*programs, rounds=30)
    for _ in range(2):
        programs.pop(0).close()
        rebalance(*programs, rounds=30)
    rebalance(*programs)
    assert sorted(owners) == list(range(8))
    assert sorted(map(len, map(numbers, programs))) == [4, 4]


def test_revocation_commits_finished_records_only() -> None:
    simulation = make_simulation(partitions=2, records=10)
    first = member(simulation, "range", max_poll_records=4, auto_commit_interval_ms=3_600_000)
    t0, t1 = TopicPartition("t", 0), TopicPartition("t", 1)
    assert len(first.poll(1000)) == 4
    second = member(simulation, "range")
    second.poll(0)
    simulation.advance(
        3_500
    )  # the heartbeat notifies the first; its program still works on the four
    assert first.committed(t0, t1) == {t0: None, t1: None}
    first.poll(0)  # it comes back: the four are finished, whatever this poll returns is not
    committed = first.committed(t0, t1)
    assert sum(at or 0 for at in committed.values()) == 4
    rebalance(first, second)


@BOTH
def test_a_late_member_is_removed_notified_and_comes_back(assignor: str) -> None:
    simulation = make_simulation(records=3)
    listener = Listener()
    slow = member(simulation, assignor, listener=listener, max_poll_interval_ms=10_000)
    other = member(simulation, assignor)
    rebalance(slow, other)
    held = numbers(slow)
    for _ in range(30):  # the program of `slow` does not come back; its heartbeats go on
        other.poll(10)
        simulation.advance(500)
    assert numbers(other) == list(range(6))
    [warning] = slow.warnings
    assert "max.poll.interval.ms" in warning
    assert "'g'" in warning
    slow.poll(0)
    assert listener.told[-1] == ("lost", held)
    rebalance(slow, other, rounds=24)
    assert len(numbers(slow)) == len(numbers(other)) == 3


@BOTH
def test_a_member_that_works_longer_than_its_session_keeps_its_partitions(assignor: str) -> None:
    simulation = make_simulation()
    worker, other = member(simulation, assignor), member(simulation, assignor)
    rebalance(worker, other)
    held = numbers(worker)
    for _ in range(60):
        other.poll(10)
        simulation.advance(2_000)  # two minutes; the session is 45 s, max.poll.interval 5 minutes
    assert numbers(worker) == held
    assert len(numbers(other)) == 3


@BOTH
def test_a_paused_process_finds_its_membership_gone_and_its_late_commit_fenced(
    assignor: str,
) -> None:
    simulation = make_simulation(partitions=2, records=10)
    listener = Listener()
    paused = member(simulation, assignor, listener=listener, enable_auto_commit=False)
    records = paused.poll(1000)
    assert records
    simulation.programs.remove(paused)  # SIGSTOP: not even its heartbeats
    other = member(simulation, assignor)
    rebalance(other, rounds=120)
    assert numbers(other) == [0, 1]
    simulation.programs.append(paused)
    with pytest.raises(ApiError) as raised:
        paused.commit()
    assert raised.value.code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}
    paused.poll(0)
    assert listener.told[-1] == ("lost", [0, 1])
    with pytest.raises(NotAssignedError):
        paused.commit({TopicPartition("t", 0): 1})
    rebalance(paused, other)
    assert sorted(numbers(paused) + numbers(other)) == [0, 1]


def test_a_member_that_is_closed_leaves_at_once() -> None:
    simulation = make_simulation()
    listener = Listener()
    first = member(simulation, listener=listener)
    rebalance(first, rounds=2)
    first.close()
    assert listener.told[-1] == ("revoked", list(range(6)))
    second = member(simulation)
    second.poll(100)
    assert numbers(second) == list(range(6)), "without waiting for a session to end"
    assert len(first.requests(LeaveGroupRequest)) == 1


def test_a_static_member_that_restarts_gets_its_partitions_back_without_a_rebalance() -> None:
    simulation = make_simulation()
    other = member(simulation, "range", group_instance_id="b")
    first = member(simulation, "range", group_instance_id="a")
    rebalance(first, other)
    held, joins = numbers(first), len(other.requests(JoinGroupRequest))
    first.close()
    assert first.requests(LeaveGroupRequest) == []
    again = member(simulation, "range", group_instance_id="a")
    rebalance(again, other)
    assert numbers(again) == held
    assert len(other.requests(JoinGroupRequest)) == joins


def test_a_second_member_of_one_instance_id_throws_the_first_out_for_good() -> None:
    simulation = make_simulation()
    first = member(simulation, group_instance_id="a")
    rebalance(first, rounds=2)
    second = member(simulation, group_instance_id="a")
    second.poll(100)
    simulation.advance(4_000)
    for _ in range(2):
        with pytest.raises(FencedInstanceIdError):
            first.poll(0)
    assert numbers(first) == []
    simulation.advance(4_000)
    second.poll(0)
    assert numbers(second) == list(range(6))


# Topics that change


def add_partitions(simulation: ConsumerSimulation, topic: str, count: int) -> None:
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)], timeout_ms=1000
    )
    assert simulation.broker.call(request).results[0].error_code == 0


@pytest.mark.parametrize("assignor", ["range", "equal", SERVER_SIDE])
def test_new_partitions_are_picked_up(assignor: str) -> None:
    simulation = make_simulation()
    first = member(simulation, assignor)
    second = member(simulation, assignor)
    rebalance(first, second)
    add_partitions(simulation, "t", 8)
    rebalance(first, second, rounds=40)
    assert sorted(numbers(first) + numbers(second)) == list(range(8))


@BOTH
def test_a_member_may_wait_for_a_topic_that_does_not_exist_yet(assignor: str) -> None:
    simulation = make_simulation()
    first = member(simulation, assignor, topics=["later"])
    rebalance(first, rounds=3)
    assert first.core.joined
    assert first.assignment() == []
    simulation.broker.create_topic("later", partitions=2)
    rebalance(first, rounds=10)
    assert numbers(first) == [0, 1]


def test_a_pattern_matches_later_topics_except_the_excluded_ones() -> None:
    simulation = make_simulation()
    simulation.broker.create_topic("orders-eu")
    simulation.broker.create_topic("orders-test")
    first = simulation.consumer(group="g")
    first.subscribe(pattern="orders-.*", exclude=["orders-test"])
    rebalance(first, rounds=3)
    assert {topic for topic, _ in first.assignment()} == {"orders-eu"}
    simulation.broker.create_topic("orders-us")
    simulation.broker.create_topic("my-orders-us")
    rebalance(first, rounds=40)
    assert {topic for topic, _ in first.assignment()} == {"orders-eu", "orders-us"}
    assert first.core.subscription() == {"orders-eu", "orders-us"}


@pytest.mark.parametrize("assignor", ["range", "equal", SERVER_SIDE])
def test_a_second_subscription_replaces_the_first(assignor: str) -> None:
    simulation = make_simulation(partitions=2)
    simulation.broker.create_topic("u", partitions=2)
    listener = Listener()
    first = member(simulation, assignor, topics=["t"], listener=listener)
    rebalance(first, rounds=2)
    first.subscribe(["u"], listener=listener)
    rebalance(first, rounds=4)
    assert first.assignment() == [TopicPartition("u", 0), TopicPartition("u", 1)]
    assert listener.told.count(("revoked", [0, 1])) == 1


# A coordinator that fails


def test_reading_goes_on_while_the_coordinator_is_looked_for() -> None:
    simulation = make_simulation(partitions=1, records=50)
    reader = member(simulation, max_poll_records=5)
    assert len(reader.poll(1000)) == 5

    def away(_program, call):
        if call.channel == "group" or isinstance(call.request, FindCoordinatorRequest):
            return TransportError("gone")
        return None

    simulation.fault = away
    for _ in range(9):
        simulation.advance(2_000)
        assert len(reader.poll(0)) == 5
    assert any(isinstance(call.request, FindCoordinatorRequest) for call in reader.calls)
    simulation.fault = None
    simulation.advance(5_000)
    joins = len(reader.requests(JoinGroupRequest))
    reader.poll(0)
    assert len(reader.requests(JoinGroupRequest)) == joins, "the membership did not change"


@pytest.mark.parametrize("request_type", [JoinGroupRequest, SyncGroupRequest, HeartbeatRequest])
@pytest.mark.parametrize("handled", [False, True])
def test_a_group_converges_when_requests_or_answers_are_lost(
    request_type, *, handled: bool
) -> None:
    simulation = make_simulation()
    first, second = member(simulation), member(simulation)
    lost: list = []

    def lose(_program, call):
        if isinstance(call.request, request_type) and len(lost) < 3:
            lost.append(call)
            return TransportError("reset")
        return None

    if handled:
        simulation.lost = lose
    else:
        simulation.fault = lose
    rebalance(first, second, rounds=200)
    assert lost
    assert len(numbers(first)) == len(numbers(second)) == 3


@BOTH
def test_a_broker_that_restarts_keeps_the_group_as_it_was(assignor: str) -> None:
    simulation = make_simulation()
    first, second = member(simulation, assignor), member(simulation, assignor)
    rebalance(first, second)
    before = numbers(first), numbers(second)
    joins = len(first.requests(JoinGroupRequest))
    simulation.restart_broker()
    rebalance(first, second)
    assert (numbers(first), numbers(second)) == before
    assert len(first.requests(JoinGroupRequest)) == joins


def test_a_member_whose_join_hangs_learns_from_its_heartbeats_that_it_was_expelled() -> None:
    simulation = make_simulation()
    listener = Listener()
    options: dict[str, Any] = {"max_poll_interval_ms": 30_000}
    first, other = member(simulation, listener=listener, **options), member(simulation, **options)
    rebalance(first, other)
    held = numbers(first)
    newcomer = member(simulation, **options)
    newcomer.poll(0)
    simulation.advance(3_500)
    first.poll(0)
    own = first.core._member
    assert own is not None
    assert own.joining
    simulation.restart_broker(
        hang=True
    )  # the broker with the pending join is gone without a response

    def hang(program, call):
        # Its next joins hang too; everything else gets through.
        if program is first and isinstance(call.request, JoinGroupRequest):
            return TransportError("no answer")
        return None

    simulation.fault = hang
    for _ in range(90):
        other.poll(10)
        newcomer.poll(10)
        first.poll(10)
        simulation.advance(500)
    assert listener.told[-1] == ("lost", held)
    assert len(numbers(other)) == len(numbers(newcomer)) == 3


def test_an_answer_to_an_older_generations_heartbeat_is_no_news() -> None:
    simulation = make_simulation()
    first = member(simulation, "range")
    rebalance(first, rounds=2)
    own = first.core._member
    assert own is not None
    old = own.generation
    second = member(simulation, "range")
    rebalance(first, second)
    assert own.generation > old
    own.answered(ErrorCode.ILLEGAL_GENERATION, old)
    assert own.lost is None
    own.answered(ErrorCode.ILLEGAL_GENERATION, own.generation)
    assert own.lost is not None


def test_an_unknown_member_joins_again() -> None:
    simulation = make_simulation()
    listener = Listener()
    first = member(simulation, listener=listener)
    rebalance(first, rounds=2)
    simulation.fault = lambda _program, call: (
        HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)
        if isinstance(call.request, HeartbeatRequest)
        else None
    )
    simulation.advance(4_000)
    simulation.fault = None
    rebalance(first, rounds=120)
    assert ("lost", list(range(6))) in listener.told
    assert numbers(first) == list(range(6))


# The program's own code


@BOTH
def test_a_listener_may_commit_seek_and_ask_for_its_assignment(assignor: str) -> None:
    simulation = make_simulation(partitions=2, records=10)
    t0 = TopicPartition("t", 0)
    seen: dict = {}

    class Own:
        def on_assigned(self, partitions):
            seen["assigned"] = program.run(program.core.assignment(0))
            for name in partitions:
                program.core.positions.seek(name, 7)  # offsets kept elsewhere

        def on_revoked(self, partitions):
            program.commit({t0: 8})
            seen["revoked"] = partitions

    program = member(simulation, assignor, listener=Own(), enable_auto_commit=False)
    records = program.poll(1000)
    assert {record.offset for record in records} == {7, 8, 9}
    assert [number for _, number in seen["assigned"]] == [0, 1]
    program.close()
    assert len(seen["revoked"]) == 2
    other = simulation.consumer(group="g")
    assert other.committed(t0) == {t0: 8}


@pytest.mark.parametrize("assignor", ["range", "equal", SERVER_SIDE])
def test_a_failing_listener_is_reported_and_stops_nothing(assignor: str) -> None:
    simulation = make_simulation()

    class Failing:
        def on_assigned(self, partitions):
            raise ValueError("assigned")

        def on_revoked(self, partitions):
            raise ValueError("revoked")

    first = member(simulation, assignor, listener=Failing())
    with pytest.raises(ValueError, match="assigned"):
        first.poll(1000)
    assert numbers(first) == list(range(6))
    second = member(simulation, assignor)
    errors = []
    for _ in range(24):
        try:
            first.poll(20)
        except ValueError as error:
            errors.append(str(error))
        second.poll(20)
        simulation.advance(500)
    assert "revoked" in errors
    assert len(numbers(first)) == len(numbers(second)) == 3


def test_a_commit_that_a_rebalance_overtook_says_to_come_back() -> None:
    simulation = make_simulation(partitions=2, records=4)
    first = member(simulation, enable_auto_commit=False)
    first.poll(1000)
    own = first.core._member
    assert own is not None
    refused = OffsetCommitResponsePartition(error_code=ErrorCode.ILLEGAL_GENERATION)

    def overtaken(_program, call):
        if not isinstance(call.request, OffsetCommitRequest):
            return None
        own.generation += 1  # a join that ends while the commit is in flight
        return OffsetCommitResponse(
            topics=[OffsetCommitResponseTopic(name="t", partitions=[refused])]
        )

    simulation.fault = overtaken
    with pytest.raises(RebalanceInProgressError, match="commit again after the next poll"):
        first.commit()
    assert own.lost is None


def test_an_own_assignor_needs_a_name_a_protocol_and_assign() -> None:
    simulation = make_simulation()

    class First(EqualAssignor):
        """An assignor that assigns all partitions to the first member."""

        name = "first"

        def assign(self, members, partition_counts):
            everything = [
                TopicPartition(topic, number)
                for topic, count in partition_counts.items()
                for number in range(count)
            ]
            order = sorted(members)
            return {name: everything if name == order[0] else [] for name in order}

    first, second = member(simulation, First), member(simulation, First)
    rebalance(first, second)
    assert sorted(map(len, (numbers(first), numbers(second)))) == [0, 6]


def test_members_that_share_no_assignor_cannot_be_in_one_group() -> None:
    simulation = make_simulation()
    first = member(simulation, "range")
    rebalance(first, rounds=2)
    second = member(simulation, "equal")
    with pytest.raises(ApiError, match="INCONSISTENT_GROUP_PROTOCOL"):
        second.poll(1000)


def test_a_group_moves_from_eager_to_cooperative_by_a_list() -> None:
    simulation = make_simulation()
    old = member(simulation, "range")
    both = simulation.consumer(
        group="g", auto_offset_reset="earliest", assignor=["cooperative-sticky", "range"]
    )
    both.subscribe(["t"])
    rebalance(old, both)
    assert sorted(numbers(old) + numbers(both)) == list(range(6))
    assert both.core._member is not None
    assert not both.core._member.cooperative


def test_a_listener_that_fails_at_the_end_does_not_leave_a_member_behind() -> None:
    simulation = make_simulation()

    class Failing:
        def on_revoked(self, _partitions: list[TopicPartition]) -> None:
            raise ValueError("of the program")

    reader = member(simulation, listener=Failing())
    rebalance(reader, rounds=3)
    with pytest.raises(ValueError, match="of the program"):
        reader.run(reader.core.unsubscribe(10_000))
    assert reader.requests(LeaveGroupRequest)
    beats = len(reader.requests(HeartbeatRequest))
    simulation.advance(30_000)
    assert len(reader.requests(HeartbeatRequest)) == beats


def test_an_interrupted_listener_is_called_again_before_records_are_returned() -> None:
    """(1) The listener looks up an offset elsewhere. (2) The poll is cancelled. (3) The listener cannot seek."""
    simulation = make_simulation(partitions=1, records=10)
    name = TopicPartition("t", 0)

    class Seeking:
        interrupted = False

        def on_assigned(self, partitions: list[TopicPartition]) -> None:
            if not self.interrupted:
                self.interrupted = True
                raise KeyboardInterrupt
            reader.core.positions.seek(partitions[0], 7)

    reader = member(simulation, listener=Seeking())
    with pytest.raises(KeyboardInterrupt):
        reader.poll(10_000)
    records = [record for _ in range(3) for record in reader.poll(1000)]
    assert [record.offset for record in records] == [7, 8, 9]
    assert reader.run(reader.core.positions.position(name, 0)) == 10


def test_a_process_that_slept_while_it_joined_hands_out_nothing_that_others_have() -> None:
    simulation = make_simulation()
    options: dict[str, Any] = {"session_timeout_ms": 10_000}
    first = member(simulation, "cooperative-sticky", **options)
    third = member(simulation, "cooperative-sticky", **options)
    rebalance(first, third)
    simulation.fill("t", 6, 10)
    assert len(first.poll(1_000, 1)) == 1
    second = member(simulation, "cooperative-sticky", **options)
    second.poll(0)
    simulation.advance(3_500)  # the heartbeats have reported the second
    first.poll(0, 0)
    own = first.core._member
    assert own is not None
    assert own.joining, "the third has not come yet"
    assert first.core.assigned
    simulation.programs.remove(first)  # as SIGSTOP would
    for _ in range(100):
        third.poll(10)
        second.poll(10)
        simulation.advance(500)
    assert len(numbers(second)) + len(numbers(third)) == 6
    simulation.programs.append(first)
    first.engine.advance(simulation.now_ms)
    assert first.core.take(5) == []
    while first.inbox:  # the join's answer has waited all the while
        on_done, outcome = first.inbox.popleft()
        on_done(outcome)
        assert first.core.take(5) == []
    assert first.core.take_one() is None
    rebalance(first, second, third)
    assert sorted(numbers(first) + numbers(second) + numbers(third)) == list(range(6))


def test_a_member_whose_join_hangs_gives_up_when_its_session_ends_and_asks_seldom() -> None:
    simulation = make_simulation()
    listener = Listener()
    first = member(simulation, "cooperative-sticky", listener=listener)
    rebalance(first)
    simulation.fill("t", 6, 10)
    assert len(first.poll(1_000, 1)) == 1
    lost: list[Any] = []

    def lose(program, call):
        if program is first and isinstance(call.request, JoinGroupRequest):
            lost.append(call)
            return TransportError("no answer")
        return None

    def disown(program, call):
        if program is first and isinstance(call.request, HeartbeatRequest) and lost:
            return HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION)
        return None

    simulation.fault, simulation.lost = lose, disown
    second = member(simulation, "cooperative-sticky")
    second.poll(0)
    simulation.advance(3_500)
    first.poll(0, 0)
    own = first.core._member
    assert own is not None
    assert own.joining
    simulation.advance(46_000)  # a session, without a word that confirms
    assert own.lost is not None
    first.calls.clear()
    assert first.poll(5_000) == []
    assert listener.told[-1] == ("lost", list(range(6)))
    assert len(first.requests(HeartbeatRequest)) <= 51
