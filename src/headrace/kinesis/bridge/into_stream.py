"""A topic, copied into a stream: at least once, for Kinesis has no transactions that a position could be written in."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final

import msgspec

from headrace.clients.admin.aio import Admin
from headrace.clients.consumer.aio import Consumer
from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.drivers import Target
from headrace.errors import (
    ConfigError,
    HeadraceError,
    IllegalGenerationError,
    KinesisError,
    NotAssignedError,
    RebalanceInProgressError,
    TransportError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from headrace.kinesis.aio import Producer
from headrace.kinesis.bridge.names import StreamPlace, check_topic
from headrace.kinesis.bridge.shard_copy import CopyProgress
from headrace.kinesis.client.backoff import FIRST_CONTACT_MS
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.producing.aio_delivery import RecordDelivery
from headrace.kinesis.producing.settings import MAX_KEY_CHARACTERS, ProducerSettings
from headrace.kinesis.reading.shards import StreamShards
from headrace.types import TopicPartition

_log: Final = logging.getLogger("headrace.kinesis")
_POLL_S: Final = 0.5
_LOOK_S: Final = 10
_SHUT_OUT: Final = (IllegalGenerationError, UnknownMemberIdError, RebalanceInProgressError)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntoStream:
    """What is copied, where to, and how.

    Attributes:
        target: The brokers.
        topic: What is copied.
        destination: The stream.
        name: The bridge's name: processes of one name share the partitions.
        latest: Whether a bridge that has never run begins at the topic's end, not at its beginning.
        envelope: Whether each record is written as JSON that says where it comes from.
        once: Whether to end when everything is copied that is there.
        properties: Of consumers.
        client_properties: Of clients.
        producing: How records are written.
    """

    target: Target
    topic: str
    destination: StreamPlace
    name: str
    latest: bool = False
    envelope: bool = False
    once: bool = False
    properties: Mapping[str, Any] = field(default_factory=dict)
    client_properties: Mapping[str, Any] = field(default_factory=dict)
    producing: ProducerSettings = field(default_factory=ProducerSettings)

    @property
    def group(self) -> str:
        """The consumer group whose offsets say how far the bridge is."""
        return f"__bridge.{self.name}"


class IntoStreamBridge:
    """Copies. What it has read it writes, waits for, and commits, before it reads on.

    So whoever takes partitions over begins behind what is committed, and what comes again is at most what was under
    way when a process was killed.
    """

    def __init__(self, plan: IntoStream) -> None:
        """Take a plan; nothing is connected yet."""
        self._plan = plan
        self.progress = CopyProgress()
        self._uncommitted: dict[TopicPartition, int] = {}

    async def run(self, stopping: asyncio.Event) -> None:
        """Copy until `stopping` is set, or everything is copied that is there if that is the plan.

        Raises:
            ConfigError: Something is set that cannot work.
            HeadraceError: The bridge cannot go on.
        """
        plan = self._plan
        await check_topic(plan.target, plan.topic, plan.client_properties)
        if plan.latest:
            await self._begin_at_end()
        consumer = Consumer(
            plan.target,
            group=plan.group,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            serde="bytes",
            key_serde="bytes",
            **plan.properties,
        )
        async with consumer, open_client(plan.destination.aws, "kinesis") as client:
            await StreamShards(client, plan.destination.stream).describe(
                answer_within_ms=FIRST_CONTACT_MS
            )
            shared = replace(plan.destination.aws, clients={"kinesis": client})
            async with Producer(shared, settings=plan.producing) as producer:
                await self._copy_all(consumer, producer, stopping)

    async def _begin_at_end(self) -> None:
        """Commit the end of each partition for a bridge that has never run.

        So partitions that are added later are copied from their beginning, and so is what is left where retention has
        removed what comes next.
        """
        plan = self._plan
        async with Admin(plan.target, **plan.client_properties) as admin:
            if any(place.topic == plan.topic for place in await admin.offsets(plan.group)):
                return
            with suppress(*_SHUT_OUT):  # another process of this name was faster
                await admin.reset_offsets(plan.group, topics=[plan.topic], to="latest")

    async def _copy_all(
        self, consumer: Consumer, producer: Producer, stopping: asyncio.Event
    ) -> None:
        plan, time_s = self._plan, asyncio.get_running_loop().time
        await consumer.subscribe([plan.topic])
        seen_s = time_s()
        while not stopping.is_set():
            records = await consumer.poll(_POLL_S)
            if consumer.stopped:
                return  # by an administrator, as the consumer has logged; other processes go on
            if records:
                await self._copy(consumer, producer, records)
            elif self._uncommitted:
                await self._commit(consumer, {})
            elif plan.once and await _is_at_end(consumer):
                return
            elif (
                time_s() - seen_s >= _LOOK_S
            ):  # of a topic that is gone nothing comes, not even an error
                with suppress(TransportError):
                    await check_topic(plan.target, plan.topic, plan.client_properties)
                seen_s = time_s()
        if self._uncommitted:
            await self._commit(consumer, {})

    async def _copy(
        self, consumer: Consumer, producer: Producer, records: Sequence[ConsumerRecord]
    ) -> None:
        """Write records and commit them; where one fails, those before it, or each start would write them again."""
        sent: list[tuple[ConsumerRecord, RecordDelivery]] = []
        left: dict[TopicPartition, int] = {}
        failure: HeadraceError | None = None
        for record in records:
            place = TopicPartition(record.topic, record.partition)
            if place in left or not consumer.owns(place):
                left.setdefault(place, record.offset)
                continue
            try:
                sent.append((record, await self._send(producer, record)))
            except KinesisError as error:
                failure = error
                break
        offsets: dict[TopicPartition, int] = {}
        failed: set[TopicPartition] = set()
        for record, delivery in sent:
            place = TopicPartition(record.topic, record.partition)
            try:
                await delivery
            except HeadraceError as error:
                failed.add(place)
                failure = failure or _named(record, error)
            if place not in failed:
                offsets[place] = record.offset + 1
                self.progress.records += 1
                self.progress.bytes += len(record.value or b"")
        await _return_to(consumer, left)
        try:
            await self._commit(consumer, offsets)
        finally:
            if failure is not None:
                raise failure

    async def _commit(self, consumer: Consumer, offsets: dict[TopicPartition, int]) -> None:
        """Commit offsets, and those that were left; brokers that do not answer are waited for, as `poll` does."""
        plan = self._plan
        self._uncommitted.update(offsets)
        try:
            with suppress(
                *_SHUT_OUT
            ):  # it was too slow for its group: another process copies these once more
                await consumer.commit(self._uncommitted)
        except TransportError as error:
            _log.warning("bridge %s: offsets are committed later: %s", plan.name, error)
            return
        except UnknownTopicOrPartitionError:
            await check_topic(plan.target, plan.topic, plan.client_properties)
        self._uncommitted.clear()

    async def _send(self, producer: Producer, record: ConsumerRecord) -> RecordDelivery:
        data = enveloped(record) if self._plan.envelope else record.value or b""
        try:
            return await producer.send(
                self._plan.destination.stream, data, partition_key=partition_key_of(record)
            )
        except KinesisError as error:
            raise KinesisError(
                f"{_named(record, error)}. To go on without it, set the offset of the group {self._plan.group} "
                "behind it"
            ) from error


async def _return_to(consumer: Consumer, left: Mapping[TopicPartition, int]) -> None:
    """Read partitions again from the first record that was not copied.

    (1) The session of the bridge may have ended, so it copies nothing, (2) the acknowledgement of a heartbeat arrives
    late, and the bridge keeps the partition. Without this it would go on behind the records, and commit that position.
    Where the partition belongs to another process by now, that process copies the records.
    """
    for place, offset in left.items():
        with suppress(NotAssignedError):
            await consumer.seek(place, offset)


def _named(record: ConsumerRecord, error: HeadraceError) -> HeadraceError:
    """Say which record it is that was refused."""
    if (
        type(error) is not KinesisError
    ):  # a missing stream, wrong credentials: it is not about this record
        return error
    return KinesisError(
        f"{record.topic}[{record.partition}]@{record.offset} cannot be copied: {error}"
    )


async def _is_at_end(consumer: Consumer) -> bool:
    assigned = await consumer.assignment()
    return bool(assigned) and not any((await consumer.lag(assigned)).values())


def partition_key_of(record: ConsumerRecord) -> str:
    """Return what is a record's key in a stream: its own if it can be, else a hash of it.

    Records without a key are spread over the shards, the same record to the same shard every time.
    """
    if record.key is None:
        return f"{record.topic}-{record.partition}-{record.offset}"[-MAX_KEY_CHARACTERS:]
    try:
        text: str = record.key.decode()
    except UnicodeDecodeError:
        text = ""
    return text if 1 <= len(text) <= MAX_KEY_CHARACTERS else sha256(record.key).hexdigest()


def enveloped(record: ConsumerRecord) -> bytes:
    """Return a record as JSON; topic, partition and offset tell a duplicate from a record that looks the same."""
    return msgspec.json.encode(
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp_ms": record.timestamp_ms,
            **_text("key", record.key),
            **_text("value", record.value),
            "headers": [
                {**_text("name", _name_bytes(name)), **_text("value", value)}
                for name, value in record.headers
            ],
        }
    )


def _name_bytes(name: str) -> bytes:
    """Return a header's name as it was written: no broker checks that it is UTF-8."""
    return name.encode("utf-8", "surrogateescape")


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: b64encode(data).decode(), f"{name}_encoding": "base64"}


def producing(*, aggregate: bool, record_bytes: int | None) -> ProducerSettings:
    """Return how records are written.

    Raises:
        ConfigError: They cannot be.
    """
    size = 1 << 20 if record_bytes is None else record_bytes
    if size < 1:
        raise ConfigError(f"record_bytes={size}: it is at least 1")
    return ProducerSettings(
        record_bytes=size,
        request_bytes=max(size, 5 << 20),
        aggregate_bytes=min(size, 51_200) if aggregate else 0,
    )
