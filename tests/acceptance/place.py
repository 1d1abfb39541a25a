"""The place of an acceptance test: an embedded broker, a served broker, or Apache Kafka, with one interface."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import headrace
from headrace import TopicPartition

C = TypeVar("C")
PATIENCE_S = 40
BROKER_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "group.consumer.session.timeout.ms": "4000",
    "group.consumer.heartbeat.interval.ms": "200",
}
KAFKA_BOUNDS = {
    "group.consumer.min.session.timeout.ms": "4000",
    "group.consumer.min.heartbeat.interval.ms": "200",
}
"""Further settings that Kafka needs before it accepts `BROKER_SETTINGS`."""
QUICK: dict[str, Any] = {"retry_backoff_ms": 20}
QUICK_CONSUMER: dict[str, Any] = {
    **QUICK,
    "auto_offset_reset": "earliest",
    "session_timeout_ms": 6_000,
    "heartbeat_interval_ms": 200,
    "fetch_max_wait_ms": 100,
}
ON_KAFKA: dict[str, Any] = {"metadata_max_age_ms": 500}
"""Classic members find added partitions on Kafka when they refresh metadata, by default every five minutes."""
CLASSIC_ONLY = frozenset({"session_timeout_ms", "heartbeat_interval_ms", "assignor"})
"""Settings that the coordinator decides, not the client, under the protocol `consumer`."""


@dataclass
class Place:
    """A broker, and the clients of one test. They are closed at the end of the test."""

    name: str
    target: Any
    clients: list[Any] = field(default_factory=list)
    protocol: str = "classic"
    """The default group protocol of consumers."""

    @property
    def is_headrace(self) -> bool:
        return self.name != "kafka"

    def admin(self) -> headrace.Admin:
        return self._keep(headrace.Admin(self.target, **QUICK))

    def producer(self, **options: Any) -> headrace.Producer:
        return self._keep(headrace.Producer(self.target, **{"linger_ms": 0, **QUICK, **options}))

    def consumer(self, group: str | None = None, **options: Any) -> headrace.Consumer:
        return self._keep(headrace.Consumer(self.target, group=group, **self.options(**options)))

    def options(self, **options: Any) -> dict[str, Any]:
        """The arguments of consumers in this place."""
        given = {**QUICK_CONSUMER, **({} if self.is_headrace else ON_KAFKA), **options}
        if self.protocol == "consumer":
            given = {name: value for name, value in given.items() if name not in CLASSIC_ONLY}
            given["group_protocol"] = self.protocol
        return given

    def topic(self, name: str, partitions: int = 1, **options: Any) -> str:
        self.admin().create_topic(name, partitions, **options)
        return name

    def fill(self, topic: str, values: Iterable[int], partitions: int | None = None) -> None:
        """Write numbers, by key or, given how many partitions, to those in turns."""
        producer = self.producer()
        for number in values:
            where = None if partitions is None else number % partitions
            producer.send(topic, b"%d" % number, key=b"%d" % number, partition=where)
        producer.flush()

    def close(self) -> None:
        for client in reversed(self.clients):
            client.close()

    def _keep(self, client: C) -> C:
        self.clients.append(client)
        return client


class Member:
    """A consumer of a group, with the numbers that it has read and the calls of its listener."""

    def __init__(self, place: Place, group: str, topics: Any = None, **options: Any) -> None:
        subscription = {
            name: options.pop(name) for name in ("pattern", "exclude") if name in options
        }
        self.numbers: list[int] = []
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.consumer = place.consumer(group, **options)
        self.consumer.subscribe(topics, listener=self, **subscription)

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("assigned", partitions))

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("revoked", partitions))

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        self.told.append(("lost", partitions))

    def poll(self, timeout_s: float = 0.05, max_records: int | None = None) -> int:
        records = self.consumer.poll(timeout_s, max_records)
        self.numbers += [int(record.value) for record in records]
        return len(records)

    @property
    def partitions(self) -> set[TopicPartition]:
        return set(self.consumer.positions())

    def die(self) -> None:
        """End as a killed process: no last commit, no farewell, no heartbeat."""
        self.consumer._driver.close()


def until(condition: Callable[[], Any], *members: Member, patience_s: float = PATIENCE_S) -> None:
    """Have members poll in turn until a condition holds."""
    deadline = time.monotonic() + patience_s
    while not condition():
        held = [sorted(map(str, member.partitions)) for member in members]
        assert time.monotonic() < deadline, f"not within {patience_s} s; members hold {held}"
        for member in members:
            member.poll()


def settled(count: int, *members: Member) -> bool:
    """Whether members hold so many partitions together, and all of them hold some."""
    held = [member.partitions for member in members]
    return sum(map(len, held)) == count == len(set().union(*held)) and all(held)


def read_all(consumer: headrace.Consumer, count: int) -> list[Any]:
    """Return so many records."""
    records: list[Any] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
        records += consumer.poll(0.2)
    return records
