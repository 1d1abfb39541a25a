"""Every way to write records into a topic. Each writer takes the case, and returns the records that it has written."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import aiokafka
import confluent_kafka

import headrace
import headrace.aio
from headrace.serdes.serde import resolve_serde
from headrace.testing import Broker, FakeAws
from tests.conformance.crossed.pairs import Case
from tests.conformance.crossed.records import Sent, records
from tests.fixtures.command_line import Done, run_command

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", DeprecationWarning
    )  # kafka-python reads its schemas with a deprecated call
    import kafka as kafka  # noqa: PLC0414 - readers take it from here

REGION = "us-east-1"


class RefusedError(Exception):
    """A command or client has refused the case with a message."""


@dataclass
class Place:
    """The broker, the simulated AWS and the topic of one case."""

    broker: Broker
    aws: FakeAws
    topic: str
    case: Case

    @property
    def records(self) -> list[Sent]:
        return records(self.case["serde"], self.case["key_serde"])

    def run(self, *arguments: str, data: bytes = b"") -> Done:
        """Run a command.

        Raises:
            RefusedError: The command has failed.
        """
        keys = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any"}
        environment = {"HEADRACE_BOOTSTRAP": self.broker.bootstrap, **keys}
        done = run_command(*arguments, data=data, environment=environment)
        if done.code:
            assert "Traceback" not in done.err
            raise RefusedError(done.err)
        return done

    def stream_url(self, stream: str) -> str:
        return f"kinesis://{stream}?region={REGION}&endpoint_url={self.aws.endpoint_url}"


def produce(place: Place) -> list[Sent]:
    sent = [each for each in place.records if each.value is not None]
    data = b"".join(
        b"".join(
            [
                len(each.key).to_bytes(4, "big") + each.key,
                len(each.value or b"").to_bytes(4, "big") + (each.value or b""),
                b"1",
                b"\x01a\x011",
            ]
        )
        for each in sent
    )
    template = "%K{big32}%k%V{big32}%v%H%h{%K{byte}%k%V{byte}%v}"
    place.run("produce", place.topic, "-f", template, *_options(place), data=data)
    return [each._replace(headers=(("a", b"1"),)) for each in sent]


def produce_from_json(place: Place) -> list[Sent]:
    lines = [
        json.dumps(
            {
                **_field("key", each.key),
                **_field("value", each.value),
                "headers": [{"key": name, **_field("value", data)} for name, data in each.headers],
            }
        ).encode()
        for each in place.records
    ]
    place.run("produce", place.topic, "--from-json", *_options(place), data=b"\n".join(lines))
    return place.records


def _field(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    return {name: base64.b64encode(data).decode(), f"{name}_encoding": "base64"}


def _options(place: Place) -> list[str]:
    return ["-z", place.case["compression"], "--acks", place.case["acks"]]


def _properties(place: Place) -> dict[str, Any]:
    case = place.case
    weak = {} if case["acks"] == "all" else {"idempotence": False}
    return {"compression": case["compression"], "acks": case["acks"], **weak}


def typed(place: Place, each: Sent) -> tuple[Any, Any]:
    """Return the key and value as a program passes them that uses the topic's serdes."""
    key = resolve_serde(_known(place.case["key_serde"])).deserialize(each.key)
    if each.value is None:
        return key, None
    return key, resolve_serde(_known(place.case["serde"])).deserialize(each.value)


def _known(serde: str) -> str:
    return "bytes" if serde in {"none", "elsewhere"} else serde


def _send_all(place: Place, producer: headrace.Producer) -> None:
    for each in place.records:
        key, value = typed(place, each)
        _ = producer.send(place.topic, value, key=key, headers=each.headers)


def blocking(place: Place) -> list[Sent]:
    with headrace.Producer(place.broker.bootstrap, **_properties(place)) as producer:
        _send_all(place, producer)
    return place.records


def blocking_bytes(place: Place) -> list[Sent]:
    properties = {**_properties(place), "serde": "bytes", "key_serde": "bytes"}
    with headrace.Producer(place.broker, **properties) as producer:
        for each in place.records:
            _ = producer.send(place.topic, each.value, key=each.key, headers=each.headers)
    return place.records


def transactional(place: Place) -> list[Sent]:
    with (
        headrace.Producer(
            place.broker.bootstrap,
            transactional_id=place.topic,
            compression=place.case["compression"],
        ) as producer,
        producer.transaction(),
    ):
        _send_all(place, producer)
    return place.records


def asynchronous(place: Place) -> list[Sent]:
    async def main() -> None:
        async with headrace.aio.Producer(place.broker.bootstrap, **_properties(place)) as producer:
            for each in place.records:
                key, value = typed(place, each)
                _ = await producer.send(place.topic, value, key=key, headers=each.headers)

    asyncio.run(main())
    return place.records


