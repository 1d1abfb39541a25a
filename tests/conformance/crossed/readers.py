"""Every way to read the records of a topic. Each reader returns the records in any order."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
from collections.abc import Callable
from contextlib import closing

import aiokafka
import confluent_kafka
import msgspec

import headrace
import headrace.aio
from headrace.clients.consumer.records import ConsumerRecord
from headrace.serdes.serde import resolve_serde
from tests.conformance.crossed.records import Sent
from tests.conformance.crossed.writers import Place, kafka

WAIT_S = 20


def _sent(record: ConsumerRecord) -> Sent:
    return Sent(record.key, record.value, tuple(record.headers))


def _data(fields: dict[str, str], name: str) -> bytes | None:
    if fields[name] is None:
        return None
    if fields.get(f"{name}_encoding"):
        return base64.b64decode(fields[name])
    return fields[name].encode()


def consume(place: Place, count: int) -> list[Sent]:
    """Read with a template. A template does not distinguish null from empty, so those values are read separately."""
    template = "%K{big32}%k%V{big32}%v%H%h{%K{byte}%k%V{byte}%v}"
    out = place.run("consume", place.topic, "-n", str(count), "-f", template).out
    found = []
    while out:
        key, out = _sized(out, 4)
        value, out = _sized(out, 4)
        number, out, headers = int(out[:1]), out[1:], []
        for _ in range(number):
            name, out = _sized(out, 1)
            data, out = _sized(out, 1)
            headers.append((name.decode(), data))
        found.append(Sent(key, value, tuple(headers)))
    return found


def _sized(data: bytes, width: int) -> tuple[bytes, bytes]:
    end = width + int.from_bytes(data[:width], "big")
    return data[width:end], data[end:]


def consume_json(place: Place, count: int) -> list[Sent]:
    done = place.run("consume", place.topic, "-n", str(count), "--format", "json")
    return [
        Sent(
            _data(row, "key") or b"",
            _data(row, "value"),
            tuple((each["key"], _data(each, "value")) for each in row["headers"]),
        )
        for row in map(json.loads, done.out.splitlines())
    ]


def copy(place: Place, count: int) -> list[Sent]:
    """Export and import the topic, and read the copy."""
    exported = place.run("consume", place.topic, "-n", str(count), "--format", "json").out
    copied = f"{place.topic}.copy"
    place.run("topic", "create", copied, "-p", "2")
    place.run("produce", copied, "--from-json", data=exported)
    again = place.run("consume", copied, "-e", "--format", "json").out
    assert _without_place(again) == _without_place(exported)
    return [_sent(record) for record in place.broker.messages(copied)]


def _without_place(lines: bytes) -> list[str]:
    rows = [json.loads(line) for line in lines.splitlines()]
    for row in rows:
        del row["topic"], row["offset"], row["leader_epoch"]
    return sorted(json.dumps(row) for row in rows)


def _polled(consumer: headrace.Consumer, place: Place, count: int) -> list[ConsumerRecord]:
    consumer.subscribe([place.topic])
    found: list[ConsumerRecord] = []
    until = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < until, found
        found += consumer.poll(0.5)
    return found


def blocking(place: Place, count: int) -> list[Sent]:
    with headrace.Consumer(
        place.broker.bootstrap, group=f"{place.topic}.typed", auto_offset_reset="earliest"
    ) as consumer:
        return [_as_bytes(place, record) for record in _polled(consumer, place, count)]


def _as_bytes(place: Place, record: ConsumerRecord) -> Sent:
    key, value = (
        data if data is None else resolve_serde(_known(place.case[name])).serialize(data)
        for name, data in (("key_serde", record.key), ("serde", record.value))
    )
    return Sent(key or b"", value, tuple(record.headers))


def _known(serde: str) -> str:
    return "bytes" if serde in {"none", "elsewhere"} else serde


def blocking_bytes(place: Place, count: int) -> list[Sent]:
    with headrace.Consumer(
        place.broker,
        group=f"{place.topic}.bytes",
        auto_offset_reset="earliest",
        serde="bytes",
        key_serde="bytes",
        isolation_level="read_committed",
    ) as consumer:
        return [_sent(record) for record in _polled(consumer, place, count)]


def asynchronous(place: Place, count: int) -> list[Sent]:
    async def main() -> list[Sent]:
        async with headrace.aio.Consumer(
            place.broker.bootstrap, group=f"{place.topic}.aio", auto_offset_reset="earliest"
        ) as consumer:
            await consumer.subscribe([place.topic])
            found: list[Sent] = []
            async with asyncio.timeout(WAIT_S):
                while len(found) < count:
                    found += [_as_bytes(place, record) for record in await consumer.poll(0.5)]
            return found

    return asyncio.run(main())


def embedded(place: Place, count: int) -> list[Sent]:
    assert count
    return [
        _as_bytes(place, record)
        for partition in (0, 1)
        for record in place.broker.read(place.topic, partition, 0, 100)
    ]


def worker(place: Place, count: int) -> list[Sent]:
    """Read with a worker that takes bytes, also if the topic names a serde."""
    found: list[Sent] = []
    app = headrace.App("unused")

    @app.worker(place.topic, group=f"{place.topic}.worker", retry=1)
    async def handle(value: bytes, context: headrace.Context) -> None:
        found.append(_sent(context.record)._replace(value=value))

    with app.test(place.broker) as running:
        running.wait_idle(WAIT_S)
    assert len(found) == count
    return found


def bridge(place: Place, count: int) -> list[Sent]:
    assert count
    stream = f"{place.topic}.out"
    place.aws.kinesis.create_stream(stream, shards=1)
    place.run("bridge", place.topic, place.stream_url(stream), "--once", "--envelope")
    rows = [msgspec.json.decode(each.data) for each in place.aws.kinesis.records(stream)]
    return [
        Sent(
            _data(row, "key") or b"",
            _data(row, "value"),
            tuple((each["name"], _data(each, "value")) for each in row["headers"]),
        )
        for row in rows
    ]


def confluent(place: Place, count: int) -> list[Sent]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": place.broker.bootstrap,
            "group.id": f"{place.topic}.confluent",
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.subscribe([place.topic])
        found: list[Sent] = []
        until = time.monotonic() + WAIT_S
        while len(found) < count:
            assert time.monotonic() < until
            if (message := consumer.poll(0.5)) is not None:
                assert message.error() is None, message.error()
                headers = tuple(message.headers() or ())
                # librdkafka gives None for an empty key or value, too: see `null_is_empty`.
                found.append(Sent(message.key() or b"", message.value(), headers))
        return found
    finally:
        consumer.close()


def kafka_python(place: Place, count: int) -> list[Sent]:
    with closing(
        kafka.KafkaConsumer(
            place.topic,
            bootstrap_servers=place.broker.bootstrap,
            group_id=None,
            auto_offset_reset="earliest",
        )
    ) as consumer:
        found: list[Sent] = []
        until = time.monotonic() + WAIT_S
        while len(found) < count:
            assert time.monotonic() < until
            for batch in consumer.poll(500).values():
                found += [
                    Sent(each.key, each.value, tuple(map(tuple, each.headers))) for each in batch
                ]
        return found


def aio_kafka(place: Place, count: int) -> list[Sent]:
    async def main() -> list[Sent]:
        async with aiokafka.AIOKafkaConsumer(
            place.topic, bootstrap_servers=place.broker.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            found: list[Sent] = []
            async with asyncio.timeout(WAIT_S):
                while len(found) < count:
                    each = await consumer.getone()
                    found.append(Sent(each.key, each.value, tuple(map(tuple, each.headers))))
            return found

    return asyncio.run(main())


def kcat(place: Place, count: int) -> list[Sent]:
    command = [
        "kcat",
        "-C",
        "-b",
        place.broker.bootstrap,
        "-t",
        place.topic,
        "-e",
        "-o",
        "beginning",
    ]
    done = subprocess.run(
        [*command, "-c", str(count), "-f", "%K %k%S %s"],
        check=True,
        timeout=30,
        capture_output=True,
    )
    out, found = done.stdout, []
    while out:
        key, out = _counted(out)
        value, out = _counted(out)
        found.append(Sent(key or b"", value, NO_HEADERS))
    return found


NO_HEADERS = (("not read", None),)
"""The value in place of headers that a reader does not return."""


def _counted(data: bytes) -> tuple[bytes | None, bytes]:
    digits, _, rest = data.partition(b" ")
    size = int(digits)
    return (None, rest) if size < 0 else (rest[:size], rest[size:])


def spark(place: Place, count: int) -> list[Sent]:
    """Read with the classes of the Spark source, without a JVM."""
    from headrace.spark.options.source import source_options
    from headrace.spark.readers.batch import HeadraceBatchReader

    assert count
    given = {
        "kafka.bootstrap.servers": place.broker.bootstrap,
        "subscribe": place.topic,
        "includeHeaders": "true",
    }
    reader = HeadraceBatchReader(source_options(given, streaming=False))
    return [
        Sent(
            row["key"],
            row["value"],
            tuple((each["key"], each["value"]) for each in row["headers"] or ()),
        )
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]


READERS: dict[str, Callable[[Place, int], list[Sent]]] = {
    "consume": consume,
    "consume --format json": consume_json,
    "copy": copy,
    "blocking": blocking,
    "blocking bytes": blocking_bytes,
    "aio": asynchronous,
    "embedded": embedded,
    "worker": worker,
    "bridge": bridge,
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aio_kafka,
    "kcat": kcat,
    "spark": spark,
}
TYPED = {"blocking", "aio", "embedded"}
"""The readers that decode with the topic's serdes."""
EMPTY_IS_NULL = {"consume"}
"""The readers that do not distinguish an empty value from a missing one."""
__all__ = ["EMPTY_IS_NULL", "NO_HEADERS", "READERS", "TYPED"]
