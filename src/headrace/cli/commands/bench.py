"""`headrace bench`: measure how fast this client and a broker write and read."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.arguments.completion import complete_topics
from headrace.cli.arguments.connection import open_client
from headrace.cli.arguments.options import client_options
from headrace.cli.arguments.types import AcksType, DurationType, SizeType
from headrace.cli.command_group import CommandGroup, argument
from headrace.cli.output.printing import fail, print_facts, print_json
from headrace.cli.output.progress import Progress, size_text

if TYPE_CHECKING:
    from headrace.clients.producer.blocking import Producer
    from headrace.clients.producer.blocking_delivery import DeliveryFuture

POLL_S: Final = 0.5
MAX_SAMPLES: Final = 1_000_000
"""The most latencies kept in memory. Of more records every second, fourth, ... latency is kept."""
PERCENTILES: Final = (50, 95, 99)


@click.group(cls=CommandGroup)
def bench() -> None:
    """Measure how fast this client and a broker, Headrace or any Kafka, write and read.

    The numbers measure one client process and one broker together. On one machine both share its processors.
    """


_quiet = click.option("-q", "--quiet", is_flag=True, help="Do not show progress.")


@bench.command("produce")
@argument("topic", "The topic to write to. It must exist.", shell_complete=complete_topics)
@click.option(
    "-n",
    "--num",
    type=click.IntRange(min=1),
    default=100_000,
    show_default=True,
    help="The number of records.",
)
@click.option(
    "-s",
    "--size",
    type=SizeType(),
    default="100",
    show_default=True,
    help="The size of each record's value.",
)
@click.option(
    "--keys",
    type=click.IntRange(min=1),
    help="Use this many different keys.  [default: no keys]",
)
@click.option(
    "--rate", type=click.IntRange(min=1), help="The most records per second.  [default: no limit]"
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="The compression of the batches.  [default: none]",
)
@click.option(
    "--acks",
    type=AcksType(),
    metavar="all|NUMBER",
    help="The replicas that must acknowledge a record: all in-sync replicas, or a number of them. Numbers above 1 are "
    "for topics of Headrace.  [default: all]",
)
@_quiet
@partial(client_options, role="producer")
def produce(
    topic: str, bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any
) -> None:
    """Write records of random bytes to TOPIC, which must exist, and measure.

    The latency of a record is the time from `send` to its acknowledgement, including the wait for its batch. A rate
    that the broker cannot sustain therefore shows long latencies. The records stay in the topic.
    Exit code 1 if a record could not be written.

    Examples: headrace bench produce load -n 1000000 -s 200 --format json; headrace bench produce load --rate 1000;
    headrace bench produce load -X linger.ms=0 -X batch.size=1000000
    """
    from headrace.clients.producer.blocking import Producer

    _look_at(topic, bootstrap, properties)
    named = {"acks": options["acks"], "compression.type": options["compression"]}
    properties |= {name: value for name, value in named.items() if value is not None}
    producer = Producer(
        properties.pop("bootstrap.servers", bootstrap),
        serde="bytes",
        key_serde="bytes",
        **properties,
    )
    run = _Writing(options["num"])
    with Progress("sent", wanted=not options["quiet"]) as progress, producer:
        run.write(producer, topic, options, progress)
    document = {"topic": topic, "record_bytes": options["size"], **run.document(options["size"])}
    _print(document, as_json=as_json)
    if run.failed:
        fail(f"{run.failed} records were not written; the first: {run.first_error}")


def _look_at(topic: str, bootstrap: str, properties: dict[str, Any]) -> None:
    """Fail if no broker answers or the topic does not exist, before measuring: a producer would create the topic."""
    from headrace.cli.arguments.client_settings import general

    with open_client(bootstrap, general(properties)) as client:
        found = client.metadata([topic]).topics[topic]
    if found.error:
        fail(f"topic {topic!r}: {found.error.description}")


class _Writing:
    """The records of one run, and their latencies and errors."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._every = -(-count // MAX_SAMPLES)
        self._latencies_ns: list[int] = []
        self._took_s = 0.0
        self.written = 0
        self.failed = 0
        self.first_error = ""

    def write(
        self, producer: Producer, topic: str, options: dict[str, Any], progress: Progress
    ) -> None:
        """Send all records and wait for their acknowledgements."""
        size, keys, rate = options["size"], options["keys"], options["rate"]
        # So many different values that no codec finds a value again within its window.
        values = [os.urandom(size) for _ in range(max(1, min(1024, (16 << 20) // size)))]
        began = time.perf_counter()
        for number in range(self._count):
            if rate is not None:
                due_s = began + number / rate - time.perf_counter()
                if due_s > 0:
                    time.sleep(due_s)
            sampled = number % self._every == 0
            producer.send(
                topic,
                values[number % len(values)],
                key=None if keys is None else b"%d" % (number % keys),
                on_delivery=partial(self._delivered, time.perf_counter_ns() if sampled else None),
            )
            progress.add(1, size)
        producer.flush()
        self._took_s = time.perf_counter() - began

    def _delivered(self, sent_ns: int | None, delivery: DeliveryFuture) -> None:
        error = delivery.exception()
        if error is not None:
            self.failed += 1
            self.first_error = self.first_error or str(error)
            return
        self.written += 1
        if sent_ns is not None:
            self._latencies_ns.append(time.perf_counter_ns() - sent_ns)

    def document(self, size: int) -> dict[str, Any]:
        """Return the measurements as a JSON document."""
        latencies = sorted(self._latencies_ns)
        return {
            **_throughput(self.written, self.written * size, self._took_s),
            "failed": self.failed,
            "latency_ms": {
                "average": _ms(sum(latencies) / len(latencies)) if latencies else None,
                **{f"p{each}": _percentile(latencies, each) for each in PERCENTILES},
                "max": _ms(latencies[-1]) if latencies else None,
            },
        }


def _percentile(sorted_ns: list[int], percent: int) -> float | None:
    """Return a percentile of the latencies, in milliseconds."""
    if not sorted_ns:
        return None
    return _ms(sorted_ns[-(-len(sorted_ns) * percent // 100) - 1])


def _ms(duration_ns: float) -> float:
    return round(duration_ns / 1e6, 3)


def _throughput(records: int, size: int, took_s: float) -> dict[str, Any]:
    passed_s = max(took_s, 1e-9)
    return {
        "records": records,
        "bytes": size,
        "seconds": round(took_s, 3),
        "records_per_s": round(records / passed_s, 1),
        "bytes_per_s": round(size / passed_s, 1),
    }


@bench.command("consume")
@argument("topic", "The topic to read.", shell_complete=complete_topics)
@click.option(
    "-n",
    "--num",
    type=click.IntRange(min=1),
    help="The number of records.  [default: all up to the present end]",
)
@click.option(
    "--timeout",
    "timeout_ms",
    type=DurationType(),
    default="10s",
    show_default=True,
    help="End when no record arrived for this time.",
)
@_quiet
@partial(client_options, role="consumer")
def consume(
    topic: str, bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any
) -> None:
    """Read TOPIC from its start without a group, as bytes, and measure.

    The measurement lasts from the first request to the last record; `first_record_s` is the time to the first record.
    Exit code 1 if fewer than --num records arrived.
    """
    from headrace.clients.consumer.blocking import Consumer

    _look_at(topic, bootstrap, properties)
    defaults: dict[str, Any] = {"auto.offset.reset": "earliest", "max.poll.records": 5000}
    consumer = Consumer(
        properties.pop("bootstrap.servers", bootstrap),
        serde="bytes",
        key_serde="bytes",
        **defaults | properties,
    )
    with consumer, Progress("read", wanted=not options["quiet"]) as progress:
        document = _read(consumer, topic, options, progress)
    _print(document, as_json=as_json)
    if options["num"] is not None and document["records"] < options["num"]:
        fail(f"{document['records']} of {options['num']} records arrived")


def _read(consumer: Any, topic: str, options: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Read the records and count them."""
    partitions = consumer.partitions_for(topic)
    begins, ends = consumer.begin_offsets(partitions), consumer.end_offsets(partitions)
    wanted, timeout_s = options["num"], options["timeout_ms"] / 1000
    open_partitions = {where for where in partitions if begins[where] < ends[where]}
    began = last = time.perf_counter()
    first: float | None = None
    consumer.assign(begins)
    while progress.records < (wanted or 1 << 62) and (wanted is not None or open_partitions):
        records = consumer.poll(POLL_S)
        now = time.perf_counter()
        if records:
            first, last = first or now, now
            size = sum(len(each.value or b"") + len(each.key or b"") for each in records)
            progress.add(len(records), size)
        elif now - last > timeout_s:
            break
        if wanted is None:
            positions = consumer.positions()
            open_partitions = {
                where for where in open_partitions if (positions[where] or 0) < ends[where]
            }
    took_s = 0.0 if first is None else last - began
    return {
        "topic": topic,
        **_throughput(progress.records, progress.bytes, took_s),
        "first_record_s": None if first is None else round(first - began, 3),
    }


def _print(document: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(document)
        return
    facts: dict[str, object] = {
        "topic": document["topic"],
        "records": f"{document['records']:,}",
        "bytes": size_text(document["bytes"]),
        "time": f"{document['seconds']:.2f} s",
        "throughput": f"{document['records_per_s']:,.0f} records/s, {size_text(document['bytes_per_s'])}/s",
    }
    if "latency_ms" in document:
        told = {name: each for name, each in document["latency_ms"].items() if each is not None}
        facts["latency"] = ", ".join(f"{name} {each:.1f} ms" for name, each in told.items())
    if document.get("first_record_s") is not None:
        facts["first record"] = f"after {document['first_record_s']:.3f} s"
    print_facts(facts, 14)
