"""Commits: which offsets are committed, when, and which a program may commit."""

from __future__ import annotations

import pytest

from headrace.clients.flows.effects import Call
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    InvalidCommittedOffsetError,
    NotAssignedError,
    TransportError,
)
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.types import TopicPartition
from tests.fixtures.consumer_simulation import ConsumerSimulation, Program

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def make_reader(**options) -> tuple[ConsumerSimulation, Program]:
    simulation = ConsumerSimulation()
    simulation.broker.create_topic("t", partitions=2)
    simulation.fill("t", 1, 20)
    defaults = {"group": "g", "auto_offset_reset": "earliest", "max_poll_records": 5}
    program = simulation.consumer(**defaults | options)
    return simulation, program


def committed(simulation: ConsumerSimulation) -> int | None:
    return simulation.consumer(group="g").committed(T0)[T0]


def test_records_of_the_last_poll_are_not_committed_before_the_next_poll() -> None:
    simulation, reader = make_reader(auto_commit_interval_ms=1_000)
    reader.subscribe(["t"])
    assert len(reader.poll(1000)) == 5
    simulation.advance(60_000)
    assert committed(simulation) in {None, 0}, "the program still works on them"
    reader.poll(0)
    simulation.advance(2_000)
    assert committed(simulation) == 5
    simulation.advance(60_000)
    assert committed(simulation) == 5


@pytest.mark.parametrize(
    ("at_close", "offset"), [("handed out", 10), ("finished", 5), ("nothing", None)]
)
def test_closing_commits_handed_out_or_finished_records_or_nothing(
    at_close: str, offset: int | None
) -> None:
    simulation, reader = make_reader(auto_commit_interval_ms=3_600_000)
    reader.subscribe(["t"])
    reader.poll(1000)
    reader.poll(1000)
    reader.close(at_close)
    assert committed(simulation) == offset


def test_iteration_finishes_a_record_when_the_next_is_asked_for() -> None:
    simulation, reader = make_reader(auto_commit_interval_ms=1_000)
    reader.subscribe(["t"])
    reader.run(reader.core.poll(1000))
    taken = [reader.core.take_one() for _ in range(3)]
    assert [record and record.offset for record in taken] == [0, 1, 2]
    simulation.advance(2_000)
    assert committed(simulation) == 2, "the third is being worked on"
    assert reader.run(reader.core.positions.position(T0, 0)) == 3, (
        "what is decoded is not handed out"
    )
    reader.close("finished")
    assert committed(simulation) == 2


def test_iteration_attends_to_the_group_between_records() -> None:
    simulation, reader = make_reader(assignor="equal")
    reader.subscribe(["t"])
    reader.run(reader.core.poll(1000))
    assert reader.core.take_one() is not None
    other = simulation.consumer(group="g", auto_offset_reset="earliest", assignor="equal")
    other.subscribe(["t"])
    other.poll(0)
    simulation.advance(4_000)
    assert reader.core.take_one() is None, "a rebalance is to be attended to first"
    offsets: list[int] = []
    while len(offsets) < 3:
        record = reader.core.take_one()
        if record is None:
            reader.run(reader.core.poll(0))
        else:
            offsets.append(record.offset)
    assert offsets == [1, 2, 3]


def test_commits_of_all_or_of_given_offsets() -> None:
    simulation, reader = make_reader(enable_auto_commit=False)
    reader.subscribe(["t"])
    reader.poll(1000)
    reader.commit()
    assert committed(simulation) == 5
    reader.commit({T0: 3})
    assert committed(simulation) == 3
    reader.commit({T0: OffsetAndMetadata(4, "a note")})
    found = reader.run(reader.core.committed([T0, T1]))
    assert found[T0].offset == 4
    assert found[T0].metadata == "a note"
    sent = len(reader.requests(OffsetCommitRequest))
    reader.commit({T0: 5})
    reader.commit()
    assert len(reader.requests(OffsetCommitRequest)) == sent + 1, "nothing new is not sent"


def test_a_commit_contains_the_leader_epoch_of_the_last_record() -> None:
    _, reader = make_reader(enable_auto_commit=False)
    reader.subscribe(["t"])
    [*_, last] = reader.poll(1000)
    reader.commit()
    found = reader.run(reader.core.committed([T0]))
    assert found[T0].leader_epoch == last.leader_epoch >= 0


