"""Reads a range of one partition without a group and without a consumer, for `Broker.read`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from headrace.clients.consumer.records import ConsumerRecord, FetchedBatches, Slice, decoded_record
from headrace.clients.flows import metadata
from headrace.clients.flows.cluster import TopicSettings
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.flows.fetch import FetchLimits, FetchPosition, fetch
from headrace.clients.flows.list_offsets import READ_COMMITTED, READ_UNCOMMITTED
from headrace.clients.flows.routing import partition_error
from headrace.clients.flows.topic_settings import topic_settings
from headrace.errors import ConfigError, CorruptRecordError, SerializationError
from headrace.serdes.serde import AnySerde, Serde, SerdeOf, resolve_serde
from headrace.types import TopicPartition

_FETCH_BYTES = 1 << 20
"""The most bytes of one Fetch response. A larger single batch is returned whole."""


LEVELS: Final = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}
"""The number of each isolation level in Fetch requests."""


def new_reader(
    state: ClientState,
    run: Callable[[Flow[TopicSettings]], TopicSettings],
    topic_partition: TopicPartition,
    *,
    serde: SerdeOf[Any] | None,
    key_serde: AnySerde | None,
    isolation_level: str,
) -> RecordReader:
    """Return a reader with the given serdes, or with the serdes of the topic.

    Raises:
        ConfigError: The isolation level is unknown.
    """
    if isolation_level not in LEVELS:
        raise ConfigError(f"isolation_level is one of {', '.join(LEVELS)}, not {isolation_level!r}")
    topic = topic_partition.topic
    state.topic_settings.pop(topic, None)  # the topic may have been deleted and created again
    settings = run(topic_settings(state, topic))
    return RecordReader(
        topic_partition,
        value_serde=resolve_serde(serde or settings.serde or "bytes"),
        key_serde=resolve_serde(key_serde or settings.key_serde or "bytes"),
        isolation_level=LEVELS[isolation_level],
    )


class RecordReader:
    """Reads records of one partition."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        *,
        value_serde: Serde,
        key_serde: Serde,
        isolation_level: int,
    ) -> None:
        self._topic_partition = topic_partition
        self._isolation_level = isolation_level
        self._value_serde = value_serde
        self._key_serde = key_serde

    def read(self, state: ClientState, offset: int, limit: int) -> Flow[list[ConsumerRecord]]:
        """Return up to `limit` records from an offset on.

        Raises:
            ApiError: The partition or the offset does not exist.
            CorruptRecordError: A batch is damaged.
            SerializationError: A key or value cannot be decoded.
        """
        found: list[ConsumerRecord] = []
        yield from metadata.ensure(state, [self._topic_partition.topic])
        limits = FetchLimits(0, 1, _FETCH_BYTES, self._isolation_level)
        while len(found) < limit:
            position = FetchPosition(offset, -1, _FETCH_BYTES)
            answers = yield from fetch(state, {self._topic_partition: position}, limits)
            answer = answers[self._topic_partition]
            if answer.error:
                raise partition_error(self._topic_partition, answer.error)
            if not len(answer.records):
                break
            batches = FetchedBatches(self._topic_partition, answer, check_crcs=True)
            began = offset
            while (part := self._next_slice(batches, offset)) is not None:
                wanted = [each for each in part.records if each.offset >= offset]
                found += (self._decode(each) for each in wanted[: limit - len(found)])
                if len(found) >= limit:
                    break
                offset = max(offset, part.end_offset)
            if offset == began:
                break  # all records end before the offset, or the next batch is incomplete
        return found

    def _next_slice(self, batches: FetchedBatches, offset: int) -> Slice | None:
        try:
            return batches.next_slice()
        except CorruptRecordError as error:
            text = f"{self._topic_partition} at offset {offset}: {error}"
            raise CorruptRecordError(text) from error

    def _decode(self, record: ConsumerRecord) -> ConsumerRecord:
        key = self._decoded(self._key_serde, record.key, record.offset)
        value = self._decoded(self._value_serde, record.value, record.offset)
        return decoded_record(record, key, value)

    def _decoded(self, serde: Serde, data: bytes | None, offset: int) -> Any:
        if data is None:
            return None
        try:
            return serde.deserialize(data)
        except Exception as error:
            text = f"{self._topic_partition} at offset {offset}: {error}"
            raise SerializationError(text) from error
