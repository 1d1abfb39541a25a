"""The client program for Headrace's own clients.

The first argument is the assignor of its members, or `server-side` for the group protocol of KIP-848.
"""

from __future__ import annotations

import sys
from typing import Any

import headrace
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.errors import HeadraceError
from headrace.types import TopicPartition
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

ASSIGNOR, BOOTSTRAP = sys.argv[1:3]
SECURITY = client_security.headrace(client_security.given())
COMMANDS = Commands()
_producers: dict[tuple[str, bool, str], headrace.Producer] = {}


def create(command: Command) -> None:
    with headrace.Admin(BOOTSTRAP, **SECURITY) as admin:
        admin.create_topic(command["topic"], command["partitions"])
    emit("created")


def _producer(command: Command) -> headrace.Producer:
    choice = (command["codec"], command["idempotent"], command["acks"])
    if choice not in _producers:
        _producers[choice] = headrace.Producer(
            BOOTSTRAP,
            compression=command["codec"],
            idempotence=command["idempotent"],
            acks=command["acks"],
            retry_backoff_ms=50,
            **SECURITY,
        )
    return _producers[choice]


def produce(command: Command) -> None:
    producer = _producer(command)
    futures = [
        (
            number,
            producer.send(
                command["topic"],
                value_of(number).encode(),
                key=str(number).encode(),
                partition=number % command["partitions"],
                headers=[("n", str(number).encode())],
                timestamp_ms=BASE_TIMESTAMP + number,
            ),
        )
        for number in range(command["first"], command["first"] + command["count"])
    ]
    producer.flush(30)
    done = [(number, future.result(30)) for number, future in futures]
    emit("produced", records=[[number, at.partition, at.offset] for number, at in done])


def consume(command: Command) -> None:
    rows: list[list[object]] = []
    with headrace.Consumer(BOOTSTRAP, auto_offset_reset="earliest", **SECURITY) as consumer:
        consumer.assign([TopicPartition(command["topic"], p) for p in range(command["partitions"])])
        while len(rows) < command["count"]:
            rows += [
                [
                    record.partition,
                    record.offset,
                    record.key.decode(),
                    record.value.decode(),
                    [[name, (value or b"").decode()] for name, value in record.headers],
                    record.timestamp_ms,
                ]
                for record in consumer.poll(1)
            ]
    emit("consumed", records=rows)


class Member:
    """A group member that commits after each batch, and reports it."""

    def __init__(self, command: Command) -> None:
        self._name, self._topic = command["name"], command["topic"]
        self._pending: dict[TopicPartition, int] = {}
        self._owned: set[int] = set()
        protocol: dict[str, Any] = {"group_protocol": "consumer"}
        if ASSIGNOR != "server-side":
            protocol = {
                "assignor": ASSIGNOR,
                "session_timeout_ms": SESSION_TIMEOUT_MS,
                "heartbeat_interval_ms": HEARTBEAT_MS,
            }
        options: dict[str, Any] = {
            **protocol,
            "fetch_max_wait_ms": 100,
            "retry_backoff_ms": 50,
            **SECURITY,
        }
        self._consumer = headrace.Consumer(
            BOOTSTRAP,
            group=command["group"],
            client_id=self._name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            **options,
        )
        self._consumer.subscribe([self._topic], listener=self)

    def on_assigned(self, partitions: list[TopicPartition]) -> None:
        self._owned |= {number for _, number in partitions}
        place = self._consumer.group_metadata()
        emit(
            "assigned",
            partitions=sorted(self._owned),
            generation=place.generation_id,
            member=place.member_id,
        )

    def on_revoked(self, partitions: list[TopicPartition]) -> None:
        if self._pending:
            self._commit()
        self.on_lost(partitions)

    def on_lost(self, partitions: list[TopicPartition]) -> None:
        for name in partitions:
            self._pending.pop(name, None)
            self._owned.discard(name.partition)
        emit("revoked", partitions=[number for _, number in partitions])

    def run(self) -> None:
        while not COMMANDS.leave_asked():
            rows = []
            for record in self._consumer.poll(POLL_S):
                rows.append([record.partition, record.offset, record.value.decode()])
                self._pending[TopicPartition(record.topic, record.partition)] = record.offset + 1
            if rows:
                emit("records", records=rows)
            if self._pending:
                self._commit()
        self._consumer.close()
        emit("left")

    def _commit(self) -> None:
        offsets = dict(self._pending)
        try:
            self._consumer.commit(
                {name: OffsetAndMetadata(offset, self._name) for name, offset in offsets.items()},
                timeout_s=5,
            )
        except HeadraceError as error:
            emit("commit_failed", message=repr(error))
            return
        for name, offset in offsets.items():
            if self._pending.get(name) == offset:
                del self._pending[name]
        emit("committed", offsets={name.partition: offset for name, offset in offsets.items()})


def member(command: Command) -> None:
    Member(command).run()


run(COMMANDS, {"create": create, "produce": produce, "consume": consume, "member": member})
