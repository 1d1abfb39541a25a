"""Put loads on a broker with one Python client, each in its own process, to measure the CPU and memory of the client.

Each client is used as its documentation shows: `send` and `flush`, `poll`. All have the same settings: acks=all,
idempotent, linger 5 ms, batches of 64 KiB, no compression. All other settings are the defaults.

    python -m benchmarks.macro.client_loads '["FUNCTION", ARGUMENT, ...]'

prints the result of the function as JSON. This module imports nothing that a client does not import itself.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HEADRACE, HEADRACE_AIO = "headrace", "headrace.aio"
HEADRACE_MANY = "headrace.send_many"
"""The name of Headrace's producer when it sends lists of records."""
CONFLUENT, AIOKAFKA, KAFKA_PYTHON = "confluent-kafka", "aiokafka", "kafka-python"
BLOCKING = (HEADRACE, KAFKA_PYTHON, CONFLUENT)
AIO = (HEADRACE_AIO, AIOKAFKA)
PARTITIONS = 6
QUIET = {"log_level": 3}
LEAD_NS = 300_000_000  # from the start of the sender until its first record is due
LATENCY_BYTES = 100
TIMEOUT_S = 60
LINGER_MS = 5
BATCH_BYTES = 64 << 10
WARM_UP = 2_000  # records that are sent before the measurement begins
CHUNK = 1_000  # records between two readings of the clock
POLL_RECORDS = (
    500  # largest number of records of a poll, for clients that need it; the default of the others
)


@dataclass(frozen=True)
class Cost:
    """The time, CPU and memory that a load took in the client's process."""

    records: int
    wall_s: float
    cpu_s: float
    peak_mb: float


class _Span:
    def __init__(self) -> None:
        self.begun, self._cpu = time.perf_counter(), time.process_time()

    def cost(self, records: int) -> Cost:
        wall_s, cpu_s = time.perf_counter() - self.begun, time.process_time() - self._cpu
        return Cost(records, wall_s, cpu_s, peak_mb())


def peak_mb() -> float:
    """Return the peak resident memory of this process in MB; 0 if the system does not report it."""
    status = Path("/proc/self/status")  # getrusage also includes the peak of the parent
    if not status.exists():
        return 0.0
    line = next(x for x in status.read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


# Producers, blocking and asyncio: (send, flush, between chunks)

Sending = tuple[Callable[[str, Any], Any], Callable[[], Any], Callable[[], Any]]


@contextmanager
def producer(client: str, bootstrap: str, linger_ms: int = LINGER_MS) -> Iterator[Sending]:
    """Open a blocking producer."""
    if client in {HEADRACE, HEADRACE_MANY}:
        import headrace

        with headrace.Producer(bootstrap, linger_ms=linger_ms, batch_size=BATCH_BYTES) as mine:
            send = mine.send if client == HEADRACE else mine.send_many
            yield send, mine.flush, lambda: None
    elif client == KAFKA_PYTHON:
        from kafka import KafkaProducer

        theirs = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all",
            enable_idempotence=True,
            linger_ms=linger_ms,
            batch_size=BATCH_BYTES,
        )
        yield theirs.send, theirs.flush, lambda: None
        theirs.close()
    else:
        from confluent_kafka import Producer

        settings = {"acks": "all", "enable.idempotence": True, "linger.ms": linger_ms}
        settings["batch.size"] = BATCH_BYTES
        native = Producer({**QUIET, "bootstrap.servers": bootstrap, **settings})

        def serve() -> None:
            native.poll(0)
            while len(native) > 90_000:  # its queue holds 100,000
                native.poll(0.01)

        yield native.produce, native.flush, serve


@asynccontextmanager
async def aio_producer(
    client: str, bootstrap: str, linger_ms: int = LINGER_MS
) -> AsyncIterator[tuple[Callable[[str, bytes], Awaitable[Any]], Callable[[], Awaitable[Any]]]]:
    """Open an asyncio producer."""
    if client == HEADRACE_AIO:
        from headrace import aio

        async with aio.Producer(bootstrap, linger_ms=linger_ms, batch_size=BATCH_BYTES) as mine:
            yield mine.send, mine.flush
        return
    from aiokafka import AIOKafkaProducer

    theirs = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=True,
        linger_ms=linger_ms,
        max_batch_size=BATCH_BYTES,
    )
    await theirs.start()
    yield theirs.send, theirs.flush
    await theirs.stop()


