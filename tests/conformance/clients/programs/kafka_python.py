"""The client program for kafka-python."""

from __future__ import annotations

import logging
import sys
from typing import Any

from kafka import (
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    TopicPartition,
)
from kafka.admin import NewTopic
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaConnectionError, KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata

from tests.conformance.clients.programs.common import (
    BASE_TIMESTAMP,
    HEARTBEAT_MS,
    SESSION_TIMEOUT_MS,
    Command,
    Commands,
    emit,
    run,
    value_of,
)
from tests.fixtures import client_security


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # untyped to mypy here
    def token(self) -> str:
        return client_security.given()["token"]


SHARED: dict[str, Any] = {
    "bootstrap_servers": sys.argv[1],
    "reconnect_backoff_ms": 20,
    "reconnect_backoff_max_ms": 100,
    "bootstrap_timeout_ms": 2_000 if "impatient" in client_security.given() else 30_000,
    **client_security.kafka_python(client_security.given()),
    "sasl_oauth_token_provider": Tokens(),
}
logging.basicConfig(level=logging.ERROR)  # where it says why it cannot connect
COMMANDS = Commands()
# Long: where a poll ends between the answer to SyncGroup and its use, kafka-python 3.0.12 neither uses it nor joins
# again nor sends heartbeats, and the member is lost until the program ends.
POLL_MS = 2000
_producers: dict[tuple[str, bool, str], KafkaProducer] = {}


def create(command: Command) -> None:
    admin = KafkaAdminClient(**SHARED)
    admin.create_topics([NewTopic(command["topic"], command["partitions"], -1)])
    admin.close()
    emit("created")


def _producer(command: Command) -> KafkaProducer:
    choice = (command["codec"], command["idempotent"], command["acks"])
    if choice not in _producers:
        codec = command["codec"]
        _producers[choice] = KafkaProducer(
            **SHARED,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=command["idempotent"],
            acks="all" if command["acks"] == "all" else int(command["acks"]),
            linger_ms=5,
            retry_backoff_ms=50,
        )
    return _producers[choice]


def produce(command: Command) -> None:
    producer = _producer(command)
    futures = []
    for number in range(command["first"], command["first"] + command["count"]):
        future = producer.send(
            command["topic"],
            key=str(number).encode(),
            value=value_of(number).encode(),
            partition=number % command["partitions"],
            headers=[("n", str(number).encode())],
            timestamp_ms=BASE_TIMESTAMP + number,
        )
        futures.append((number, future))
    producer.flush(30)
    rows = []
    for number, future in futures:
        done = future.get(30)
        rows.append((number, done.partition, done.offset))
    emit("produced", records=rows)


def consume(command: Command) -> None:
    consumer = KafkaConsumer(**SHARED, check_crcs=True, auto_offset_reset="earliest")
    consumer.assign([TopicPartition(command["topic"], p) for p in range(command["partitions"])])
    rows: list[list[object]] = []
    while len(rows) < command["count"]:
        for records in consumer.poll(timeout_ms=1000).values():
            rows += [
                [
                    record.partition,
                    record.offset,
                    record.key.decode(),
                    record.value.decode(),
                    [[name, value.decode()] for name, value in record.headers],
                    record.timestamp,
                ]
                for record in records
            ]
    consumer.close()
    emit("consumed", records=rows)


class Member(ConsumerRebalanceListener):  # type: ignore[misc]  # untyped to mypy here
    """A group member that commits after each batch, and reports it."""

    def __init__(self, command: Command) -> None:
        self._name, self._topic = command["name"], command["topic"]
        self._pending: dict[int, int] = {}
        self._consumer = KafkaConsumer(
            **SHARED,
            group_id=command["group"],
            client_id=self._name,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[RangePartitionAssignor],
            fetch_max_wait_ms=100,
            retry_backoff_ms=50,
        )
        self._consumer.subscribe([self._topic], listener=self)

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self._pending.clear()
        generation = self._consumer._coordinator._generation
        emit(
            "assigned",
            partitions=[each.partition for each in assigned],
            generation=generation.generation_id,
            member=generation.member_id,
        )

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if self._pending:
            self._commit()
        self.on_partitions_lost(revoked)

    def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        self._pending.clear()
        emit("revoked", partitions=[each.partition for each in lost])

    def run(self) -> None:
        while not COMMANDS.leave_asked():
            rows = []
            try:
                polled = self._consumer.poll(timeout_ms=POLL_MS)
            except KafkaConnectionError as error:  # a heartbeat met a broker that was away
                emit("warning", message=repr(error))
                continue
            for records in polled.values():
                for record in records:
                    rows.append([record.partition, record.offset, record.value.decode()])
                    self._pending[record.partition] = record.offset + 1
            if rows:
                emit("records", records=rows)
            if self._pending:
                self._commit()
        self._consumer.close(autocommit=False)
        emit("left")

    def _commit(self) -> None:
        offsets = dict(self._pending)
        try:
            self._consumer.commit(
                {
                    TopicPartition(self._topic, partition): OffsetAndMetadata(
                        offset, self._name, -1
                    )
                    for partition, offset in offsets.items()
                },
                timeout_ms=5000,
            )
        except KafkaError as error:
            emit("commit_failed", message=repr(error))
            return
        for partition, offset in offsets.items():
            if self._pending.get(partition) == offset:
                del self._pending[partition]
        emit("committed", offsets=offsets)


def member(command: Command) -> None:
    Member(command).run()


run(COMMANDS, {"create": create, "produce": produce, "consume": consume, "member": member})
