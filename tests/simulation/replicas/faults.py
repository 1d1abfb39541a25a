"""The faults of a run. Each one is drawn before the run begins, and ends by itself or at the end of the busy time."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from headrace.broker.cluster.control import controlled
from headrace.broker.cluster.requested_elections import PREFERRED, elect_as_requested
from headrace.core.cluster.controller import StateChange
from headrace.core.cluster.records import NO_LEADER, PartitionState
from headrace.metadata_stores.sessions import Fault
from headrace.types import TopicPartition
from tests.simulation.replicas.disk import Key

if TYPE_CHECKING:
    from tests.simulation.replicas.process import Process
    from tests.simulation.replicas.replica_simulation import ReplicaSimulation

_COMMIT_FAULTS: tuple[Fault, ...] = (
    "unavailable",
    "unknown and void",
    "unknown and applied",
    "unknown and late",
    "doubled",
)


def is_lost(state: PartitionState) -> bool:
    """Return whether no replica may lead a partition, because all have lost records."""
    return state.leader == NO_LEADER and not (state.isr or state.elr or state.last_known)


class Faults:
    """The faults, with a source of chance of their own."""

    def __init__(self, simulation: ReplicaSimulation, seed: int) -> None:
        """Draw the faults and their times."""
        self._simulation = simulation
        self._chance = chance = random.Random(seed * 3 + 1)
        kinds: list[Callable[[], None]] = [
            self._kill,
            self._kill,
            self._stop,
            self._pause,
            self._cut_store,
            self._cut_stores,
            self._expire_all,
            self._cut_link,
            self._isolate,
            self._jump,
            self._land,
            self._prefer,
            self.elect_any,
            self._freeze_store,
            self._slow_disk,
            self._fail_disk,
            self._kill_all,
        ]
        if chance.random() < 0.5:
            kinds += [self._cut_power, self._cut_power]
        if chance.random() < 0.3:
            kinds += [self._cut_all_power]
        if chance.random() < 0.3:
            kinds += [self._wipe]
        if chance.random() < 0.2:
            kinds += [self._start_twin]
        kinds = [each for each in kinds if chance.random() < 0.7] or [self._kill]
        self._kill_controllers = chance.random() < 0.2
        begin_ms, knobs = simulation.now_ms, simulation.knobs
        for _ in range(knobs.faults):
            at_ms = begin_ms + chance.randint(3_000, knobs.busy_ms)
            simulation.timeline.at(at_ms, chance.choice(kinds))

    def _duration_ms(self) -> int:
        chance = self._chance
        return chance.choice(
            [chance.randint(1, 300), chance.randint(300, 3_000), chance.randint(3_000, 15_000)]
        )

    def _broker(self) -> int:
        return self._chance.choice(list(self._simulation.disks))

    def _happens(self, what: str, broker: int | None = None) -> None:
        simulation = self._simulation
        simulation.counts["faults"] += 1
        simulation.counts[what] += 1
        simulation.trace("FAULT %s %s", what, "" if broker is None else broker)

    # Processes

    def _end(self, broker: int) -> None:
        simulation = self._simulation
        simulation.end(broker)
        simulation.later(self._duration_ms(), lambda: simulation.start(broker))

    def _kill(self) -> None:
        broker = self._broker()
        self._happens("kill", broker)
        self._end(broker)

    def _stop(self) -> None:
        """Shut a broker down: it drains, ends with a closed session, and starts again."""
        broker, simulation = self._broker(), self._simulation
        process = simulation.processes.get(broker)
        if process is None or process.is_dead or simulation.now_ms < process.paused_until_ms:
            return
        self._happens("stop", broker)
        process.run(process.drain)

        def end() -> None:
            if simulation.processes.get(broker) is process and not process.is_dead:
                process.metadata.close()
                self._end(broker)

        simulation.later(self._duration_ms() // 3, end)

    def _cut_power(self) -> None:
        broker = self._broker()
        self._happens("power cut", broker)
        self._lose_power(broker)

    def _lose_power(self, broker: int) -> None:
        simulation = self._simulation
        self._end(broker)
        simulation.disks[broker].cut_power(self._chance)
        simulation.checker.lost(broker)

    def _cut_all_power(self) -> None:
        self._happens("power cut of all")
        for broker in self._simulation.disks:
            self._lose_power(broker)

    def _kill_all(self) -> None:
        """End all processes. They start again in any order."""
        self._happens("kill of all")
        for broker in self._simulation.disks:
            self._end(broker)

    def _start_twin(self) -> None:
        """Start another process of a broker that runs, on an empty disk: two processes have one broker id."""
        broker, simulation = self._broker(), self._simulation
        process = simulation.processes.get(broker)
        if process is None or process.is_dead or process.is_starting:
            return
        self._happens("two brokers with one id", broker)
        simulation.start_twin(broker)

    def _slow_disk(self) -> None:
        broker = self._broker()
        self._happens("slow disk", broker)
        self._simulation.slow_until_ms[broker] = self._simulation.now_ms + self._duration_ms()

    def _fail_disk(self) -> None:
        """Let a log directory fail or be full, until the process is started again."""
        broker, simulation = self._broker(), self._simulation
        process = simulation.processes.get(broker)
        if process is None or process.is_dead or process.is_starting:
            return
        self._happens("failed directory", broker)
        process.run(process.fail_disk)

        def restart() -> None:
            if simulation.processes.get(broker) is process:
                self._end(broker)

        simulation.later(self._duration_ms(), restart)

    def _wipe(self) -> None:
        broker, simulation = self._broker(), self._simulation
        self._happens("wiped disk", broker)
        self._end(broker)
        simulation.replace_disk(broker)
        simulation.checker.lost(broker)

    def _pause(self) -> None:
        broker, simulation = self._broker(), self._simulation
        process = simulation.processes.get(broker)
        if process is None or process.is_dead:
            return
        duration_ms = self._duration_ms()
        self._happens("pause", broker)
        process.paused_until_ms = simulation.now_ms + duration_ms
        simulation.later(duration_ms, process.resume)
        if duration_ms > simulation.knobs.session_ms:
            lose = process.metadata.lose_session
            simulation.later(simulation.knobs.session_ms, lose)

    def _jump(self) -> None:
        broker, simulation = self._broker(), self._simulation
        self._happens("clock jump", broker)
        most = self._chance.choice([100, 5_000, 60_000])
        # Deadlines are times of this clock, so a jump back delays what waits by as much.
        jump_ms = max(-5_000, self._chance.randint(-most, most))
        simulation.clock_offsets[broker] += jump_ms

    # The store

    def _cut_store(self) -> None:
        broker, simulation = self._broker(), self._simulation
        self._happens("store cut", broker)
        simulation.cut_store(broker)
        simulation.later(self._duration_ms(), lambda: simulation.mend_store(broker))

    def _cut_stores(self) -> None:
        """The store is gone for all brokers."""
        simulation, duration_ms = self._simulation, self._duration_ms()
        self._happens("store gone")
        for broker in simulation.disks:
            simulation.cut_store(broker)
            late_ms = self._chance.randint(0, 200)
            simulation.later(duration_ms + late_ms, partial(simulation.mend_store, broker))

    def _freeze_store(self) -> None:
        """Let the store respond to nothing for a while, and then to everything."""
        simulation = self._simulation
        self._happens("store frozen")
        simulation.frozen_until_ms = simulation.now_ms + self._duration_ms()

    def _expire_all(self) -> None:
        self._happens("all sessions expired")
        for process in self._simulation.all_processes():
            if not process.is_dead:
                process.metadata.lose_session()

    def _land(self) -> None:
        """Let late commits arrive at the store."""
        self._happens("late commits")
        for store in self._simulation.stores:
            store.land()

    def fault_of_commit(self) -> Fault:
        """Return the fate of the next commit."""
        if (
            self._simulation.is_calm
            or self._chance.random() >= self._simulation.knobs.commit_faults
        ):
            return "none"
        return self._chance.choice(_COMMIT_FAULTS)

    def controller_commits(self, broker: int) -> None:
        """Kill the controller after this commit, now and then: before or after it learns the outcome."""
        simulation = self._simulation
        if self._kill_controllers and not simulation.is_calm and self._chance.random() < 0.1:
            self._happens("controller killed", broker)
            simulation.later(self._chance.randint(0, 100), partial(self._end, broker))

    def _prefer(self) -> None:
        self._happens("preferred election")
        for process in self._simulation.processes.values():
            process.run(partial(self._elect_preferred, process))

    def _elect_preferred(self, process: Process) -> None:
        topics: Any = process.topics
        wanted = [
            TopicPartition(topic.name, index)
            for topic in process.topics
            for index in range(topic.partitions_count)
        ]
        if process.control.is_controller:
            work = elect_as_requested(process.control, topics, wanted, PREFERRED)
            process.steps.run(work, finishes=True)

    def elect_any(self) -> None:
        """Let an operator request an election of any replica for the partitions that no replica may lead."""
        checker = self._simulation.checker
        keys = [key for key in checker.replicas if is_lost(checker.state(key))]
        if keys:
            self._simulation.counts["elections by an operator"] += 1
            for process in self._simulation.processes.values():
                process.run(partial(self._elect_any, process, keys))

    def _elect_any(self, process: Process, keys: Sequence[Key]) -> None:
        control, topics = process.control, process.topics

        def decide() -> list[StateChange]:
            found = [(topics.by_id(topic_id), index) for topic_id, index in keys]
            changes = [
                control.decisions.any_leader(controlled(cast("Any", topic)), index)
                for topic, index in found
                if topic is not None and is_lost(topics.state(topic, index))
            ]
            return [each for each in changes if isinstance(each, StateChange)]

        if control.is_controller:
            process.steps.run(control.change_states(decide), finishes=True)

    # Links

    def _cut_link(self) -> None:
        brokers = list(self._simulation.disks)
        one, other = self._chance.sample(brokers, 2)
        self._happens("link cut", one)
        links = [(one, other)] if self._chance.random() < 0.5 else [(one, other), (other, one)]
        self._cut(links)

    def _isolate(self) -> None:
        """One broker reaches no other broker, only the store."""
        one = self._broker()
        self._happens("broker cut off", one)
        others = [each for each in self._simulation.disks if each != one]
        self._cut([link for each in others for link in ((one, each), (each, one))])

    def _cut(self, links: list[tuple[int, int]]) -> None:
        cut = self._simulation.network.cut
        for link in links:
            cut[link] = cut.get(link, 0) + 1

        def repair() -> None:
            for link in links:
                cut[link] = max(0, cut.get(link, 0) - 1)

        self._simulation.later(self._duration_ms(), repair)