def produce(client: str, bootstrap: str, topic: str, record_bytes: int, seconds: float) -> Cost:
    """Send records for `seconds`, and wait until they are acknowledged."""
    value = b"x" * record_bytes
    if client in AIO:
        return asyncio.run(_aio_produce(client, bootstrap, topic, value, seconds))
    many = client == HEADRACE_MANY
    given: Any = [value] * CHUNK if many else value
    calls = range(1 if many else CHUNK)
    with producer(client, bootstrap) as (send, flush, between):
        for _ in range(WARM_UP):
            send(topic, [value] if many else value)
        flush()
        span, sent = _Span(), 0
        while time.perf_counter() - span.begun < seconds:
            for _ in calls:
                send(topic, given)
            between()
            sent += CHUNK
        flush()
        return span.cost(sent)


async def _aio_produce(
    client: str, bootstrap: str, topic: str, value: bytes, seconds: float
) -> Cost:
    async with aio_producer(client, bootstrap) as (send, flush):
        for _ in range(WARM_UP):
            await send(topic, value)
        await flush()
        span, sent = _Span(), 0
        while time.perf_counter() - span.begun < seconds:
            for _ in range(CHUNK):
                await send(topic, value)
            sent += CHUNK
        await flush()
        return span.cost(sent)


# Consumers: a function that returns the values of the next records


@contextmanager
def consumer(
    client: str, bootstrap: str, topic: str, most: int = POLL_RECORDS
) -> Iterator[Callable[[], list[bytes]]]:
    """Open a blocking consumer of a whole topic; librdkafka waits until it has `most` records."""
    if client == HEADRACE:
        import headrace

        with headrace.Consumer(bootstrap) as mine:
            mine.assign({headrace.TopicPartition(topic, each): 0 for each in range(PARTITIONS)})
            yield lambda: [record.value for record in mine.poll(1.0)]
    elif client == KAFKA_PYTHON:
        from kafka import KafkaConsumer, TopicPartition

        theirs = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        theirs.assign([TopicPartition(topic, each) for each in range(PARTITIONS)])
        yield lambda: [
            record.value for part in theirs.poll(timeout_ms=1000).values() for record in part
        ]
        theirs.close()
    else:
        import confluent_kafka

        settings = {"bootstrap.servers": bootstrap, "group.id": "bench"}
        native = confluent_kafka.Consumer({**QUIET, **settings})
        parts = [confluent_kafka.TopicPartition(topic, each, 0) for each in range(PARTITIONS)]
        native.assign(parts)
        yield lambda: [
            message.value() for message in native.consume(most, 0.1) if not message.error()
        ]
        native.close()


@asynccontextmanager
async def aio_consumer(
    client: str, bootstrap: str, topic: str
) -> AsyncIterator[Callable[[], Awaitable[list[bytes]]]]:
    """Open an asyncio consumer of a whole topic."""
    if client == HEADRACE_AIO:
        from headrace import TopicPartition, aio

        async with aio.Consumer(bootstrap) as mine:
            await mine.assign({TopicPartition(topic, each): 0 for each in range(PARTITIONS)})

            async def read() -> list[bytes]:
                return [record.value for record in await mine.poll(1.0)]

            yield read
        return
    import aiokafka

    theirs = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    theirs.assign([aiokafka.TopicPartition(topic, each) for each in range(PARTITIONS)])
    await theirs.start()

    async def read_theirs() -> list[bytes]:
        taken = await theirs.getmany(timeout_ms=1000, max_records=POLL_RECORDS)
        return [record.value for part in taken.values() for record in part]

    yield read_theirs
    await theirs.stop()


def consume(client: str, bootstrap: str, topic: str, records: int, seconds: float) -> Cost:
    """Read a topic from its start, completely or for `seconds`; the time to connect counts."""
    if client in AIO:
        return asyncio.run(_aio_consume(client, bootstrap, topic, records, seconds))
    with consumer(client, bootstrap, topic) as read:
        span, seen = _Span(), 0
        while seen < records and time.perf_counter() - span.begun < seconds:
            seen += len(read())
        return span.cost(seen)


