"""One simulation run of a cluster, determined by a seed: processes, faults, and the checks at the end."""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.broker.context import RequestContext
from headrace.broker.session import LOCAL
from headrace.deferred import Deferred
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.frame import RequestHeader
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
)
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from headrace.records.batch import iterate_headers
from headrace.records.reader import read_records
from headrace.types import TopicPartition
from tests.simulation.checker import Checker, Mirror
from tests.simulation.knobs import Knobs
from tests.simulation.machine import Machine, ViolationError
from tests.simulation.network import ADDRESS, Frame, Network, NetworkConditions
from tests.simulation.processes import REPEATED, Processes
from tests.simulation.programs import GROUP


class ClusterSimulation:
    """The simulated cluster of one seed."""

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.knobs = knobs = Knobs(seed)
        self.counts: Counter[str] = Counter()
        self.machine = Machine(
            random.Random(f"disk {seed}"),
            knobs.broker,
            knobs.sync_ms,
            knobs.codec_ms,
            loads_in_steps=knobs.loads_in_steps,
        )
        self.machine.tracing = trace
        hosts = {ADDRESS: self.machine}
        self.network = Network(self.machine, hosts, random.Random(f"net {seed}"), knobs.conditions)
        self._chance = random.Random(f"nemesis {seed}")
        self._failure_after: tuple[int, bool] | None = None
        """The API key of the response after which the broker fails, and whether the power fails too; None for none."""
        self.checker = Checker(GROUP, lambda: self.machine.now_ms)
        self._create_topics()
        self.machine.after_step = self.checker.at_rest
        self.machine.after_start = self.checker.restarted
        self.machine.after_fall = partial(self.network.broker_fell, self.machine)
        self.network.on_request = self._hear
        self.network.on_decided = self.checker.decided
        self.network.on_response = self._answered
        self.processes = Processes(self.network, knobs, self.checker, self._chance, self.counts)
        self._faults: dict[str, Callable[[], None]] = {
            "power": partial(self._fall, cut_power=True),
            "kill": partial(self._fall, cut_power=False),
            "cut": self.processes.cut,
            "stall": self.processes.stall,
            "pause": self.processes.pause,
            "die": self.processes.die,
            "repeat": self.processes.repeat,
            "marker": self._marker,
        }

    def run(self) -> None:
        """Run all events, then check.

        Raises:
            ViolationError: An invariant is violated.
        """
        machine, knobs = self.machine, self.knobs
        end_ms = machine.now_ms + knobs.duration_ms
        for fault, rate in knobs.faults.items():
            if rate:
                self._plan(fault, rate, end_ms)
        try:
            machine.schedule.run_until(end_ms)
            self._settle()
            self._check_end()
        finally:
            for process in self.network.processes:
                process.dead = True  # its flows end with the memory of the run

    # Faults

    def _plan(self, fault: str, rate: float, end_ms: int) -> None:
        when_ms = self.machine.now_ms + round(1000 * self._chance.expovariate(rate))
        if when_ms < end_ms:
            self.machine.schedule.at(when_ms, partial(self._happen, fault, rate, end_ms))

    def _happen(self, fault: str, rate: float, end_ms: int) -> None:
        self._faults[fault]()
        self._plan(fault, rate, end_ms)

    def _fall(self, *, cut_power: bool) -> None:
        if self.machine.broker is None:
            return
        self.counts["power cuts" if cut_power else "kills"] += 1
        how = self._chance.random()
        if how < 0.2:
            self.machine.fall(cut_power=cut_power)
        elif how < 0.6:
            self.machine.schedule_failure(
                cut_power=cut_power, operations=self._chance.randint(1, 12)
            )
        else:
            self._failure_after = (
                self._chance.choice([*REPEATED, ApiKey.INIT_PRODUCER_ID]),
                cut_power,
            )

    def _fail_after_response(self, *, cut_power: bool) -> None:
        """End the broker right after the response that `_failure_after` names."""

        def spring() -> None:
            if self.machine.broker is not None and not self.knobs.calm:
                self.machine.fall(cut_power=cut_power)

        delay_ms = self._chance.choice([0, 1, 5, 20])
        self.machine.schedule.at(self.machine.now_ms + delay_ms, spring)

    def _marker(self) -> None:
        """Write a marker with an earlier epoch than that of the open transaction."""
        found = [
            (name, producer_id, mirror.sequences[producer_id][0])
            for name, mirror in self.checker.mirrors.items()
            for producer_id in mirror.open
            if mirror.sequences.get(producer_id, (0, 0))[0] > 0
        ]
        if not found or self.machine.broker is None:
            return
        self.counts["markers"] += 1
        name, producer_id, epoch = self._chance.choice(found)
        marker = WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=epoch - 1,
            transaction_result=self._chance.random() < 0.5,
            topics=[WritableTxnMarkerTopic(name=name.topic, partition_indexes=[name.partition])],
            coordinator_epoch=0,
        )
        request = WriteTxnMarkersRequest(markers=[marker])
        self.machine.step(lambda: self._ask(request))

    def _hear(self, frame: Frame, request: Message) -> None:
        if self.machine.tracing:
            self.machine.trace(f"{sender_of(frame)}> {described(request)}")
        self.processes.hear(frame)
        self.checker.asked(frame, request)

    def _answered(self, frame: Frame, request: Message, response: Message) -> None:
        if self.machine.tracing:
            self.machine.trace(f"{sender_of(frame)}< {response}")
        self.checker.answered(frame, request, response)
        if self._failure_after is not None and frame.api_key == self._failure_after[0]:
            self._fail_after_response(cut_power=self._failure_after[1])
            self._failure_after = None

    # The end

    def _settle(self) -> None:
        """End the faults, and wait until nothing is in flight and everything is processed."""
        machine = self.machine
        knobs = self.knobs
        self.network.conditions = NetworkConditions(delay_ms=1)
        self._failure_after = None
        machine.calm()
        knobs.calm = True
        for process in self.processes.plain:
            process.stopping = True
        end_ms = machine.now_ms + knobs.settling_ms
        while machine.now_ms < end_ms:
            machine.schedule.run_until(machine.now_ms + 500)
            if self._settled():
                return
        raise ViolationError(f"the run does not settle: {self._unsettled()} (20)")

    def _settled(self) -> bool:
        return not self._unsettled()

    def _unsettled(self) -> str:
        """Return what is not settled yet; "" if everything is."""
        if self.machine.broker is None:
            return "the broker is down"
        if not all(process.done for process in self.processes.plain):
            return "producers are at work"
        return self._undecided() or self._unread()

    def _undecided(self) -> str:
        for name, mirror in self.checker.mirrors.items():
            if mirror.last_stable_offset != mirror.end:
                return f"{name} ends at {mirror.end}, stable until {mirror.last_stable_offset}"
        listed = self._ask(ListGroupsRequest())
        states = [] if listed is None else [group.group_state for group in listed.groups]
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
        response = self._ask(request)
        if response is None:
            return {}
        (group,) = response.groups
        return {
            TopicPartition(topic.name, part.partition_index): part.committed_offset
            for topic in group.topics
            for part in topic.partitions
            if not part.error_code
        }

    def _check_end(self) -> None:
        broker = self.machine.broker
        assert broker is not None
        checker = self.checker
        checker.check_plain()
        checker.check_transactions(self._final())
        for reader in self.processes.readers:
            for name in reader.names:
                expected = checker.expected(name, committed=reader.committed)
                if reader.got[name] != expected:
                    raise ViolationError(f"{reader.name} read other records than {name} has (18)")
        checker.check_history()
        if self.machine.journal.errors:
            raise ViolationError(f"the broker logged: {self.machine.journal.errors[0]} (25)")
        self.counts += checker.counts

    # The beginning

    def _create_topics(self) -> None:
        knobs = self.knobs
        configs = [
            CreatableTopicConfig(name=name, value=value) for name, value in knobs.topic.items()
        ]
        partitions = {"in": knobs.inputs, "out": knobs.outputs}
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=name, num_partitions=count, replication_factor=1, configs=configs
                )
                for name, count in partitions.items()
            ]
        )
        response = self._ask(request)
        assert not any(topic.error_code for topic in response.topics), response
        for name, count in partitions.items():
            for number in range(count):
                place = TopicPartition(name, number)
                self.checker.mirrors[place] = Mirror(place)

    def _ask(self, request: Message) -> Any:
        """Send a request to the broker without the network, and return the response."""
        broker = self.machine.broker
        assert broker is not None
        version = max(api.served.max for api in broker.apis if api.key == request.API_KEY)
        context = RequestContext(
            now_ms=self.machine.now_ms,
            header=RequestHeader(request.API_KEY, version, 0, "simulation"),
            client_address="10.0.0.1:50000",
            listener_host="127.0.0.1",
            listener_port=9092,
            session=LOCAL,
        )
        reply = broker.handle(context, request)
        while isinstance(reply, Deferred) and not reply.done:
            batch = broker.start_sync()
            if batch is None:
                return None  # a load is running
            batch.run()
            broker.finish_sync(batch, None, self.machine.now_ms)
        return reply.value if isinstance(reply, Deferred) else reply


def run_seed(seed: int) -> tuple[int, str, Counter[str]]:
    """Do one run; return the seed, the violation ("" for none), and counts of events."""
    simulation = ClusterSimulation(seed)
    try:
        simulation.run()
    except Exception as error:  # noqa: BLE001 - any error is a result of the run
        return seed, "".join(traceback.format_exception_only(error)).strip(), simulation.counts
    return seed, "", simulation.counts


def sender_of(frame: Frame) -> str:
    return "again " if frame.client is None else f"{frame.client.process.name} "


def described(request: Message) -> str:
    """Return a request as text for a trace, with the content of its batches."""
    if not isinstance(request, ProduceRequest):
        return repr(request)
    parts = [
        f"{topic.name}-{data.index} {header.producer_id}/{header.producer_epoch} "
        f"sequence {header.base_sequence} {[record.value for record in read_records(records)]}"
        for topic in request.topic_data
        for data in topic.partition_data
        for records in [bytes(data.records or b"")]  # type: ignore[arg-type]  # a request has no file ranges
        for _, header in iterate_headers(records)
    ]
    return f"Produce {request.transactional_id} {'; '.join(parts)}"
