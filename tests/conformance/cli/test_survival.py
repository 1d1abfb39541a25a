"""The clients survive restarts of the broker: no record is lost or repeated, and the order is kept."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from headrace.clients.blocking import EARLIEST, BlockingClient, NewTopic
from headrace.clients.consumer.blocking import Consumer
from headrace.clients.producer.blocking import Producer
from headrace.clients.producer.blocking_delivery import DeliveryFuture
from headrace.errors import TransportError
from headrace.types import TopicPartition
from tests.fixtures.targets import Target

DEADLINE_S = 90


def create(target: Target, name: str, partitions: int) -> None:
    with BlockingClient(target.bootstrap) as client:
        deadline = time.monotonic() + DEADLINE_S
        while (error := client.create_topics([NewTopic(name, partitions)])[name]) is not None:
            assert error.retriable, error
            assert time.monotonic() < deadline


class Outage(threading.Thread):
    """An outage of the broker of a given kind, and its restart."""

    def __init__(self, target: Target, how: str) -> None:
        super().__init__()
        self._target = target
        self._how = how

    def run(self) -> None:
        getattr(self._target, self._how)()
        self._target.start()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_an_idempotent_producer_outlives_its_broker(server: Target, how: str) -> None:
    topic = f"survives-{how}"
    create(server, topic, 2)
    reports: list[DeliveryFuture] = []
    sent = 0
    with Producer(server.bootstrap, linger_ms=1, batch_size=500) as producer:

        def send(count: int) -> DeliveryFuture:
            nonlocal sent
            given = [
                producer.send(
                    topic, b"%d" % number, partition=number % 2, on_delivery=reports.append
                )
                for number in range(sent, sent + count)
            ]
            sent += count
            return given[-1]

        send(2000)
        producer.flush()
        outage = Outage(server, how)
        outage.start()
        while outage.is_alive():
            with contextlib.suppress(TransportError):
                send(20).result(0.01)
        outage.join()
        send(2000)
        producer.flush(DEADLINE_S)
    assert [report.exception() for report in reports if report.exception()] == []
    assert len(reports) == sent
    expected = {number: [b"%d" % n for n in range(number, sent, 2)] for number in range(2)}
    assert read(server, topic, 2) == expected


def read(target: Target, topic: str, partitions: int) -> dict[int, list[bytes | None]]:
    """Return all records of a topic, by partition."""
    values: dict[int, list[bytes | None]] = {number: [] for number in range(partitions)}
    with Consumer(target.bootstrap) as consumer:
        every = consumer.partitions_for(topic)
        ends = consumer.end_offsets(every)
        consumer.assign(dict.fromkeys(every, EARLIEST))
        deadline = time.monotonic() + DEADLINE_S
        while any(consumer.position(where) < end for where, end in ends.items()):
            assert time.monotonic() < deadline
            for record in consumer.poll(1):
                values[record.partition].append(record.value)
    return values


def test_a_group_goes_on_where_it_was_after_its_broker_was_killed(server: Target) -> None:
    topic = "group-survives"
    create(server, topic, 2)
    produce(server, topic, 0, 500)
    seen: list[bytes | None] = []
    with Consumer(
        server.bootstrap,
        group=topic,
        auto_offset_reset="earliest",
        auto_commit_interval_ms=50,
        heartbeat_interval_ms=100,
    ) as consumer:
        consumer.subscribe([topic])
        gather(consumer, seen, 500)
        consumer.poll(0.1)  # what was returned counts as done, and is committed
        consumer.commit()
        outage = Outage(server, "kill")
        outage.start()
        while outage.is_alive():
            seen += [record.value for record in consumer.poll(0.1)]
        outage.join()
        produce(server, topic, 500, 500)
        gather(consumer, seen, 1000)
    assert sorted(int(value or b"-1") for value in seen) == list(range(1000))
    with BlockingClient(server.bootstrap) as client:
        committed = client.committed_offsets(topic)
        assert sum(entry.offset for entry in committed.values()) == 1000
        assert set(committed) == {TopicPartition(topic, 0), TopicPartition(topic, 1)}


def produce(target: Target, topic: str, start: int, count: int) -> None:
    with Producer(target.bootstrap) as producer:
        for number in range(start, start + count):
            producer.send(topic, b"%d" % number, key=b"%d" % number)


def gather(consumer: Consumer, seen: list[bytes | None], count: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while len(seen) < count:
        assert time.monotonic() < deadline, f"{len(seen)} of {count}"
        seen += [record.value for record in consumer.poll(0.5)]
