"""Consumers are stopped in virtual time, while requests and responses are lost and brokers are killed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from headrace import TopicPartition
from headrace.clients.flows.stopping import stop_member
from headrace.errors import MemberStoppedError, TransportError
from tests.fixtures.consumer_simulation import ConsumerSimulation, Program

pytestmark = pytest.mark.slow  # not in `make check`

TIMEOUT_MS = 40_000
PARTITIONS = 4
RECORDS = 30


class Life:
    """A group of three consumers, one of which is stopped."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.harness = ConsumerSimulation(group_consumer_session_timeout_ms=10_000)
        self.harness.broker.create_topic("t", partitions=PARTITIONS)
        self.harness.fill("t", PARTITIONS, RECORDS)
        self.server_side = self.random.random() < 0.5
        self.assignor = self.random.choice(["range", "equal"])
        self.members = [self.member() for _ in range(3)]
        self.read: list[tuple[Program, Any]] = []
        self.finished: set[Program] = set()
        self.admin = self.harness.consumer()  # only its engine is used

    def member(self) -> Program:
        protocol: dict[str, Any] = {"assignor": self.assignor, "session_timeout_ms": 10_000}
        if self.server_side:
            protocol = {"group_protocol": "consumer"}
        program = self.harness.consumer(group="g", auto_offset_reset="earliest", **protocol)
        program.subscribe(["t"])
        return program

    def run(self) -> str:
        for _ in range(60):
            self.round()
        assert all(member.core.joined for member in self.members)
        stopped = self.random.choice(self.members)
        self.fail_sometimes()
        ended: list[Any] = []
        flow = stop_member(
            self.admin.state,
            "g",
            member_id=stopped.core.group_metadata().member_id,
            group_instance_id=None,
            timeout_ms=TIMEOUT_MS,
            now_ms=lambda: self.harness.now_ms,
        )
        self.admin.engine.spawn(
            flow, timeout_ms=2 * TIMEOUT_MS, on_done=lambda task: ended.append(task.outcome)
        )
        began_ms = self.harness.now_ms
        while not ended:
            assert self.harness.now_ms < began_ms + 2 * TIMEOUT_MS, "the call does not end"
            if self.random.random() < 0.03:
                self.harness.restart_broker(crash=True)
            self.round()
        self.harness.fault = self.harness.lost = None
        [outcome] = ended
        for _ in range(100):
            self.round()
        self.check(stopped, outcome)
        return str(outcome)

    def fail_sometimes(self) -> None:
        def lose(_program: Program, _call: Any) -> TransportError | None:
            return TransportError("lost") if self.random.random() < 0.05 else None

        self.harness.fault = self.harness.lost = lose

    def round(self) -> None:
        for member in self.members:
            if member in self.finished:
                continue
            try:
                # A broker that is down may interrupt a call; the program retries.
                self.read += [(member, record) for record in member.poll(20, max_records=2)]
            except TransportError:
                continue
            if member.core.stopped:
                self.finished.add(member)
        self.harness.advance(500)

    def check(self, stopped: Program, outcome: str) -> None:
        others = [member for member in self.members if member is not stopped]
        assert not any(member.core.stopped for member in others), "only one was asked to"
        if outcome == "stopped":
            assert stopped.core.stopped
            assert not stopped.assignment()
        if stopped.core.stopped:
            with pytest.raises(MemberStoppedError):
                stopped.poll()
        held = sorted(name for member in self.members for name in member.assignment())
        assert held == [TopicPartition("t", number) for number in range(PARTITIONS)]
        # The other members read the records that the stopped member had not processed.
        found = {(record.partition, record.offset) for _, record in self.read}
        assert found == {(p, at) for p in range(PARTITIONS) for at in range(RECORDS)}


@pytest.mark.parametrize("first", range(0, 24, 12))
def test_no_record_is_lost_when_a_stopped_consumer_leaves(first: int) -> None:
    outcomes = []
    for seed in range(first, first + 12):
        try:
            outcomes.append(Life(seed).run())
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
    assert set(outcomes) <= {"stopped", "removed", "gone"}
    assert outcomes.count("stopped") > len(outcomes) // 2