async def _aio_consume(
    client: str, bootstrap: str, topic: str, records: int, seconds: float
) -> Cost:
    async with aio_consumer(client, bootstrap, topic) as read:
        span, seen = _Span(), 0
        while seen < records and time.perf_counter() - span.begun < seconds:
            seen += len(await read())
        return span.cost(seen)


# End-to-end latency at a fixed rate, from when a record was due


def send_paced(client: str, bootstrap: str, topic: str, rate: int, records: int) -> int:
    """Send each record when it is due, without linger; return when the first one was due."""
    filler = bytes(LATENCY_BYTES - 8)
    gc.disable()
    if client in AIO:
        return asyncio.run(_aio_send_paced(client, bootstrap, topic, rate, records))
    with producer(client, bootstrap, linger_ms=0) as (send, flush, between):
        send(
            topic, bytes(8) + filler
        )  # opens the connection; the record does not count, because it was due long ago
        flush()
        first = time.monotonic_ns() + LEAD_NS
        for number in range(records):
            due = first + number * 1_000_000_000 // rate
            while (wait := due - time.monotonic_ns()) > 0:
                time.sleep(wait / 1e9)
            send(topic, due.to_bytes(8, "big") + filler)
            between()
        flush()
    return first


async def _aio_send_paced(client: str, bootstrap: str, topic: str, rate: int, records: int) -> int:
    filler = bytes(LATENCY_BYTES - 8)
    async with aio_producer(client, bootstrap, linger_ms=0) as (send, flush):
        await send(topic, bytes(8) + filler)
        await flush()
        first = time.monotonic_ns() + LEAD_NS
        for number in range(records):
            due = first + number * 1_000_000_000 // rate
            if (wait := due - time.monotonic_ns()) > 0:
                await asyncio.sleep(wait / 1e9)
            await send(topic, due.to_bytes(8, "big") + filler)
        await flush()
    return first


Timed = list[tuple[int, int]]
"""The due time of each record, and how much later the consumer received it, in nanoseconds."""


def receive_paced(client: str, bootstrap: str, topic: str, records: int) -> Timed:
    """Receive the given number of records."""
    gc.disable()
    if client in AIO:
        return asyncio.run(_aio_receive_paced(client, bootstrap, topic, records))
    timed: Timed = []
    until = time.monotonic() + TIMEOUT_S
    with consumer(client, bootstrap, topic, most=1) as read:
        while len(timed) < records and time.monotonic() < until:
            _note(read(), timed)
    return timed


async def _aio_receive_paced(client: str, bootstrap: str, topic: str, records: int) -> Timed:
    timed: Timed = []
    until = time.monotonic() + TIMEOUT_S
    async with aio_consumer(client, bootstrap, topic) as read:
        while len(timed) < records and time.monotonic() < until:
            _note(await read(), timed)
    return timed


def _note(values: list[bytes], timed: Timed) -> None:
    now = time.monotonic_ns()
    for value in values:
        due = int.from_bytes(value[:8], "big")
        if due:
            timed.append((due, now - due))


# In process


def in_process(client: str, record_bytes: int, seconds: float, batch: int) -> Cost:
    """Send, flush and poll `batch` records at a time, with producer, broker and consumer in one process on one core."""
    import headrace

    value = b"x" * record_bytes
    with headrace.Broker() as broker:
        broker.create_topic("t", partitions=1)
        with (
            headrace.Producer(broker) as source,
            headrace.Consumer(broker, group="bench", auto_offset_reset="earliest") as sink,
        ):
            sink.subscribe(["t"])
            source.send("t", value).result()
            while not sink.poll(1.0):
                pass
            span, done = _Span(), 0
            while time.perf_counter() - span.begun < seconds:
                if client == HEADRACE_MANY:
                    source.send_many("t", [value] * batch)
                else:
                    for _ in range(batch):
                        source.send("t", value)
                source.flush()
                seen = 0
                while seen < batch:
                    seen += len(sink.poll(1.0))
                done += seen
            return span.cost(done)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (produce, consume, send_paced, receive_paced, in_process)
}

if __name__ == "__main__":
    name, *arguments = json.loads(sys.argv[1])
    found = FUNCTIONS[name](*arguments)
    print(json.dumps(asdict(found) if isinstance(found, Cost) else found))