def embedded(place: Place) -> list[Sent]:
    for each in place.records:
        key, value = typed(place, each)
        place.broker.publish(place.topic, value, key=key, headers=each.headers)
    return place.records


def worker(place: Place) -> list[Sent]:
    """Write from a handler with `context.publish`."""
    app = headrace.App("unused")
    source = f"{place.topic}.in"
    place.broker.create_topic(source)

    @app.worker(source, group=source, retry=1)
    async def handle(value: bytes, context: headrace.Context) -> None:
        assert value == b"go"
        for each in place.records:
            key, content = typed(place, each)
            await context.publish(place.topic, content, key=key, headers=each.headers)

    with app.test(place.broker) as running:
        running.produce(source, b"go")
        running.wait_idle(20)
    return place.records


def bridge(place: Place) -> list[Sent]:
    sent = [each for each in place.records if each.value]
    place.aws.kinesis.create_stream(place.topic, shards=1)
    for number, each in enumerate(sent):
        place.aws.kinesis.put(place.topic, each.value or b"", f"key-{number}")
    place.run("bridge", place.stream_url(place.topic), place.topic, "--once", "--name", place.topic)
    return [
        Sent(f"key-{number}".encode(), each.value, ANY_HEADERS) for number, each in enumerate(sent)
    ]


ANY_HEADERS = (("any", None),)
"""The value in place of headers that the writer adds itself."""


def confluent(place: Place) -> list[Sent]:
    case = place.case
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": place.broker.bootstrap,
            "compression.type": case["compression"],
            "acks": case["acks"],
        }
    )
    for each in place.records:
        producer.produce(place.topic, each.value, each.key, headers=list(each.headers))
    assert producer.flush(20) == 0
    return place.records


def kafka_python(place: Place) -> list[Sent]:
    case = place.case
    with closing(
        kafka.KafkaProducer(
            bootstrap_servers=place.broker.bootstrap,
            compression_type=None if case["compression"] == "none" else case["compression"],
            acks="all" if case["acks"] == "all" else int(case["acks"]),
            enable_idempotence=False,
        )
    ) as producer:
        for each in place.records:
            headers = [(name, data) for name, data in each.headers if data is not None]
            producer.send(place.topic, each.value, each.key, headers=headers)
        producer.flush(20)
    return _without_null_headers(place.records)


def aio_kafka(place: Place) -> list[Sent]:
    case = place.case

    async def main() -> None:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=place.broker.bootstrap,
            compression_type=None if case["compression"] == "none" else case["compression"],
            acks="all" if case["acks"] == "all" else int(case["acks"]),
        ) as producer:
            for each in place.records:
                headers = [(name, data) for name, data in each.headers if data is not None]
                await producer.send(place.topic, each.value, each.key, headers=headers)

    asyncio.run(main())
    return _without_null_headers(place.records)


def _without_null_headers(sent: Sequence[Sent]) -> list[Sent]:
    return [
        each._replace(
            headers=tuple((name, data) for name, data in each.headers if data is not None)
        )
        for each in sent
    ]


def kcat(place: Place) -> list[Sent]:
    """Write with kcat, which sends an empty key or value as null."""
    sent = [
        each._replace(headers=(("a", b"1"),)) for each in place.records if each.value and each.key
    ]
    lines = b"".join(each.key + b"#K#" + (each.value or b"") + b"#D#" for each in sent)
    compression = place.case["compression"]
    command = ["kcat", "-P", "-b", place.broker.bootstrap, "-t", place.topic, "-K", "#K#"]
    command += ["-D", "#D#", "-H", "a=1", "-z", compression, "-X", f"acks={place.case['acks']}"]
    subprocess.run(command, input=lines, check=True, timeout=30, capture_output=True)
    return sent


WRITERS: dict[str, Callable[[Place], list[Sent]]] = {
    "produce": produce,
    "produce --from-json": produce_from_json,
    "blocking": blocking,
    "blocking bytes": blocking_bytes,
    "transactional": transactional,
    "aio": asynchronous,
    "embedded": embedded,
    "worker": worker,
    "bridge": bridge,
    "confluent-kafka": confluent,
    "kafka-python": kafka_python,
    "aiokafka": aio_kafka,
    "kcat": kcat,
}
TYPED = {"blocking", "transactional", "aio", "embedded", "worker"}
"""Writers that encode with the topic's serdes."""
OBEY_PARTITIONER = TYPED | {"produce", "produce --from-json", "blocking bytes", "bridge"}
