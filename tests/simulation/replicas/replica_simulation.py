"""A simulation run of a cluster's cores: several brokers replicate partitions, with faults, on abstract logs.

Real are the cores of replication and of the cluster, the image, the lanes of commits and the changes of in-sync
replicas. Simulated are the brokers around them, the network, the disks and the metadata store. One seed determines
the run, and all time is virtual.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count
from typing import Any, NamedTuple
from unittest.mock import patch

from headrace.broker.cluster import control, member
from headrace.core.cluster.placement import placements
from headrace.core.cluster.records import (
    DELETED,
    TOPICS,
    TombstoneRecord,
    TopicRecord,
    decode,
    encode,
)
from headrace.core.replica.progress import ALL_IN_SYNC
from headrace.core.replica.role import Role
from headrace.errors import StorageError
from headrace.metadata_stores.memory import MemoryMetadata
from headrace.metadata_stores.sessions import SimulatedMetadataStore, Timeline
from headrace.ports import Check, Delete, Put, check_of
from tests.simulation.replicas.checker import Checker, ViolationError
from tests.simulation.replicas.disk import Disk, Key
from tests.simulation.replicas.faults import Faults
from tests.simulation.replicas.knobs import draw
from tests.simulation.replicas.liveness import unsettled
from tests.simulation.replicas.network import Network
from tests.simulation.replicas.process import Process

PEACE_MS = 30_000
"""The longest time from the last fault until all replicas are in sync and have all records, in milliseconds."""
BEGIN_MS = 1_000_000


class Settings(NamedTuple):
    """The settings of a topic.

    Attributes:
        min_insync_replicas: `min.insync.replicas`.
        syncs_first: Whether records are synced before they are acknowledged.
        unclean_leader_election_enable: `unclean.leader.election.enable`.
    """

    min_insync_replicas: int
    syncs_first: bool
    unclean_leader_election_enable: bool


class ReplicaSimulation:
    """One simulation run. `run` raises if an invariant is violated."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        """Prepare the run of a seed."""
        self.knobs = draw(seed)
        self.chance = random.Random(seed * 3)
        self.now_ms = BEGIN_MS
        self.lines: list[str] = []
        self._is_traced = trace
        self.counts: Counter[str] = Counter()
        self.failure: Exception | None = None
        """An error in work whose errors are only logged."""
        self.timeline = Timeline(lambda: self.now_ms)
        self._numbers = count(1)
        self.content = MemoryMetadata()
        self.settings: dict[bytes, Settings] = {}
        self.stores: list[SimulatedMetadataStore] = []
        self._stores_cut: Counter[int] = Counter()
        self.processes: dict[int, Process] = {}
        self.former: list[Process] = []
        """The processes that have run on after another process of their broker had begun."""
        self.disks = {
            broker: Disk(self.next_number()) for broker in range(1, self.knobs.brokers + 1)
        }
        self.clock_offsets = dict.fromkeys(self.disks, 0)
        drift = self.knobs.drift
        self._clock_drifts = {broker: self.chance.randint(-drift, drift) for broker in self.disks}
        self.slow_until_ms = dict.fromkeys(self.disks, 0)
        """The times until which the syncs of the disks are slow."""
        self.frozen_until_ms = 0
        """The time until which the store responds to nothing."""
        self.checker = Checker(self, self.content)
        self.network = Network(self)
        self.is_calm = False
        """Whether the busy time has ended."""
        self._is_quiet = False
        """Whether clients produce no more."""
        self.faults = Faults(self, seed)
        self._topics = 0

    # Parts

    def next_number(self) -> int:
        """Return a number that nothing else has."""
        return next(self._numbers)

    def trace(self, line: str, *arguments: object) -> None:
        """Add a line to the trace."""
        if self._is_traced:
            self.lines.append(f"{self.now_ms - BEGIN_MS:>6} {line % arguments}")

    def later(self, delay_ms: int, function: Callable[[], object]) -> None:
        """Call a function after a time."""
        self.timeline.at(self.now_ms + delay_ms, function)

    def clock_ms(self, broker: int) -> int:
        """Return the time of a broker's clock."""
        drift_ms = (self.now_ms - BEGIN_MS) * self._clock_drifts[broker] // 1_000
        return self.now_ms + self.clock_offsets[broker] + drift_ms

    def sync_ms(self, broker: int) -> int:
        """Return the time of the next sync of a disk."""
        is_slow = self.now_ms < self.slow_until_ms[broker]
        return self.chance.randint(1, 3_000 if is_slow else self.knobs.sync_ms)

    def is_written_back(self) -> bool:
        """Return whether an operating system writes back a log now."""
        return self.chance.random() < self.knobs.written_back

    def store_delay_ms(self) -> int:
        """Return the time of the next message to or from the store."""
        delay_ms = self.chance.randint(1, self.knobs.store_delay_ms)
        delay_ms += max(0, self.frozen_until_ms - self.now_ms)
        if not self.is_calm and self.chance.random() < self.knobs.late:
            delay_ms += self.chance.randint(100, 3_000)
        return delay_ms

    # Brokers

    def start(self, broker: int) -> None:
        """Start a process, unless one runs. Without the store it starts later."""
        present = self.processes.get(broker)
        if present is not None and not present.is_dead:
            return
        try:
            process = Process(self, broker, self.disks[broker])
            self.trace("%s starts", process)
            self.processes[broker] = process
            self.stores.append(process.metadata)
            self._inject(process.metadata)
            process.begin()
        except StorageError:
            self.later(1_000, lambda: self.start(broker))

    def _inject(self, store: SimulatedMetadataStore) -> None:
        """Give each commit of a store its fate."""
        commit = store.commit

        def commit_with_fault(checks: Any, operations: Any) -> Any:
            fault = self.faults.fault_of_commit()
            if fault != "none":
                store.faults[:] = [fault]
            return commit(checks, operations)

        this: Any = store
        this.commit = commit_with_fault

    def end(self, broker: int) -> None:
        """End a process without notice."""
        process = self.processes.get(broker)
        if process is not None and not process.is_dead:
            process.close()

    def replace_disk(self, broker: int) -> None:
        """Give a broker another, empty disk."""
        self.disks[broker] = Disk(self.next_number())

    def start_twin(self, broker: int) -> None:
        """Start another process of a broker on an empty disk, while the present process runs."""
        self.former.append(self.processes.pop(broker))
        self.replace_disk(broker)
        self.checker.lost(broker)
        self.start(broker)

    def is_store_cut(self, broker: int) -> bool:
        """Return whether a broker cannot reach the store."""
        return self._stores_cut[broker] > 0

    def cut_store(self, broker: int) -> None:
        """Cut the connection of a broker to the store."""
        self._stores_cut[broker] += 1
        self._connect(broker)

    def mend_store(self, broker: int) -> None:
        """End one reason for which the connection to the store is cut."""
        self._stores_cut[broker] = max(0, self._stores_cut[broker] - 1)
        self._connect(broker)

    def _connect(self, broker: int) -> None:
        for process in self.all_processes():
            if process.broker_id == broker and not process.is_dead:
                process.metadata.down = self.is_store_cut(broker)

    def all_processes(self) -> list[Process]:
        """Return the newest process of each broker, and those that have run on beside it."""
        return [*self.processes.values(), *self.former]

    # Clients and operators

    def _produce(self) -> None:
        if self._is_quiet:
            return
        chance, knobs = self.chance, self.knobs
        keys = list(self.checker.replicas)
        if keys:
            key = chance.choice(keys)
            leading = self._leading(key)
            if leading:
                process = chance.choice(leading)
                partition = process.partitions[key]
                acks = chance.choice([ALL_IN_SYNC, ALL_IN_SYNC, ALL_IN_SYNC, 0, 1, 2])
                if chance.random() < 0.02:
                    offset = partition.log.high_watermark - chance.randint(0, 3)
                    process.run(lambda: process.delete_records(partition, max(0, offset)))
                else:
                    number = self.next_number()
                    process.run(lambda: process.produce(partition, number, acks))
        self.later(chance.randint(1, 2 * knobs.records_ms), self._produce)

    def _leading(self, key: Key) -> list[Process]:
        """Return the processes that take themselves for the leader of a partition."""
        return [
            process
            for process in self.processes.values()
            if not process.is_dead
            and self.now_ms >= process.paused_until_ms
            and (partition := process.partitions.get(key)) is not None
            and partition.role is Role.LEADER
        ]

    def _administrate(self) -> None:
        """Create a topic, delete one, or add partitions."""
        if self.is_calm:
            return
        self.later(self.chance.randint(2_000, 20_000), self._administrate)
        running = [
            each
            for each in self.processes.values()
            if not each.is_dead and self.now_ms >= each.paused_until_ms
        ]
        if running:
            process = self.chance.choice(running)
            process.run(lambda: self._change_topic(process))

    def _change_topic(self, process: Process) -> None:
        chance, image = self.chance, process.image
        names = [f"t{number}" for number in range(self.knobs.topics)]
        missing = [name for name in names if image.get(TOPICS + name) is None]
        if missing:
            self._create_topic(process, missing[0])
            return
        name = chance.choice(names)
        entry = image.get(TOPICS + name)
        assert entry is not None, "the topic is not missing"
        record = decode(entry, TopicRecord)
        check = check_of(entry.key, entry)
        if chance.random() < 0.5:
            brokers = tuple(sorted({each for replicas in record.replicas for each in replicas}))
            tombstone = TombstoneRecord(name, len(record.replicas), brokers)
            put = Put(DELETED + record.topic_id, encode(tombstone))
            self.counts["topics deleted"] += 1
            process.writer.commit([check], [Delete(entry.key), put])
        elif len(record.replicas) < 5:
            factor = len(record.replicas[0])
            more = self._placements(process, factor, record.replicas)
            if more is not None:
                replicas = [*record.replicas, next(more)]
                self.counts["partitions added"] += 1
                put = Put(entry.key, encode(TopicRecord(record.topic_id, replicas)))
                process.writer.commit([check], [put])

    def _create_topic(self, process: Process, name: str) -> None:
        chance = self.chance
        factor = chance.choice([1, 2, 3, 3, 3])
        found = self._placements(process, factor, ())
        if found is None:
            return
        self._topics += 1
        topic_id = self._topics.to_bytes(16)
        self.settings[topic_id] = Settings(
            chance.randint(1, 2),
            chance.random() < self.knobs.fsync,
            chance.random() < self.knobs.unclean,
        )
        record = TopicRecord(topic_id.hex(), [next(found) for _ in range(chance.randint(1, 3))])
        self.counts["topics created"] += 1
        process.writer.commit(
            [Check(TOPICS + name, "absent")], [Put(TOPICS + name, encode(record))]
        )

    def _placements(
        self, process: Process, factor: int, present: Any
    ) -> Iterator[tuple[int, ...]] | None:
        live = process.membership.live
        racks = {broker: each.rack for broker, each in live.items() if not each.is_draining}
        if len(racks) < factor:
            return None
        return placements(racks, factor, start=self._topics, present=present)

    # The run

    def run(self) -> None:
        """Run the busy time, end all faults, and wait until the cluster has settled."""
        with ExitStack() as stack:
            for module in (control, member):
                most = self.knobs.partitions_a_commit
                stack.enter_context(patch.object(module, "PARTITIONS_A_COMMIT", most))
            self._run()

    def _run(self) -> None:
        self.begin()
        self.run_until(BEGIN_MS + self.knobs.busy_ms)
        self._calm()
        end_ms = self.now_ms + PEACE_MS
        while self.now_ms < end_ms:
            self.run_until(self.now_ms + 500)
            self.faults.elect_any()
            if unsettled(self) == "":
                self.counts["simulated seconds"] = (self.now_ms - BEGIN_MS) // 1_000
                return
        raise ViolationError(f"after {PEACE_MS} ms: {unsettled(self)}")

    def begin(self) -> None:
        """Let brokers, clients and operators begin."""
        for broker in self.disks:
            self.later(self.chance.randint(0, 300), partial(self.start, broker))
        self.later(1_500, self._produce)
        for _ in range(self.knobs.topics):
            self.later(self.chance.randint(1_000, 3_000), self._administrate)

    def run_until(self, end_ms: int) -> None:
        """Let everything happen up to a time."""
        while (due_ms := self.timeline.next_deadline_ms) is not None and due_ms <= end_ms:
            self.step()
        self.now_ms = max(self.now_ms, end_ms)

    def step(self) -> None:
        """Let the next event happen, and what it causes at once."""
        self.now_ms = self.timeline.next_deadline_ms or self.now_ms
        self.timeline.run_next()
        self.counts["events"] += 1
        for process in self.all_processes():
            if process.is_due:
                process.run(lambda: None)
        if self.failure is not None:
            raise self.failure

    def _calm(self) -> None:
        """End all faults, and start all brokers."""
        self.trace("all faults end")
        self.is_calm = self._is_quiet = True
        for link in self.network.cut:
            self.network.cut[link] = 0
        self._stores_cut.clear()
        self.frozen_until_ms = 0
        self.slow_until_ms = dict.fromkeys(self.disks, 0)
        for former in self.former:
            former.paused_until_ms = 0
            former.resume()
            self._connect(former.broker_id)
        for store in self.stores:
            store.land()
        for broker, disk in self.disks.items():
            process = self.processes.get(broker)
            if process is not None and not process.is_dead:
                process.paused_until_ms = 0
                process.resume()
                if process.is_draining or process.has_failed_disk:
                    self.end(broker)
            self.start(broker)
            self._connect(broker)
            assert disk is self.disks[broker]


def run_seed(seed: int) -> tuple[int, str, Counter[str]]:
    """Run a seed, and return the seed, the failure ("" for none), and counts of events."""
    simulation = ReplicaSimulation(seed)
    try:
        simulation.run()
    except Exception as error:  # noqa: BLE001 - any error is a failure of the seed
        last = traceback.extract_tb(error.__traceback__)[-1]
        return (
            seed,
            f"{type(error).__name__}: {error} ({last.name}:{last.lineno})",
            simulation.counts,
        )
    return seed, "", simulation.counts + simulation.checker.counts
