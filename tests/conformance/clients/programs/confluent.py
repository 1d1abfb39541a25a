"""The client program for confluent-kafka (librdkafka)."""

from __future__ import annotations

import struct
import sys
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.clients.programs.common import (
    BASE_TIMESTAMP,
    HEARTBEAT_MS,
    POLL_S,
    SESSION_TIMEOUT_MS,
    Command,
    Commands,
    emit,
    run,
    value_of,
)
from tests.fixtures import client_security

BOOTSTRAP = sys.argv[1]
SHARED: dict[str, Any] = {
    "bootstrap.servers": BOOTSTRAP,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 100,
    **client_security.librdkafka(client_security.given()),
}
COMMANDS = Commands()
DELIVERY_S = 30
MAX_POLL_RECORDS = 100
_producers: dict[tuple[str, bool, str], Producer] = {}


_refusals: list[str] = []


def _told(error: KafkaError) -> None:
    """Return the error that librdkafka reports and that does not end by waiting, although librdkafka retries."""
    if error.code() == KafkaError._AUTHENTICATION or "certificate" in error.str():
        _refusals.append(f"{error.name()}: {error.str()}")


def create(command: Command) -> None:
    admin = AdminClient(SHARED)
    topic = NewTopic(command["topic"], command["partitions"])
    admin.create_topics([topic])[command["topic"]].result(15)
    emit("created")


def _producer(command: Command) -> Producer:
    choice = (command["codec"], command["idempotent"], command["acks"])
    if choice not in _producers:
        _producers[choice] = Producer(
            {
                **SHARED,
                "error_cb": _told,
                "compression.type": command["codec"],
                "enable.idempotence": command["idempotent"],
                "acks": command["acks"],
                "linger.ms": 5,
            }
        )
    return _producers[choice]


def produce(command: Command) -> None:
    producer = _producer(command)
    acknowledged: list[tuple[int, int, int]] = []
    failed: list[str] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failed.append(str(error))
        else:
            acknowledged.append((int(message.key()), message.partition(), message.offset()))

    for number in range(command["first"], command["first"] + command["count"]):
        producer.produce(
            command["topic"],
            key=str(number),
            value=value_of(number),
            partition=number % command["partitions"],
            headers=[("n", str(number))],
            timestamp=BASE_TIMESTAMP + number,
            on_delivery=delivered,
        )
    left, deadline = 1, time.monotonic() + DELIVERY_S
    while left and not _refusals and time.monotonic() < deadline:
        left = producer.flush(0.2)
    if _refusals:
        producer.purge()
        raise PermissionError(_refusals[0])
    if failed or left:
        raise RuntimeError(f"{left} not delivered, failed: {failed[:3]}")
    emit("produced", records=sorted(acknowledged))


def consume(command: Command) -> None:
    consumer = Consumer({**SHARED, "group.id": "reader", "check.crcs": True})
    topic = command["topic"]
    rows: list[list[object]] = []
    consumer.assign([TopicPartition(topic, p, 0) for p in range(command["partitions"])])
    while len(rows) < command["count"]:
        message = consumer.poll(1.0)
        if message is None:
            continue
        if message.error():
            raise KafkaException(message.error())
        rows.append(
            [
                message.partition(),
                message.offset(),
                message.key().decode(),
                message.value().decode(),
                [[name, value.decode()] for name, value in message.headers() or ()],
                message.timestamp()[1],
            ]
        )
    consumer.close()
    emit("consumed", records=rows)


class Member:
    """A group member that commits after each batch, and reports it."""

    def __init__(self, command: Command) -> None:
        self._name, self._topic = command["name"], command["topic"]
        self._pending: dict[int, int] = {}
        self._records: list[list[object]] = []
        settings = command.get("settings", {})
        # What the server decides with KIP-848's protocol may not even be said.
        classic = {
            "session.timeout.ms": SESSION_TIMEOUT_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": "range",
        }
        self._consumer = Consumer(
            {
                **SHARED,
                "group.id": command["group"],
                "client.id": self._name,
                **({} if settings.get("group.protocol") == "consumer" else classic),
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "check.crcs": True,
                "fetch.wait.max.ms": 100,
                **settings,
            }
        )
        self._consumer.subscribe(
            [self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
        )

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._pending.clear()
        # "CGMDv2:", then the generation as librdkafka serializes it for a producer of its own.
        (generation,) = struct.unpack_from("=i", consumer.consumer_group_metadata(), 7)
        emit(
            "assigned",
            partitions=[each.partition for each in partitions],
            generation=generation,
            member=consumer.memberid(),
        )

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._tell_records()
        if self._pending:
            self._commit()
        self._lost(_, partitions)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._tell_records()
        self._pending.clear()
        emit("revoked", partitions=[each.partition for each in partitions])

    def _tell_records(self) -> None:
        if self._records:
            emit("records", records=self._records)
            self._records = []

    def _poll_batch(self) -> None:
        # Not consume(): it may return messages from before a rebalance that it went through.
        while len(self._records) < MAX_POLL_RECORDS:
            message = self._consumer.poll(0 if self._records else POLL_S)
            if message is None:
                return
            if message.error():
                emit("warning", message=str(message.error()))
                return
            partition, offset = message.partition(), message.offset()
            self._records.append([partition, offset, message.value().decode()])
            self._pending[partition] = offset + 1

    def run(self) -> None:
        while not COMMANDS.leave_asked():
            self._poll_batch()
            self._tell_records()
            if self._pending:
                self._commit()
        self._consumer.close()
        emit("left")

    def _commit(self) -> None:
        offsets = dict(self._pending)
        positions = [
            TopicPartition(self._topic, partition, offset, metadata=self._name)
            for partition, offset in offsets.items()
        ]
        try:
            done = self._consumer.commit(offsets=positions, asynchronous=False)
        except KafkaException as error:
            emit("commit_failed", message=str(error))
            return
        refused = [each.error for each in done if each.error is not None]
        if refused:
            emit("commit_failed", message=str(refused))
            return
        # A rebalance inside the call has already cleared them.
        for partition, offset in offsets.items():
            if self._pending.get(partition) == offset:
                del self._pending[partition]
        emit("committed", offsets=offsets)


def member(command: Command) -> None:
    Member(command).run()


run(COMMANDS, {"create": create, "produce": produce, "consume": consume, "member": member})
