"""Reads the state of a cluster with librdkafka: logs, groups, committed offsets, the coordinator's records."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.fixtures.client_security import NO_SECURITY, Properties, librdkafka
from tests.fixtures.history.members import CommitRecord, GenerationRecord, parse_ledger
from tests.fixtures.targets import Target

WAIT_S = 40
POLL_S = 0.05
ANSWER_S = 3
FAST_RECONNECT = {"reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 100, "log_level": 2}
OFFSETS_TOPIC = "__consumer_offsets"

T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """A record that was read from the log."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: int


def wait_until(what: str, probe: Callable[[], T | None], timeout_s: float = WAIT_S) -> T:
    """Return the first result of `probe` that is neither None nor False.

    Raises:
        AssertionError: There was none in time. The message has the condition and the last error of the probe.
    """
    pause = threading.Event()
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            result = probe()
        except (KafkaException, TimeoutError) as error:  # a broker that restarts
            last = error
        else:
            if result is not None and result is not False:
                return result
        pause.wait(POLL_S)
    raise AssertionError(f"{what}: not in {timeout_s} s; last error: {last}")


class Observer:
    """An admin client for a whole test module."""

    def __init__(self, bootstrap: str, properties: Properties = NO_SECURITY) -> None:
        shared = {**FAST_RECONNECT, **librdkafka(properties)}
        self._settings = {"bootstrap.servers": bootstrap, **shared}
        self._admin = AdminClient(self._settings)

    def _result(self, ask: Callable[[AdminClient], Future[T]]) -> T:
        """Return the response to a request. A new client repeats the request if a restart has lost it."""

        def probe() -> T:
            try:
                return ask(self._admin).result(ANSWER_S)
            except (KafkaException, TimeoutError):
                self._admin = AdminClient(self._settings)
                raise

        return wait_until("an answer", probe)

    def create_topic(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        new = NewTopic(topic, partitions, config=configs)
        self._admin.create_topics([new])[topic].result(ANSWER_S)
        wait_until("the topic", lambda: self.partitions(topic) == partitions)

    def partitions(self, topic: str) -> int:
        """Return the number of the topic's partitions; 0 if it does not exist."""
        topics = self._admin.list_topics(timeout=10).topics
        return len(topics[topic].partitions) if topic in topics else 0

    @contextmanager
    def _consumer(self) -> Iterator[Consumer]:
        consumer = Consumer(
            {
                **self._settings,
                "group.id": "observer",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "check.crcs": True,
                "fetch.wait.max.ms": 50,
            }
        )
        try:
            yield consumer
        finally:
            consumer.close()

    def read(self, topic: str) -> list[Seen]:
        """Return all records of the topic. Those of one partition are in order."""
        wait_until(f"topic {topic}", lambda: self.partitions(topic) or None)
        partitions = range(self.partitions(topic))
        seen: list[Seen] = []
        with self._consumer() as consumer:
            # (partition -> end offset) first: what is appended later is not waited for.
            ends = {
                p: consumer.get_watermark_offsets(TopicPartition(topic, p), 10) for p in partitions
            }
            waiting = {p for p, (low, high) in ends.items() if high > low}
            consumer.assign([TopicPartition(topic, p, ends[p][0]) for p in sorted(waiting)])
            deadline = time.monotonic() + WAIT_S
            while waiting:
                assert time.monotonic() < deadline, f"{topic}: {waiting} not read to {ends}"
                message = consumer.poll(0.5)
                if message is None:
                    continue
                if message.error():
                    if message.error().code() == -191:  # _PARTITION_EOF
                        waiting.discard(message.partition())
                        continue
                    raise KafkaException(message.error())
                seen.append(
                    Seen(
                        message.partition(),
                        message.offset(),
                        message.key(),
                        message.value(),
                        tuple(message.headers() or ()),
                        message.timestamp()[1],
                    )
                )
                if message.offset() + 1 >= ends[message.partition()][1]:
                    waiting.discard(message.partition())
        return seen

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the end offsets by partition."""
        with self._consumer() as consumer:
            return {
                p: consumer.get_watermark_offsets(TopicPartition(topic, p), 10)[1]
                for p in range(self.partitions(topic))
            }

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Return the committed offsets by partition.

        The consumer only looks: it does not join the group. The admin client of librdkafka 2.16 cannot be used instead,
        because it ends the process (SIGSEGV) if the response to OffsetFetch is NOT_COORDINATOR.
        """
        wanted = [TopicPartition(topic, each) for each in range(self.partitions(topic))]
        with closing(Consumer({**self._settings, "group.id": group})) as consumer:
            found = wait_until("offsets", lambda: consumer.committed(wanted, ANSWER_S))
        return {each.partition: each.offset for each in found if each.offset >= 0}

    def owners(self, group: str) -> tuple[str, dict[str, set[int]]]:
        """Return the state of a group, and its partitions by client id, from DescribeGroups."""
        described = self._result(lambda admin: admin.describe_consumer_groups([group])[group])
        owners: dict[str, set[int]] = {}
        for member in described.members:
            owned = {each.partition for each in member.assignment.topic_partitions}
            owners.setdefault(member.client_id, set()).update(owned)
        return described.state.name, owners

    def wait_stable(self, group: str, members: set[str], partitions: int) -> dict[str, set[int]]:
        """Wait until exactly these members own all partitions, each at least one."""
        last: list[object] = [None]

        def probe() -> dict[str, set[int]] | None:
            state, owners = self.owners(group)
            last[0] = (state, owners)
            if state != ConsumerGroupState.STABLE.name or owners.keys() != members:
                return None
            owned = sorted(p for each in owners.values() for p in each)
            if len(owned) != partitions or not all(owners.values()):
                return None
            assert owned == list(range(partitions)), f"not one owner each: {owners}"
            return owners

        try:
            return wait_until(f"group {group} stable with {sorted(members)}", probe)
        except AssertionError as error:
            raise AssertionError(f"{error}; last seen: {last[0]}") from None

    def ledger(self, group: str) -> list[GenerationRecord | CommitRecord]:
        """Return the coordinator's records about the group, in order."""
        records = [(seen.key or b"", seen.value) for seen in self.read(OFFSETS_TOPIC)]
        return parse_ledger(records, group)


@dataclass(frozen=True)
class StoredBatch:
    """The fields of a batch header that tests check."""

    base_offset: int
    codec: int
    producer_id: int
    records: int


def stored_batches(target: Target, topic: str) -> list[StoredBatch]:
    """Return the headers of all batches in the segments of a topic."""
    batches: list[StoredBatch] = []
    for content in target.segments(topic):
        position = 0
        while position + 61 <= len(content):
            base, length = struct.unpack_from(">qi", content, position)
            if length == 0:  # Kafka preallocates nothing, but a test must not loop
                break
            (attributes,) = struct.unpack_from(">h", content, position + 21)
            (producer_id,) = struct.unpack_from(">q", content, position + 43)
            (count,) = struct.unpack_from(">i", content, position + 57)
            batches.append(StoredBatch(base, attributes & 7, producer_id, count))
            position += 12 + length
    return batches
