"""The requests of a client in the program are handled in their order, also when one of them takes several steps."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import Broker, Consumer, Producer
from headrace.clients.flows.effects import Call
from headrace.embedded.clock import ManualClock
from headrace.embedded.request_lines import OnDone
from headrace.embedded.runtime import BrokerRuntime
from headrace.records.compression import Compression
from headrace.types import TopicPartition
from tests.fixtures.broker_harness import batch, produce_request

BATCHES = 8


def contents() -> list[bytes]:
    """Return values of which some take many steps to compress, and those behind them one."""
    chance = random.Random(1)
    slow = bytes(chance.choices(b"abcdefghijklmnop", k=950_000))
    return [(slow if number % 3 == 0 else b"") + b"%d" % number for number in range(BATCHES)]


@pytest.mark.parametrize(("acks", "idempotent"), [("all", True), ("all", False), ("0", False)])
def test_batches_stay_in_order_while_one_is_compressed_again(acks: str, *, idempotent: bool):
    with Broker() as broker:
        broker.create_topic("t", 1, configs={"compression.type": "gzip"})
        values = contents()
        with Producer(
            broker,
            acks=acks,
            enable_idempotence=idempotent,
            batch_size=1,
            linger_ms=0,
        ) as producer:
            for value in values:
                producer.send("t", value)
            producer.flush()
        found: list[bytes | None] = []
        with Consumer(broker, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("t", 0)])
            while len(found) < BATCHES:
                found += [record.value for record in consumer.poll(1.0)]
        assert found == values


class Client:
    """A client of the broker that keeps its responses."""

    client_id = "client"
    runs_here = True

    def __init__(self) -> None:
        self.engine: Any = SimpleNamespace(next_deadline_ms=None, now_ms=0, advance=lambda _: None)
        self.inbox: deque[Any] = deque()

    def wake(self) -> None:
        pass

    def target_closed(self) -> None:
        pass

    def call_back(self) -> None:
        pass


def produced(answer: Any) -> int:
    offset: int = answer.responses[0].partition_responses[0].base_offset
    return offset


def one(value: bytes, channel: str = "") -> Call:
    return Call(request=produce_request("t", 0, batch(value)), channel=channel, max_version=12)


@pytest.fixture
def runtime() -> Iterator[BrokerRuntime]:
    with Broker(clock=ManualClock()) as broker:
        broker.create_topic("t", 1, configs={"compression.type": "gzip"})
        yield broker._runtime


def test_a_request_waits_for_the_previous_request_of_its_client(runtime: BrokerRuntime):
    first, other = Client(), Client()
    answers: list[tuple[str, int]] = []

    def note(name: str) -> OnDone:
        return lambda answer: answers.append((name, produced(answer)))

    with runtime.condition:
        for client in (first, other):
            runtime.attach(client)
        runtime.submit(first, one(contents()[0]), note("slow"))
        runtime.submit(first, one(b"behind it"), note("behind"))
        given_up = runtime.submit(first, one(b"given up"), note("given up"))
        assert given_up is not None
        given_up()
        runtime.submit(first, one(b"last"), note("last"))
        runtime.submit(first, one(b"on another channel", "other"), note("channel"))
        runtime.submit(other, one(b"of another client"), note("other"))
        while len(answers) < 5:
            runtime.pump()
        for client in (first, other):
            runtime.detach(client)
    assert sorted(answers, key=lambda each: each[1]) == [
        ("channel", 0),
        ("other", 1),
        ("slow", 2),
        ("behind", 3),
        ("last", 4),
    ]


def test_a_topic_with_any_codec_accepts_batches_with_any_codec():
    codecs = [codec.name.lower() for codec in Compression]
    with Broker() as broker:
        for topic in ["uncompressed", *codecs[1:]]:
            broker.create_topic(topic, 1, configs={"compression.type": topic})
            for codec in codecs:
                with Producer(broker, compression_type=codec) as producer:
                    for number in range(300):
                        producer.send(topic, b"%d" % number * 20, key=b"%d" % number)
            with Consumer(broker, auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition(topic, 0)])
                found: list[bytes | None] = []
                while len(found) < 300 * len(codecs):
                    found += [record.key for record in consumer.poll(1.0)]
            assert found == [b"%d" % number for number in range(300)] * len(codecs)


def test_a_topic_with_a_codec_accepts_transactions():
    with Broker() as broker:
        broker.create_topic("t", 1, configs={"compression.type": "zstd"})
        with Producer(
            broker, transactional_id="x", compression_type="lz4", linger_ms=0, batch_size=1
        ) as producer:
            for number in range(4):
                with suppress(ZeroDivisionError), producer.transaction():
                    for value in contents()[:3]:
                        producer.send("t", b"%d " % number + value)
                    assert 1 // (number % 2)
        found: list[bytes | None] = []
        with Consumer(
            broker, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            while len(found) < 6:
                found += [record.value for record in consumer.poll(1.0)]
            assert not consumer.poll(0)
        assert found == [b"%d " % number + value for number in (1, 3) for value in contents()[:3]]