def test_an_asynchronous_commit_reports_its_outcome_in_a_later_call() -> None:
    simulation, reader = make_reader(enable_auto_commit=False)
    reader.subscribe(["t"])
    reader.poll(1000)
    told = []
    reader.core.commit_async(None, lambda offsets, error: told.append((offsets, error)))
    simulation.advance(100)
    assert told == []
    reader.poll(0)
    [(offsets, error)] = told
    assert offsets[T0].offset == 5
    assert error is None
    simulation.fault = lambda _program, call: (
        TransportError("reset") if isinstance(call.request, OffsetCommitRequest) else None
    )
    sent = len(reader.requests(OffsetCommitRequest))
    reader.core.commit_async({T0: 7}, lambda offsets, error: told.append((offsets, error)))
    reader.poll(1000)
    assert isinstance(told[1][1], TransportError)
    assert len(reader.requests(OffsetCommitRequest)) == sent + 1, "one attempt"
    simulation.fault = None
    assert committed(simulation) == 5


def test_offsets_of_partitions_that_are_not_read_cannot_be_committed() -> None:
    _, reader = make_reader()
    reader.assign([T0])
    with pytest.raises(NotAssignedError, match="t-1 is not assigned to this consumer"):
        reader.commit({T1: 3})
    with pytest.raises(NotAssignedError):
        reader.core.commit_async({T1: 3})
    for wrong in (-1, "5", 2.0, True):
        with pytest.raises(ConfigError, match="a number from 0 on"):
            reader.commit({T0: wrong})


def test_committing_needs_a_group() -> None:
    _, reader = make_reader(group=None)
    reader.assign([T0])
    with pytest.raises(ConfigError, match="needs a group"):
        reader.commit()
    with pytest.raises(ConfigError, match="group"):
        reader.committed(T0)


@pytest.mark.parametrize("name", [TopicPartition("t", 9), TopicPartition("missing", 0)])
def test_offsets_committed_in_partitions_that_do_not_exist(name: TopicPartition) -> None:
    _, reader = make_reader()
    with pytest.raises(InvalidCommittedOffsetError):
        reader.committed(name)


def test_a_manual_assignment_commits_only_to_a_group_without_members() -> None:
    simulation, reader = make_reader()
    reader.assign([T0])
    reader.poll(1000)
    reader.commit()
    assert committed(simulation) == 5
    member = simulation.consumer(group="g")
    member.subscribe(["t"])
    member.poll(100)
    with pytest.raises(ApiError) as raised:
        reader.commit({T0: 1})
    assert raised.value.code == ErrorCode.UNKNOWN_MEMBER_ID, "the group has members now"


def test_a_commit_waits_for_a_coordinator_that_is_away() -> None:
    simulation, reader = make_reader(enable_auto_commit=False)
    reader.subscribe(["t"])
    reader.poll(1000)
    failures = [TransportError("gone")] * 3
    simulation.fault = lambda _program, call: (
        failures.pop() if isinstance(call.request, OffsetCommitRequest) and failures else None
    )
    reader.commit()
    assert failures == []
    assert committed(simulation) == 5


def test_a_retried_auto_commit_does_not_overtake_a_commit_of_the_program() -> None:
    simulation, reader = make_reader(auto_commit_interval_ms=1_000)
    reader.subscribe(["t"])
    assert len(reader.poll(1000)) == 5
    assert len(reader.poll(1000)) == 5
    failures = iter([TransportError("lost")])

    def refuse(_program: Program, call: Call) -> TransportError | None:
        return next(failures, None) if isinstance(call.request, OffsetCommitRequest) else None

    simulation.fault = refuse
    while not reader.requests(OffsetCommitRequest):
        simulation.advance(1)
    reader.commit()  # while the other waits before it tries again
    assert committed(simulation) == 10
    simulation.advance(500)
    assert committed(simulation) == 10


def test_auto_commit_does_not_overwrite_a_later_commit_of_the_program() -> None:
    simulation, reader = make_reader(auto_commit_interval_ms=1_000)
    reader.subscribe(["t"])
    assert len(reader.poll(1000)) == 5
    assert len(reader.poll(1000)) == 5
    reader.commit()
    simulation.advance(5_000)  # the program works on
    assert committed(simulation) == 10


def test_the_later_of_two_commits_that_look_for_the_coordinator_wins() -> None:
    simulation, reader = make_reader(enable_auto_commit=False)
    reader.subscribe(["t"])
    assert len(reader.poll(1000)) == 5
    name = TopicPartition("t", 0)
    reader.state.coordinators.clear()
    failures = iter([TransportError("not this broker")])

    def fail_first(_program: Program, call: Call) -> TransportError | None:
        is_search = isinstance(call.request, FindCoordinatorRequest)
        return next(failures, None) if is_search else None

    simulation.fault = fail_first
    told: list[object] = []
    reader.core.commit_async({name: 1}, lambda _, error: told.append(error))  # it tries again later
    reader.commit({name: 3})
    assert committed(simulation) == 3
    simulation.advance(1_000)
    reader.poll(0)
    assert committed(simulation) == 3
    assert told == [None]
