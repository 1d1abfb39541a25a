"""One simulation run of a cluster of brokers, determined by a seed: processes, faults, and the checks at the end."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.protocol.codec import Message
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.types import TopicPartition
from tests.fixtures.cluster import SimulatedCluster
from tests.simulation.brokers.checker import ClusterChecker, CommittedMirror
from tests.simulation.brokers.faults import BrokerFaults
from tests.simulation.brokers.knobs import BROKERS, ClusterKnobs
from tests.simulation.brokers.machines import Machines
from tests.simulation.cluster_simulation import described, sender_of
from tests.simulation.machine import ViolationError
from tests.simulation.network import Frame, Network, NetworkConditions
from tests.simulation.processes import Processes
from tests.simulation.programs import GROUP

OFFSETS = "__consumer_offsets"


class BrokersSimulation:
    """The simulated cluster of one seed, with several brokers."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.knobs = knobs = ClusterKnobs(seed)
        self.counts: Counter[str] = Counter()
        self.cluster = SimulatedCluster(
            BROKERS,
            seed=seed,
            delay_ms=knobs.link_ms,
            store_delay_ms=knobs.store_ms,
            session_timeout_ms=knobs.session_timeout_ms,
            **knobs.options,
        )
        self.machines = machines = Machines(self.cluster)
        machines.tracing = trace
        self.network = Network(
            machines, machines.hosts, random.Random(f"net {seed}"), knobs.conditions
        )
        self.checker = ClusterChecker(GROUP, lambda: machines.now_ms, self.cluster)
        self._chance = chance = random.Random(f"nemesis {seed}")
        self._create_topics()
        for broker in self.cluster.brokers.values():
            broker.sync_ms = knobs.sync_ms
        self.faults = BrokerFaults(machines, knobs, chance, self.counts)
        self.cluster.after_step = self.checker.stepped
        self.cluster.after_fall = self._fell
        self.network.on_request = self._hear
        self.network.on_response = self._answered
        self.processes = Processes(self.network, knobs, self.checker, chance, self.counts)

    def run(self) -> None:
        """Run all events, then check.

        Raises:
            ViolationError: An invariant is violated.
        """
        knobs, schedule = self.knobs, self.machines.schedule
        end_ms = self.machines.now_ms + knobs.duration_ms
        for name, rate in knobs.broker_faults.items():
            if rate:
                self._plan(self.faults.all[name], rate, end_ms)
        for name, rate in knobs.client_faults.items():
            if rate:
                self._plan(getattr(self.processes, name), rate, end_ms)
        try:
            schedule.run_until(end_ms)
            self._settle()
            self._check_end()
        finally:
            for process in self.network.processes:
                process.dead = True  # its flows end with the memory of the run

    def _plan(self, fault: Callable[[], None], rate: float, end_ms: int) -> None:
        when_ms = self.machines.now_ms + round(1000 * self._chance.expovariate(rate))
        if when_ms < end_ms:
            self.machines.schedule.at(when_ms, partial(self._happen, fault, rate, end_ms))

    def _happen(self, fault: Callable[[], None], rate: float, end_ms: int) -> None:
        fault()
        self._plan(fault, rate, end_ms)

    def _fell(self, broker_id: int) -> None:
        self.network.broker_fell(self.machines.by_id[broker_id])
        self.faults.fell(broker_id)

    def _hear(self, frame: Frame, request: Message) -> None:
        if self.machines.tracing:
            self.machines.trace(
                f"{sender_of(frame)}> {self.network.address[0]}: {described(request)}"
            )
        self.processes.hear(frame)
        self.checker.asked(frame, request)

    def _answered(self, frame: Frame, request: Message, response: Message) -> None:
        if self.machines.tracing:
            self.machines.trace(f"{sender_of(frame)}< {self.network.address[0]}: {response}")
        self.checker.answered(frame, request, response)

    # The end

    def _settle(self) -> None:
        """End the faults, and wait until nothing is in flight and everything is processed."""
        machines, knobs = self.machines, self.knobs
        self.network.conditions = NetworkConditions(delay_ms=1)
        knobs.calm = True
        self.faults.calm()
        for process in self.processes.plain:
            process.stopping = True
        end_ms = machines.now_ms + knobs.settling_ms
        while machines.now_ms < end_ms:
            machines.schedule.run_until(machines.now_ms + 500)
            if not self._unsettled():
                return
        raise ViolationError(f"the run does not settle: {self._unsettled()} (20)")

    def _unsettled(self) -> str:
        """Return what is not settled yet; "" if everything is."""
        cluster = self.cluster
        down = [each for each, broker in cluster.brokers.items() if not broker.is_running]
        if down:
            return f"brokers {down} are down"
        if not all(process.done for process in self.processes.plain):
            return "producers are at work"
        if cluster.content.get(f"topics/{OFFSETS}") is None:
            return "there is no group"
        return self._unread() or self._undecided() or self._behind()

    def _behind(self) -> str:
        for topic in ("in", "out", OFFSETS):
            if not self.cluster.is_in_sync(topic):
                return f"replicas of {topic} are not in sync"
        return ""

    def _undecided(self) -> str:
        for name, mirror in self.checker.mirrors.items():
            end = self.cluster.replica(1, name.topic, name.partition).log.log_end_offset
            if not mirror.last_stable_offset == mirror.end == end:
                return f"{name} ends at {end}, {mirror.end} is committed, {mirror.last_stable_offset} stable"
        states = [
            group.group_state
            for broker_id in self.cluster.brokers
            for group in self._ask(broker_id, ListGroupsRequest()).groups
        ]
        return "" if states == ["Stable"] else f"groups are {states}"

    def _unread(self) -> str:
        final = self._final()
        for number in range(self.knobs.inputs):
            name = TopicPartition("in", number)
            end = self.checker.mirrors[name].end
            if final.get(name, 0) != end:
                return f"{name}: {final.get(name)} of {end} is committed"
        for reader in self.processes.readers:
            for name in reader.names:
                count = len(self.checker.expected(name, committed=reader.committed))
                if len(reader.got[name]) < count:
                    return f"{reader.name} has {len(reader.got[name])} of {count} of {name}"
        return ""

    def _final(self) -> dict[TopicPartition, int]:
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)], require_stable=True
        )
        (group,) = self._ask(self.cluster.leader(OFFSETS), request).groups
        return {
            TopicPartition(topic.name, part.partition_index): part.committed_offset
            for topic in group.topics
            for part in topic.partitions
            if not part.error_code
        }

    def _ask(self, broker_id: int, request: Message) -> Any:
        return self.cluster.brokers[broker_id].call(request)

    def _check_end(self) -> None:
        checker = self.checker
        checker.compare_replicas()
        checker.check_plain()
        checker.check_transactions(self._final())
        for reader in self.processes.readers:
            for name in reader.names:
                if reader.got[name] != checker.expected(name, committed=reader.committed):
                    raise ViolationError(f"{reader.name} read other records than {name} has (18)")
        checker.check_history()
        self.counts += checker.counts

    # The beginning

    def _create_topics(self) -> None:
        knobs = self.knobs
        configs: dict[str, Any] = {
            name.replace(".", "_"): value for name, value in knobs.topic.items()
        }
        for name, count in {"in": knobs.inputs, "out": knobs.outputs}.items():
            self.cluster.create_topic(name, count, **configs)
            for number in range(count):
                place = TopicPartition(name, number)
                self.checker.mirrors[place] = CommittedMirror(place)


def run_seed(seed: int) -> tuple[int, str, Counter[str]]:
    """Do one run; return the seed, the violation ("" for none), and counts of events."""
    simulation = BrokersSimulation(seed)
    try:
        simulation.run()
    except Exception as error:  # noqa: BLE001 - any error is a result of the run
        return seed, "".join(traceback.format_exception_only(error)).strip(), simulation.counts
    return seed, "", simulation.counts
