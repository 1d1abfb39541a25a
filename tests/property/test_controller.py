"""The controller's decisions in a cluster whose brokers restart and whose controllers end, overlap and know old images.

Each broker has an image of its own, which lags behind. Any broker may become the controller, and decides by its image.
It sends some of its commits, and ends or goes on. Commits of leaders and registrations come in between.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from headrace.core.cluster.controller import (
    Commit,
    ControlledTopic,
    Decisions,
    StateChange,
    commits_of,
    controller_epoch_check,
)
from headrace.core.cluster.election import without
from headrace.core.cluster.image import MetadataImage
from headrace.core.cluster.membership import Membership
from headrace.core.cluster.partition_states import PartitionStates
from headrace.core.cluster.records import (
    CONTROLLER_EPOCH_KEY,
    CONTROLLER_KEY,
    LIVE_BROKERS,
    REGISTRATIONS,
    BrokerState,
    ControllerRecord,
    LiveRecord,
    PartitionState,
    RegistrationRecord,
    decode,
    encode,
)
from headrace.metadata_stores.memory import MemoryMetadata, MemoryMetadataStore
from headrace.ports import Check, Conflict, Delete, MetadataBatch, Put, versions_of

BROKERS = (1, 2, 3, 4)
TOPICS = (
    ControlledTopic(bytes(15) + b"a", [(1, 2, 3), (2, 3, 1), (4,), (3, 4)] * 20, min_isr=2),
    ControlledTopic(bytes(15) + b"b", [(4, 1), (2, 4, 3)] * 10),
)


class View:
    """An image, and what follows it."""

    def __init__(self, store: MemoryMetadataStore) -> None:
        self.image, self.states, self.membership = MetadataImage(), PartitionStates(), Membership()
        self.batches: deque[MetadataBatch] = deque()
        store.watch(self.batches.append)
        self.states.consume(self.image)
        self.membership.consume(self.image)
        self.decisions = Decisions(self.image, self.states, self.membership)

    def follow(self, count: int | None = None) -> None:
        for _ in range(len(self.batches) if count is None else min(count, len(self.batches))):
            assert not self.image.apply(self.batches.popleft())

    def state(self, topic: ControlledTopic, index: int) -> PartitionState:
        return self.states.get(topic.topic_id, index, topic.replicas[index])

    def commits(self, controller_epoch: Check) -> list[Commit]:
        """Return what the controller does by this image, in its order."""
        decide: list[Callable[[ControlledTopic], Iterator[StateChange]]] = [
            self.decisions.leaders_gone,
            self.decisions.leaders_draining,
        ]
        commits: list[Commit] = []
        for changes in decide:
            for topic in TOPICS:
                commits += commits_of(changes(topic), controller_epoch)
        return commits


@dataclass
class Process:
    """The process of a broker."""

    broker_id: int
    store: MemoryMetadataStore
    view: View
    is_live: bool = False
    controller_epoch: Check | None = None
    """The check of its commits as the controller; None before it has become one."""
    prepared: list[Commit] = field(default_factory=list)
    """Commits that it has not sent yet."""


class Cluster:
    """Brokers on one store. `history` checks what is stored after each commit."""

    def __init__(self, seed: int, *, left_out: str = "") -> None:
        self.random = random.Random(seed)
        self.left_out = left_out
        """The prefix of the key that no commit of a controller checks: a defence that is switched off."""
        self.content = MemoryMetadata()
        self.truth = View(MemoryMetadataStore(self.content))
        stores = {broker: MemoryMetadataStore(self.content) for broker in BROKERS}
        self.processes = {b: Process(b, store, View(store)) for b, store in stores.items()}
        self.leaders: dict[tuple[bytes, int, int], tuple[int, int]] = {}
        """The leader and its broker epoch, by topic id, partition and leader epoch."""
        self.before: dict[tuple[bytes, int], PartitionState] = {}
        """The last state of each partition, by topic id and partition."""

    def commit(
        self, process: Process, checks: Sequence[Check], operations: Sequence[Put | Delete]
    ) -> bool:
        checks = [each for each in checks if not self.left_out or self.left_out not in each.key]
        outcome = process.store.commit(checks, operations).value
        applied = not isinstance(outcome, Conflict) and bool(versions_of(outcome))
        self.truth.follow()
        self.history()
        return applied

    def history(self) -> None:
        """Check the invariants between the last state of each partition and the present one."""
        for topic in TOPICS:
            for index in range(len(topic.replicas)):
                after = self.truth.state(topic, index)
                before = self.before.get((topic.topic_id, index))
                if after == before:
                    continue
                self.before[topic.topic_id, index] = after
                assert before is None or after.leader_epoch >= before.leader_epoch
                if after.leader < 0:
                    continue
                leads = after.leader, after.registration
                known = self.leaders.setdefault((topic.topic_id, index, after.leader_epoch), leads)
                assert known == leads, "two leaders of one leader epoch"
                if before is not None and before.leader != after.leader:
                    assert after.leader in {*before.isr, *before.elr}
                    assert set(after.isr) <= {*before.isr, after.leader}

    # What happens

    def register(self, process: Process, state: BrokerState = "running") -> None:
        process.store.close()
        process.view = View(process.store)
        process.view.follow()
        key = f"{REGISTRATIONS}{process.broker_id}"
        entry = process.view.image.get(key)
        epoch = 0 if entry is None else decode(entry, RegistrationRecord).broker_epoch + 1
        live = LiveRecord(epoch, "", {}, None, state)
        process.is_live, process.controller_epoch, process.prepared = True, None, []
        assert self.commit(
            process,
            [Check(key, "absent" if entry is None else entry.version)],
            [
                Put(key, encode(RegistrationRecord(epoch))),
                Put(f"{LIVE_BROKERS}{process.broker_id}", encode(live), ephemeral=True),
            ],
        )

    def end_session(self, process: Process) -> None:
        """End the session; the process may run on as a zombie with its old image."""
        process.store.close()
        process.is_live = False
        self.truth.follow()

    def become_controller(self, process: Process) -> None:
        view = process.view
        if view.image.get(CONTROLLER_KEY) is not None or not process.is_live:
            return
        record, check = ControllerRecord(process.broker_id, 0), controller_epoch_check(view.image)
        puts = [
            Put(CONTROLLER_KEY, encode(record), ephemeral=True),
            Put(CONTROLLER_EPOCH_KEY, encode(record)),
        ]
        if self.commit(process, [Check(CONTROLLER_KEY, "absent"), check], puts):
            view.follow()
            process.controller_epoch = controller_epoch_check(view.image)

    def reconcile(self, process: Process) -> None:
        """Send some of the commits, and keep the others for later."""
        if process.controller_epoch is None:
            return
        if not process.prepared or self.random.random() < 0.5:
            process.prepared = process.view.commits(process.controller_epoch)
        for _ in range(self.random.randrange(3)):
            if process.prepared and self.commit(process, *process.prepared.pop(0)):
                present = controller_epoch_check(self.truth.image)
                assert process.controller_epoch == present, "a replaced controller has decided"

    def change_isr(self, process: Process) -> None:
        """Change the ISR of a partition that the broker leads, by its image."""
        topic = self.random.choice(TOPICS)
        index = self.random.randrange(len(topic.replicas))
        present = process.view.state(topic, index)
        if present.leader != process.broker_id:
            return
        others = [b for b in topic.replicas[index] if b != process.broker_id]
        isr = (process.broker_id, *self.random.sample(others, self.random.randint(0, len(others))))
        gone = tuple(each for each in present.isr if each not in isr)
        elr = gone if len(isr) < min(topic.min_isr, len(topic.replicas[index])) else ()
        after = replace(present, isr=isr, elr=elr)
        change = process.view.decisions.change(topic, index, present, after)
        checks = [change.state, *([change.registration] if change.registration else [])]
        self.commit(process, checks, [change.put])

    def start_uncleanly(self, process: Process) -> None:
        """Let a broker leave every ISR before it registers again."""
        self.end_session(process)
        process.view = View(process.store)
        process.view.follow()
        for topic in TOPICS:
            for index, replicas in enumerate(topic.replicas):
                present = process.view.state(topic, index)
                member = process.broker_id in {*present.isr, *present.elr}
                if member and len(replicas) > 1 and self.random.random() < 0.2:
                    after = without(present, process.broker_id)
                    change = process.view.decisions.change(topic, index, present, after)
                    checks = [change.state, *([change.registration] if change.registration else [])]
                    self.commit(process, checks, [change.put])
        self.register(process)

    def step(self) -> None:
        process = self.processes[self.random.choice(BROKERS)]
        draw = self.random.random()
        if draw < 0.06:
            self.register(process, "draining" if self.random.random() < 0.3 else "running")
        elif draw < 0.12:
            self.end_session(process)
        elif draw < 0.13:
            self.start_uncleanly(process)
        elif draw < 0.3:
            self.become_controller(process)
        elif draw < 0.5:
            self.reconcile(process)
        elif draw < 0.8:
            self.change_isr(process)
        else:
            process.view.follow(self.random.randrange(6))

    def settle(self) -> None:
        """End all faults: the controller makes all its decisions, until there are none left."""
        for process in self.processes.values():
            process.view.follow()
        live = [each for each in self.processes.values() if each.is_live]
        if not live:
            return
        for process in live:
            self.become_controller(process)
            process.view.follow()
        number = self.truth.membership.controller_id
        controller = self.processes[number]
        assert controller.controller_epoch is not None
        for _ in range(5):
            commits = controller.view.commits(controller.controller_epoch)
            if not commits:
                break
            for commit in commits:
                assert self.commit(controller, *commit)
            controller.view.follow()
        else:
            pytest.fail("the decisions do not end")
        for topic in TOPICS:
            for index in range(len(topic.replicas)):
                state, live_ids = self.truth.state(topic, index), self.truth.membership.live
                if state.leader not in live_ids:
                    running = {b for b, each in live_ids.items() if not each.is_draining}
                    assert running.isdisjoint({*state.isr, *state.elr})


def run(seeds: range, *, left_out: str = "") -> None:
    for seed in seeds:
        cluster = Cluster(seed, left_out=left_out)
        for _ in range(80):
            cluster.step()
        cluster.settle()


def test_controllers_that_end_and_overlap_converge_with_one_leader_for_each_leader_epoch() -> None:
    run(range(60))


@pytest.mark.slow
def test_many_controllers_that_end_and_overlap_converge() -> None:
    run(range(1_000, 4_000))


@pytest.mark.parametrize(
    ("left_out", "violation", "seeds"),
    [
        (REGISTRATIONS, "two leaders of one leader epoch", range(17, 18)),
        ("state/", None, range(1, 2)),
        (CONTROLLER_EPOCH_KEY, "a replaced controller has decided", range(117, 118)),
    ],
)
def test_without_a_check_of_the_commits_of_a_controller_an_invariant_is_violated(
    left_out: str, violation: str | None, seeds: range
) -> None:
    run(seeds)
    with pytest.raises(AssertionError, match=violation):
        run(seeds, left_out=left_out)
