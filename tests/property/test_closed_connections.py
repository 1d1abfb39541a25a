"""Random histories of connections that open, send requests and close: a closed connection leaves no pending request."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from headrace.broker.session import Session
from headrace.broker.waiting.delayed_fetch import FETCH_BYTES, PARTITION_BYTES, WaitingFetches
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.fixtures.broker_harness import (
    BrokerHarness,
    Pending,
    batch,
    fetch_request,
    produce_request,
    values,
)

PARTITIONS = 3
STEPS = 120
MOST = 12 * (FETCH_BYTES + 2 * PARTITION_BYTES)


@dataclass
class Connection:
    """The server's state of a connection: its principal, and its pending responses."""

    session: Session = field(default_factory=Session)
    polls: list[Pending] = field(default_factory=list)
    others: list[Pending] = field(default_factory=list)

    def close(self) -> None:
        for pending in (*self.polls, *self.others):
            pending.cancel()


class History:
    """One random history over one broker."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.harness = BrokerHarness()
        self.harness.create_topic("t", partitions=PARTITIONS)
        self.harness.call(FindCoordinatorRequest(coordinator_keys=["g"], key_type=0))
        self.waiting = WaitingFetches(MOST, MOST // 2)
        self.harness.replace_services(waiting_fetches=self.waiting)
        self.connections: list[Connection] = []
        self.produced: dict[bytes, Pending] = {}

    def step(self) -> None:
        chance = self.chance
        what = chance.choices(
            [self.open, self.poll, self.produce, self.ask_group, self.close, self.sync, self.wait],
            [2, 8, 4, 3, 2, 4, 2],
        )[0]
        what()

    def one(self) -> Connection:
        if not self.connections:
            self.open()
        return self.chance.choice(self.connections)

    def open(self) -> None:
        self.connections.append(Connection())

    def poll(self) -> None:
        chance, connection = self.chance, self.one()
        partitions = self.harness.broker.services.partitions
        wanted = [
            ("t", index, partitions.require("t", index).high_watermark)
            for index in sorted(chance.sample(range(PARTITIONS), chance.randint(1, PARTITIONS)))
        ]
        request = fetch_request(
            *wanted, max_wait_ms=chance.choice([50, 5_000]), min_bytes=chance.choice([1, 150])
        )
        then = connection.close if chance.random() < 0.1 else None  # it closes while it is answered
        connection.polls.append(self.harness.send(request, session=connection.session, then=then))

    def produce(self) -> None:
        connection, value = self.one(), b"%d" % len(self.produced)
        request = produce_request("t", self.chance.randrange(PARTITIONS), batch(value))
        self.produced[value] = self.harness.send(request, session=connection.session)
        connection.others.append(self.produced[value])

    def ask_group(self) -> None:
        connection, group = self.one(), self.chance.choice("gh")
        if self.chance.random() < 0.5:
            protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
            request = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=6_000,
                rebalance_timeout_ms=6_000,
                member_id="",
                protocol_type="consumer",
                protocols=protocols,
            )
            connection.others.append(self.harness.send(request, 3, session=connection.session))
            return
        partitions = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
        commit = OffsetCommitRequest(
            group_id="offsets-only",
            topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)],
        )
        connection.others.append(self.harness.send(commit, session=connection.session))

    def close(self) -> None:
        if self.connections:
            connection = self.connections.pop(self.chance.randrange(len(self.connections)))
            connection.close()

    def sync(self) -> None:
        self.harness.sync()

    def wait(self) -> None:
        self.harness.advance(self.chance.choice([1, 40, 400, 4_000]))

    def check(self) -> None:
        broker = self.harness.broker
        partitions = broker.services.partitions
        watchers = {
            each for index in range(PARTITIONS) for each in partitions.require("t", index).watchers
        }
        assert len(watchers) == len(self.waiting)
        assert self.waiting.held_bytes == sum(
            FETCH_BYTES + PARTITION_BYTES * each.partitions_count for each in watchers
        )
        assert self.waiting.held_bytes <= MOST
        assert len(watchers) == sum(
            pending.waits for connection in self.connections for pending in connection.polls
        )

    def end(self) -> None:
        for connection in self.connections:
            connection.close()
        broker, harness = self.harness.broker, self.harness
        assert len(broker.services.purgatory) == 0
        assert len(self.waiting) == self.waiting.held_bytes == 0
        while harness.sync():
            pass
        stored = {
            value
            for index in range(PARTITIONS)
            for value in values(harness.fetch("t", 0, partition=index).records)
        }
        assert stored == set(self.produced), "what was appended stays, answered or not"
        harness.advance(60_000)
        while harness.sync():
            pass
        assert harness.journal.events("error") == []


@pytest.mark.parametrize("seed", range(60))
def test_the_broker_waits_for_open_connections_only(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
        history.check()
    history.end()
