"""The client program for aiokafka."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

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


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # untyped to mypy here
    async def token(self) -> str:
        return client_security.given()["token"]


REQUEST_TIMEOUT_MS = 6_000
"""The time limit of a request, because a paused broker answers none. The default is 40 s, and tests wait as long.

Up to four requests wait for a paused broker one after the other: a Heartbeat, an OffsetCommit, a FindCoordinator and a
Metadata request of a group member. A JoinGroup request waits for SESSION_TIMEOUT_MS at most.
"""

SHARED = {
    "bootstrap_servers": sys.argv[1],
    "request_timeout_ms": REQUEST_TIMEOUT_MS,
    **client_security.aiokafka(client_security.given()),
    "sasl_oauth_token_provider": Tokens(),
}
COMMANDS = Commands()
LOOP = asyncio.new_event_loop()
_producers: dict[tuple[str, bool, str], AIOKafkaProducer] = {}


async def create(command: Command) -> None:
    admin = AIOKafkaAdminClient(**SHARED)
    await admin.start()
    brokers = (await admin.describe_cluster())["brokers"]  # the client refuses the factor -1
    await admin.create_topics([NewTopic(command["topic"], command["partitions"], len(brokers))])
    await admin.close()
    emit("created")


async def _producer(command: Command) -> AIOKafkaProducer:
    choice = (command["codec"], command["idempotent"], command["acks"])
    if choice not in _producers:
        codec = command["codec"]
        producer = AIOKafkaProducer(
            **SHARED,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=command["idempotent"],
            acks="all" if command["acks"] == "all" else int(command["acks"]),
            linger_ms=5,
            retry_backoff_ms=50,
        )
        await producer.start()
        _producers[choice] = producer
    return _producers[choice]


async def produce(command: Command) -> None:
    producer = await _producer(command)
    numbers = range(command["first"], command["first"] + command["count"])
    futures = [
        await producer.send(
            command["topic"],
            key=str(number).encode(),
            value=value_of(number).encode(),
            partition=number % command["partitions"],
            headers=[("n", str(number).encode())],
            timestamp_ms=BASE_TIMESTAMP + number,
        )
        for number in numbers
    ]
    done = await asyncio.wait_for(asyncio.gather(*futures), 38)
    rows = [(n, each.partition, each.offset) for n, each in zip(numbers, done, strict=True)]
    emit("produced", records=rows)


async def consume(command: Command) -> None:
    consumer = AIOKafkaConsumer(**SHARED, auto_offset_reset="earliest")
    await consumer.start()
    consumer.assign([TopicPartition(command["topic"], p) for p in range(command["partitions"])])
    rows: list[list[object]] = []
    while len(rows) < command["count"]:
        for records in (await consumer.getmany(timeout_ms=1000)).values():
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
    await consumer.stop()
    emit("consumed", records=rows)


class Member(ConsumerRebalanceListener):  # type: ignore[misc]  # untyped to mypy here
    """A group member that commits after each batch, and reports it."""

    def __init__(self, command: Command) -> None:
        self._name, self._topic = command["name"], command["topic"]
        self._pending: dict[int, int] = {}
        self._consumer = AIOKafkaConsumer(
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

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self._pending.clear()
        coordinator = self._consumer._coordinator
        emit(
            "assigned",
            partitions=[each.partition for each in assigned],
            generation=coordinator.generation,
            member=coordinator.member_id,
        )

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if self._pending:
            await self._commit()
        self._pending.clear()
        emit("revoked", partitions=[each.partition for each in revoked])

    async def run(self) -> None:
        self._consumer.subscribe([self._topic], listener=self)
        await self._consumer.start()
        while not COMMANDS.leave_asked():
            rows = []
            batches = await self._consumer.getmany(timeout_ms=int(POLL_S * 1000))
            for records in batches.values():
                for record in records:
                    rows.append([record.partition, record.offset, record.value.decode()])
                    self._pending[record.partition] = record.offset + 1
            if rows:
                emit("records", records=rows)
            if self._pending:
                await self._commit()
        await self._consumer.stop()
        emit("left")

    async def _commit(self) -> None:
        offsets = dict(self._pending)
        try:
            await self._consumer.commit(
                {
                    TopicPartition(self._topic, partition): OffsetAndMetadata(offset, self._name)
                    for partition, offset in offsets.items()
                }
            )
        except KafkaError as error:
            emit("commit_failed", message=repr(error))
            return
        for partition, offset in offsets.items():
            if self._pending.get(partition) == offset:
                del self._pending[partition]
        emit("committed", offsets=offsets)


async def member(command: Command) -> None:
    await Member(command).run()


async def close() -> None:
    for producer in _producers.values():
        await producer.stop()


def blocking(action: Callable[[Command], Awaitable[None]]) -> Callable[[Command], None]:
    """The action run to its end on the one loop of all commands; between two of them the producers' tasks rest."""
    return lambda command: LOOP.run_until_complete(action(command))


def main() -> None:
    actions = {"create": create, "produce": produce, "consume": consume, "member": member}
    run(COMMANDS, {name: blocking(action) for name, action in actions.items()})
    LOOP.run_until_complete(close())


main()
