"""A group of consumers with random joins, leaves, kills, pauses, lost responses and broker restarts, in virtual time.

Each program commits what it has processed. Four invariants hold. No record is lost. No partition has two owners in one
generation. A record is not processed again after its commit, except by a paused member that does not know yet that it
was removed. Records of a partition are processed in order.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from headrace.clients.consumer.classic import ClassicProtocolMember
from headrace.errors import ApiError, NotAssignedError, TransportError
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace.protocol.messages.heartbeat import HeartbeatRequest
from headrace.protocol.messages.join_group import JoinGroupRequest
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.protocol.messages.sync_group import SyncGroupRequest
from headrace.types import TopicPartition
from tests.fixtures.consumer_simulation import ConsumerSimulation, Program

pytestmark = pytest.mark.slow  # not in `make check`

PARTITIONS = 5
STEPS = 120
ROUNDS = 12
LOSABLE = (
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncGroupRequest,
)


class Worker:
    """A program that processes the records that it polls, and then commits."""

    def __init__(self, life: Life, name: str) -> None:
        self.life = life
        self.name = name
        self.asleep = False
        self.slept = False
        """Whether the program was paused since its last assignment."""
        self.owned: dict[TopicPartition, int | None] = {}
        """The last processed offset of each partition since its assignment; None before the first."""
        automatic = life.chance.random() < 0.4
        self.commits = not automatic
        self.program: Program = life.harness.consumer(
            group="g",
            client_id=name,
            auto_offset_reset="earliest",
            enable_auto_commit=automatic,
            auto_commit_interval_ms=700,
            assignor=life.assignor,
            max_poll_records=7,
            session_timeout_ms=10_000,
            heartbeat_interval_ms=1_000,
            max_poll_interval_ms=20_000,
            request_timeout_ms=5_000,
        )
        self.program.subscribe(["t"], listener=self)

    @property
    def generation(self) -> int:
        member = self.program.core._member
        if member is None:
            return -1
        assert isinstance(member, ClassicProtocolMember)
        return member._owned_generation

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.slept = False
        for name in partitions:
            for other in self.life.workers:
                if other is not self and name in other.owned:
                    assert other.generation != self.generation, (
                        f"{name}: {other.name} and {self.name} in generation {self.generation}"
                    )
            self.owned[name] = None

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        for name in partitions:
            del self.owned[name]

    on_lost = on_revoked

    def work(self) -> None:
        try:
            records = self.program.poll(self.life.chance.choice([0, 0, 50]))
        except (ApiError, TransportError) as error:
            self.life.trouble.append(error)
            return
        for record in records:
            self.handle(record)
        if self.commits and records and self.life.chance.random() < 0.8:
            try:
                self.program.commit()
            except (ApiError, TransportError, NotAssignedError) as error:
                self.life.trouble.append(error)

    def handle(self, record: Any) -> None:
        name = TopicPartition(record.topic, record.partition)
        assert name in self.owned, "a record of a partition that was given up"
        before = self.owned[name]
        assert before is None or record.offset == before + 1, "the order inside the partition"
        self.owned[name] = record.offset
        self.life.handled.add(record.value)
        if record.offset < self.life.committed.get(name, 0):
            assert self.slept, f"{self.name} handled {name} {record.offset} after its commit"
            self.life.overlaps += 1


class Life:
    """One random history of a group."""

    def __init__(self, seed: int, assignor: str) -> None:
        self.chance = Random(seed)
        self.assignor = assignor
        self.harness = ConsumerSimulation()
        self.harness.broker.create_topic("t", partitions=PARTITIONS)
        self.workers: list[Worker] = []
        self.written: set[bytes] = set()
        self.handled: set[bytes] = set()
        self.committed: dict[TopicPartition, int] = {}
        self.trouble: list[Exception] = []
        self.overlaps = 0
        self.names = 0
        self.to_lose = 0
        self.harness.lost = self.lose_answer
        self.harness.fault = self.lose_request

    # States of the network

    def lose_request(self, _program: Program, call: Any) -> Any:
        if self.to_lose and isinstance(call.request, LOSABLE) and self.chance.random() < 0.5:
            self.to_lose -= 1
            return TransportError("the request was lost")
        return None

    def lose_answer(self, _program: Program, call: Any) -> Any:
        if self.to_lose and isinstance(call.request, LOSABLE):
            self.to_lose -= 1
            return TransportError("the answer was lost")
        return None

    def note_commits(self) -> None:
        """Record the group's committed offsets."""
        observer = ConsumerObserver(self.harness)
        self.committed = observer.offsets()

    # Steps

    def run(self) -> None:
        for _ in range(2):
            self.join()
        steps = {
            self.work: 40,
            self.pass_time: 25,
            self.write: 12,
            self.wake: 5,
            self.join: 3,
            self.sleep: 3,
            self.lose: 3,
            self.leave: 2,
            self.kill: 2,
            self.restart: 1,
        }
        for _ in range(STEPS):
            [step] = self.chance.choices(list(steps), list(steps.values()))
            step()
            self.note_commits()
        self.end()

    def awake(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.asleep]

    def work(self) -> None:
        for worker in self.awake():
            if self.chance.random() < 0.7:
                worker.work()
                self.note_commits()

    def write(self) -> None:
        partition = self.chance.randrange(PARTITIONS)
        values = [b"%d" % (len(self.written) + n) for n in range(self.chance.randint(1, 12))]
        self.written.update(values)
        assert self.harness.broker.produce("t", *values, partition=partition).error_code == 0

    def pass_time(self) -> None:
        self.harness.advance(self.chance.choice([1, 50, 400, 1_500, 4_000]))

    def join(self) -> None:
        if len(self.workers) < 5:
            self.names += 1
            self.workers.append(Worker(self, f"w{self.names}"))

    def leave(self) -> None:
        if len(self.awake()) > 1:
            worker = self.chance.choice(self.awake())
            worker.program.close()
            self.workers.remove(worker)

    def kill(self) -> None:
        if len(self.workers) > 1:
            worker = self.chance.choice(self.workers)
            self.workers.remove(worker)
            if not worker.asleep:
                worker.program.die()

    def sleep(self) -> None:
        if len(self.awake()) > 1:
            worker = self.chance.choice(self.awake())
            worker.asleep = worker.slept = True
            self.harness.programs.remove(worker.program)

    def wake(self) -> None:
        for worker in self.workers:
            if worker.asleep:
                worker.asleep = False
                self.harness.programs.append(worker.program)
                return

    def lose(self) -> None:
        self.to_lose = self.chance.randint(1, 4)

    def restart(self) -> None:
        crash, hang = self.chance.random() < 0.5, self.chance.random() < 0.3
        self.harness.restart_broker(crash=crash, hang=hang)

    def end(self) -> None:
        """End the events, and wait until all records are processed and every member has partitions."""
        self.to_lose = 0
        while any(worker.asleep for worker in self.workers):
            self.wake()
        shares: list[int] = []
        for _ in range(150):
            for worker in self.workers:
                worker.work()
            self.harness.advance(500)
            shares = sorted(len(worker.owned) for worker in self.workers)
            balanced = sum(shares) == PARTITIONS and shares[-1] - shares[0] <= 1
            if self.handled == self.written and balanced:
                break
        assert self.written == self.handled
        assert sum(shares) == PARTITIONS
        assert shares[-1] - shares[0] <= 1, shares


class ConsumerObserver:
    """Reads committed offsets without the consumers."""

    def __init__(self, harness: ConsumerSimulation) -> None:
        self._world = harness

    def offsets(self) -> dict[TopicPartition, int]:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
        [group] = self._world.broker.call(request).groups
        return {
            TopicPartition(topic.name, partition.partition_index): partition.committed_offset
            for topic in group.topics
            for partition in topic.partitions
        }


@pytest.mark.parametrize("assignor", ["range", "sticky", "equal"])
def test_every_record_is_handled_in_random_runs_of_a_group(assignor: str) -> None:
    for seed in range(ROUNDS):
        life = Life(seed, assignor)
        try:
            life.run()
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
