"""Copies a topic into a stream, at least once: Kinesis has no transaction that could include a position."""

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
_NOT_A_MEMBER: Final = (IllegalGenerationError, UnknownMemberIdError, RebalanceInProgressError)
"""Errors of a commit by a process that is not a member of the present generation of the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntoStream:
    """The plan of a bridge from a topic into a stream.

    Attributes:
        target: The brokers.
        topic: The topic that is copied.
        destination: The stream that receives the records.
        name: The bridge's name. Processes with one name share the partitions.
        latest: Whether a new bridge begins at the topic's end, not at its beginning.
        envelope: Whether each record is written as a JSON object that contains its origin.
        once: Whether the bridge ends when all present records are copied.
        properties: The properties of consumers.
        client_properties: The properties of other clients.
        producing: The settings of the Kinesis producer.
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
        """The consumer group that stores the bridge's offsets."""
        return f"__bridge.{self.name}"


class IntoStreamBridge:
    """Copies records: it reads some, writes them, waits until they are written, commits, and reads further records.

    So another process that takes over partitions begins behind the committed offsets. After a kill only the records of
    the last read are written again.
    """

    def __init__(self, plan: IntoStream) -> None:
        """Prepare a bridge; nothing is connected yet."""
        self._plan = plan
        self.progress = CopyProgress()
        self._uncommitted: dict[TopicPartition, int] = {}

    async def run(self, stopping: asyncio.Event) -> None:
        """Copy until `stopping` is set, or, with `once`, until all present records are copied.

        Raises:
            ConfigError: The settings cannot be used.
            HeadraceError: The bridge cannot continue.
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
        """Commit the end offset of each partition for a new bridge.

        So partitions that are added later are copied from their beginning. The bridge also continues at the beginning
        if retention has removed the next record.
        """
        plan = self._plan
        async with Admin(plan.target, **plan.client_properties) as admin:
            if any(place.topic == plan.topic for place in await admin.offsets(plan.group)):
                return
            with suppress(*_NOT_A_MEMBER):  # another process of this name was faster
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
                return  # an administrator has removed the member; the consumer has logged it
            if records:
                await self._copy(consumer, producer, records)
            elif self._uncommitted:
                await self._commit(consumer, {})
            elif plan.once and await _is_at_end(consumer):
                return
            elif time_s() - seen_s >= _LOOK_S:
                # `poll` returns no error for a topic that was deleted.
                with suppress(TransportError):
                    await check_topic(plan.target, plan.topic, plan.client_properties)
                seen_s = time_s()
        if self._uncommitted:
            await self._commit(consumer, {})

    async def _copy(
        self, consumer: Consumer, producer: Producer, records: Sequence[ConsumerRecord]
    ) -> None:
        """Write records and commit them. If one fails, commit those before it, so that they are not written again."""
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
        """Commit offsets, with those of failed commits. If the brokers do not answer, later commits repeat it."""
        plan = self._plan
        self._uncommitted.update(offsets)
        try:
            with suppress(*_NOT_A_MEMBER):
                # The process was too slow for its group: another process copies these records again.
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
                f"{_named(record, error)}. To skip the record, set the offset of the group {self._plan.group} behind "
                "it"
            ) from error


async def _return_to(consumer: Consumer, left: Mapping[TopicPartition, int]) -> None:
    """Read partitions again from the first record that was not copied.

    Without this a range of records would be skipped: (1) The session of the bridge seems to have ended, so the bridge
    copies nothing. (2) The late response to a heartbeat arrives, and the bridge keeps the partition. (3) The bridge
    continues behind the records, and commits that position. If another process owns the partition meanwhile, that
    process copies the records.
    """
    for place, offset in left.items():
        with suppress(NotAssignedError):
            await consumer.seek(place, offset)


def _named(record: ConsumerRecord, error: HeadraceError) -> HeadraceError:
    """Add the name of the refused record to an error."""
    if type(error) is not KinesisError:
        # A missing stream or wrong credentials: the error is not about this record.
        return error
    return KinesisError(
        f"{record.topic}[{record.partition}]@{record.offset} cannot be copied: {error}"
    )


async def _is_at_end(consumer: Consumer) -> bool:
    assigned = await consumer.assignment()
    return bool(assigned) and not any((await consumer.lag(assigned)).values())


def partition_key_of(record: ConsumerRecord) -> str:
    """Return the partition key of a record in a stream: its own key, or a hash of a key that Kinesis does not accept.

    Records without a key are spread over the shards. The same record has the same partition key every time.
    """
    if record.key is None:
        return f"{record.topic}-{record.partition}-{record.offset}"[-MAX_KEY_CHARACTERS:]
    try:
        text: str = record.key.decode()
    except UnicodeDecodeError:
        text = ""
    return text if 1 <= len(text) <= MAX_KEY_CHARACTERS else sha256(record.key).hexdigest()


def enveloped(record: ConsumerRecord) -> bytes:
    """Return a record as JSON. Topic, partition and offset distinguish a duplicate from an equal record."""
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
    """Return a header's name as it was written: brokers do not check that it is UTF-8."""
    return name.encode("utf-8", "surrogateescape")


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: b64encode(data).decode(), f"{name}_encoding": "base64"}


def producing(*, aggregate: bool, record_bytes: int | None) -> ProducerSettings:
    """Return the settings of the Kinesis producer of a bridge.

    Raises:
        ConfigError: The size of a record is below 1.
    """
    size = 1 << 20 if record_bytes is None else record_bytes
    if size < 1:
        raise ConfigError(f"record_bytes={size} is not allowed: use 1 or more")
    return ProducerSettings(
        record_bytes=size,
        request_bytes=max(size, 5 << 20),
        aggregate_bytes=min(size, 51_200) if aggregate else 0,
    )
