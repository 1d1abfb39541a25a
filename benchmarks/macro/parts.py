"""Define the parts of the comparison: the loads of one round, in their order."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from itertools import product
from subprocess import SubprocessError
from typing import Any

from confluent_kafka import KafkaException

from benchmarks.macro import coordinator, peers, workloads
from benchmarks.macro.cold import CatchUp, drop_from_cache
from benchmarks.macro.latency import KafkaSender, LingeringSender, end_to_end, kafka_receiver
from benchmarks.macro.peers import PeerServer
from benchmarks.macro.report import Results, Row
from benchmarks.macro.servers import Meter, Server
from benchmarks.macro.workloads import Run


@dataclass(frozen=True)
class Scale:
    """The amount of work of each load."""

    rounds: int
    records_100: int
    records_1024: int
    paced_seconds: int
    requests: int
    acks: tuple[str, ...]
    single_records: int  # of the part singles
    many_records: int  # of the parts producers and partitions
    latency_seconds: int
    cold_records: int
    group_records: int  # for each group
    joins: int
    commits: int

    def records(self, record_bytes: int) -> int:
        """Return the number of records of one throughput run."""
        return self.records_100 if record_bytes == 100 else self.records_1024


FULL = Scale(
    rounds=3,
    records_100=1_000_000,
    records_1024=250_000,
    paced_seconds=2,
    requests=4_000,
    acks=("1", "all"),
    single_records=30_000,
    many_records=500_000,
    latency_seconds=4,
    cold_records=1_000_000,
    group_records=4_000,
    joins=800,
    commits=8_000,
)
QUICK = Scale(
    rounds=1,
    records_100=300_000,
    records_1024=75_000,
    paced_seconds=2,
    requests=1_500,
    acks=("all",),
    single_records=6_000,
    many_records=100_000,
    latency_seconds=3,
    cold_records=300_000,
    group_records=1_000,
    joins=160,
    commits=1_600,
)
PACED_PER_S = 500
SIZES = (100, 1024)
FSYNC_SHARE = 5  # a synced broker gets a fifth of the records
PRODUCERS = (1, 10, 100)
PARTITIONS = {
    1: 1,
    10: 1,
    100: 5,
    1000: 10,
}  # number of partitions, and the divisor of the number of records
SMALL_CHUNK = 100  # records per call, with many producers or partitions
PEER_SHARE = 4  # the factor of the number of records for servers that take single records
NO_LINGER = "no linger"
LATENCY_RATES = ((1_000, NO_LINGER), (10_000, NO_LINGER), (10_000, "linger 5 ms"))
TAIL_RATE, TAIL_SECONDS = 1_000, 6
GROUPS = 50
COLD = (
    0.05  # the fraction of a log that may be in the page cache if it counts as read from the disk
)
FAILURES = (
    RuntimeError,
    OSError,
    SubprocessError,
    KafkaException,
)  # errors of a load, which end one row and not the run


Outcome = Run | dict[str, float]
Loads = Sequence[tuple[str, Callable[..., Run]]]


@dataclass
class Broker:
    """A running broker of the comparison."""

    target: str
    preset: str
    server: Server | PeerServer
    meter: Meter
    results: Results
    topics: int = 0

    @property
    def bootstrap(self) -> str:
        """Return the address as `HOST:PORT`."""
        return self.server.bootstrap

    def topic(self, partitions: int = workloads.PARTITIONS) -> str:
        """Create a topic and return its name."""
        name = self.name()
        workloads.create_topic(self.bootstrap, name, partitions)
        return name

    def name(self) -> str:
        """Return a name that no topic has."""
        self.topics += 1
        return f"bench-{self.topics}"

    def delete(self, topic: str) -> None:
        """Delete a topic, so that the disk does not fill."""
        workloads.delete_topic(self.bootstrap, topic)

    def note(self, case: str, metric: str, value: float | None) -> None:
        """Store one value of a metric."""
        if value is not None:
            self.results.note(Row(self.preset, case, metric), self.target, value)

    def measure(
        self, case: str, load: Callable[[str, str], Outcome], topic: str, *, per: int = 0
    ) -> None:
        """Put a load on the broker; store its result and the broker's cost, per request if `per` counts requests.

        A load that fails leaves a note instead.
        """
        self.meter.reset()
        try:
            outcome = load(self.bootstrap, topic)
        except FAILURES as error:
            self.results.fail(f"{self.preset}, {case}, {self.target}: {error}"[:300])
            print(f"  {case}, {self.target}: {error}", file=sys.stderr, flush=True)
            return
        cpu_s = self.meter.cost().cpu_s
        for metric, value in outcome.items() if isinstance(outcome, dict) else ():
            self.note(case, metric, value)
        if isinstance(outcome, Run):
            self._keep(case, outcome)
            if not per:
                self.note(case, "broker CPU s/GB", cpu_s / (outcome.megabytes / 1000))
        if per:
            self.note(case, "broker CPU s/1000 requests", cpu_s / per * 1000)

    def _keep(self, case: str, run: Run) -> None:
        self.note(case, "records/s", run.records_per_s)
        self.note(case, "p50 ms", run.p50_ms)
        self.note(case, "p99 ms", run.p99_ms)


@dataclass(frozen=True)
class Round:
    """The brokers and settings with which a part of the comparison works."""

    preset: str
    scale: Scale
    brokers: list[Broker]  # Headrace and Kafka, in the order of this round
    peers: list[Broker]
    pool: Executor

    @property
    def acks(self) -> tuple[str, ...]:
        """Return the values of acks to measure; one is enough for a broker that syncs before each acknowledgement."""
        return ("all",) if self.preset == "fsync" else self.scale.acks

    def share(self, records: int) -> int:
        """Return the number of records of a load that durability slows down."""
        return records // (FSYNC_SHARE if self.preset == "fsync" else 1)


def requests(this: Round) -> None:
    """Measure requests of one record."""
    for in_flight in (1, 32):
        count = this.scale.requests * (1 if in_flight == 1 else 4)
        case = f"requests of one 100 B record, {in_flight} in flight"
        load = partial(workloads.plain_requests, requests=count, in_flight=in_flight)
        for broker in this.brokers:
            broker.measure(case, load, broker.topic(), per=count)


def paced(this: Round) -> None:
    """Measure the latency of acknowledgements at a low rate, one record in each request."""
    records = PACED_PER_S * this.scale.paced_seconds
    for record_bytes, acks in product(SIZES, this.acks):
        case = f"{PACED_PER_S}/s, {record_bytes} B, acks={acks} (librdkafka, no linger)"
        load = partial(
            workloads.paced_latency,
            records=records,
            record_bytes=record_bytes,
            acks=acks,
            records_per_s=PACED_PER_S,
        )
        for broker in this.brokers:
            broker.measure(case, load, broker.topic(), per=records)


def throughput(this: Round) -> None:
    """Measure one client at full speed."""
    producers: Loads = (
        ("java", workloads.java_produce),
        ("librdkafka", workloads.librdkafka_produce),
    )
    consumers: Loads = (
        ("java", workloads.java_consume),
        ("librdkafka", workloads.librdkafka_consume),
    )
    for record_bytes in SIZES:
        records = this.share(this.scale.records(record_bytes))
        amount: dict[str, Any] = {"records": records, "record_bytes": record_bytes}
        full: dict[str, str] = {}
        for acks, (name, produce) in product(this.acks, producers):
            for broker in this.brokers:
                if broker.target in full:
                    broker.delete(full[broker.target])
                topic = full[broker.target] = broker.topic()
                case = f"produce {record_bytes} B, acks={acks} ({name})"
                broker.measure(case, partial(produce, **amount, acks=acks), topic)
        # Durability does not touch reads, so they are measured once.
        for name, consume in consumers if this.preset == "os" else ():
            for broker in this.brokers:
                case = f"consume {record_bytes} B ({name})"
                broker.measure(case, partial(consume, **amount), full[broker.target])
        for broker in this.brokers:
            broker.delete(full[broker.target])


def producers(this: Round) -> None:
    """Measure one, ten and a hundred producers at full speed."""
    for count in PRODUCERS:
        case = f"{count} producer{'s' * (count > 1)}, 100 B, acks=all (librdkafka)"
        load = partial(
            workloads.librdkafka_produce,
            records=this.share(this.scale.many_records),
            record_bytes=100,
            acks="all",
            producers=count,
            chunk=SMALL_CHUNK,
        )
        for broker in this.brokers:
            topic = broker.topic()
            broker.measure(case, load, topic)
            broker.delete(topic)


def partitions(this: Round) -> None:
    """Create, write and read topics of one to a thousand partitions."""
    for count, fewer in PARTITIONS.items():
        # Many partitions make small requests of librdkafka, so there are fewer records; each partition gets some.
        records = this.share(this.scale.many_records) // fewer
        chunk = min(SMALL_CHUNK, records // count)
        amount: dict[str, Any] = {"records": records, "record_bytes": 100}
        where = f"{count:,} partition{'s' * (count > 1)}"
        produce = partial(
            workloads.librdkafka_produce,
            **amount,
            acks="all",
            partitions=count,
            chunk=chunk,
        )
        consume = partial(workloads.librdkafka_consume, **amount, partitions=count)
        for broker in this.brokers:
            topic = broker.name()
            seconds = workloads.create_topic(broker.bootstrap, topic, count)
            broker.note(f"{where}: create", "s until all have leaders", seconds)
            broker.measure(f"{where}: produce 100 B, acks=all (librdkafka)", produce, topic)
            if this.preset == "os":
                broker.measure(f"{where}: consume 100 B (librdkafka)", consume, topic)
            broker.delete(topic)


def singles(this: Round) -> None:
    """Measure single records, which all servers support, over one to a hundred connections."""
    for count in PRODUCERS:
        case = f"{count} connection{'s' * (count > 1)}, one 100 B record a request, 500 in flight"
        for broker in (*this.brokers, *this.peers):
            records = this.share(this.scale.single_records)
            if broker in this.peers:
                records *= PEER_SHARE
            topic = _place(broker)
            if broker in this.brokers:  # the leader of a new topic may need a moment
                workloads.plain_requests(broker.bootstrap, topic, requests=1, in_flight=1)
            load = partial(
                peers.produce, broker.target, records=records, record_bytes=100, producers=count
            )
            broker.measure(case, load, topic, per=records)
            if broker in this.peers and count == max(PRODUCERS):
                read = partial(peers.consume, broker.target, records=records, record_bytes=100)
                broker.measure("consume 100 B, one by one", read, topic)


def _place(broker: Broker) -> str:
    """Create a topic, or the equivalent of another server."""
    if broker.target not in peers.SENDERS:
        return broker.topic()
    topic = broker.name()
    peers.create(broker.target, broker.bootstrap, topic)
    return topic


def latency(this: Round) -> None:
    """Measure the latency from the due time to the consumer at fixed rates, also of the other servers."""
    seconds = this.scale.latency_seconds
    for rate, linger in LATENCY_RATES:
        case = f"end to end, {rate:,}/s, 100 B, acks=all, {linger}"
        sender = KafkaSender if linger == NO_LINGER else LingeringSender
        for broker in (*this.brokers, *(this.peers if linger == NO_LINGER else ())):
            load = partial(
                end_to_end,
                pool=this.pool,
                rate=rate,
                seconds=seconds,
                sender=peers.SENDERS.get(broker.target, sender),
                receiver=peers.RECEIVERS.get(broker.target, kafka_receiver),
            )
            broker.measure(case, load, _place(broker), per=rate * seconds)


def catch_up(this: Round) -> None:
    """Read a topic from the disk while other clients write and read at the end of another topic."""
    if this.preset != "os":
        return  # durability does not change reads
    records = this.scale.cold_records
    for broker in this.brokers:
        cold = broker.topic()
        workloads.librdkafka_produce(
            broker.bootstrap, cold, records=records, record_bytes=1024, acks="all"
        )
        assert not isinstance(broker.server, PeerServer)
        cached = drop_from_cache(broker.server.directory / "data", cold)
        kind = "from the disk" if cached <= COLD else "(the page cache could not be emptied)"
        load = partial(_catch_up, cold=cold, records=records, pool=this.pool)
        case = f"catch-up {kind}, 1 KiB (librdkafka), and a tail of {TAIL_RATE:,}/s"
        broker.measure(case, load, broker.topic())
        broker.delete(cold)


def _catch_up(
    bootstrap: str, tail: str, *, cold: str, records: int, pool: Executor
) -> dict[str, float]:
    reader = CatchUp(pool, bootstrap, cold, records, 1024)
    measured = end_to_end(
        bootstrap, tail, pool=pool, rate=TAIL_RATE, seconds=TAIL_SECONDS, during=reader
    )
    tails = {f"tail meanwhile, {name}": value for name, value in measured.items()}
    return {"records/s": reader.run.records_per_s, **tails}


def groups(this: Round) -> None:
    """Measure fifty groups at once, and the rate of joins and commits of the coordinator."""
    records = this.scale.group_records
    case = f"{GROUPS} groups join, read and commit (librdkafka)"
    many = partial(coordinator.many_groups, groups=GROUPS, records=records)
    for broker in this.brokers:
        topic = broker.topic()
        workloads.librdkafka_produce(
            broker.bootstrap, topic, records=records, record_bytes=100, acks="all", chunk=100
        )
        broker.measure(case, many, topic)
    joins, commits = this.share(this.scale.joins), this.share(this.scale.commits)
    case = "join, sync and leave, 8 groups at once"
    for broker in this.brokers:
        load = partial(coordinator.joins, cycles=joins)
        broker.measure(case, load, broker.topic(), per=joins)
    for broker in this.brokers:
        load = partial(coordinator.commits, count=commits)
        broker.measure("offset commits, 8 groups at once", load, broker.topic(), per=commits)


PARTS: Mapping[str, Callable[[Round], None]] = {
    "requests": requests,
    "paced": paced,
    "throughput": throughput,
    "producers": producers,
    "partitions": partitions,
    "singles": singles,
    "latency": latency,
    "catch-up": catch_up,
    "groups": groups,
}
