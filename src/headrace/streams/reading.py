"""Reading a range of one partition, without a group and without a consumer."""

from __future__ import annotations

from typing import Any

from headrace.clients.consumer.records import ConsumerRecord, FetchedBatches, Slice, decoded_record
from headrace.clients.flows import metadata
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.flows.fetch import FetchLimits, FetchPosition, fetch
from headrace.clients.flows.routing import partition_error
from headrace.errors import CorruptRecordError, SerializationError
from headrace.serdes.serde import Serde
from headrace.types import TopicPartition

_FETCH_BYTES = 1 << 20


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
            ApiError: There is no such partition, or no such offset.
            CorruptRecordError: A batch is damaged.
            SerializationError: A key or value cannot be read.
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
                break  # what is there ends before the offset, or is larger than what was asked for
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
