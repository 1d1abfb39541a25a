"""Reading a range of one partition, without a group and without a consumer."""

from __future__ import annotations

from typing import Any

from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.flows import metadata
from headrace.clients.flows.effects import ClientState, Flow
from headrace.clients.flows.fetch import FetchLimits, FetchPosition, fetch
from headrace.clients.flows.routing import partition_error
from headrace.errors import SerializationError
from headrace.records.batch import HEADER_SIZE, BatchHeader
from headrace.records.reader import Record, decode_batch
from headrace.serdes.serde import Serde
from headrace.types import TopicPartition

_FETCH_BYTES = 1 << 20


class RecordReader:
    """Reads records of one partition."""

    def __init__(
        self, topic_partition: TopicPartition, *, value_serde: Serde, key_serde: Serde
    ) -> None:
        self._topic_partition = topic_partition
        self._value_serde = value_serde
        self._key_serde = key_serde

    def read(self, state: ClientState, offset: int, limit: int) -> Flow[list[ConsumerRecord]]:
        """Return up to `limit` records from an offset on.

        Raises:
            ApiError: There is no such partition, or no such offset.
            SerializationError: A key or value cannot be read.
        """
        found: list[ConsumerRecord] = []
        yield from metadata.ensure(state, [self._topic_partition.topic])
        limits = FetchLimits(0, 1, _FETCH_BYTES)
        while len(found) < limit:
            position = FetchPosition(offset, -1, _FETCH_BYTES)
            answers = yield from fetch(state, {self._topic_partition: position}, limits)
            answer = answers[self._topic_partition]
            if answer.error:
                raise partition_error(self._topic_partition, answer.error)
            if not len(answer.records):
                break
            position_in_answer = 0
            while len(answer.records) - position_in_answer >= HEADER_SIZE:
                header = BatchHeader.parse(answer.records, position_in_answer)
                if not header.is_control:
                    batch = decode_batch(header, answer.records, position_in_answer)
                    found += (self._record(each, header) for each in batch if each.offset >= offset)
                position_in_answer += header.size
                offset = header.last_offset + 1
        return found[:limit]

    def _record(self, record: Record, header: BatchHeader) -> ConsumerRecord:
        return ConsumerRecord(
            *self._topic_partition,
            record.offset,
            record.timestamp,
            self._decoded(self._key_serde, record.key, record.offset),
            self._decoded(self._value_serde, record.value, record.offset),
            record.headers,
            header.partition_leader_epoch,
        )

    def _decoded(self, serde: Serde, data: bytes | None, offset: int) -> Any:
        if data is None:
            return None
        try:
            return serde.deserialize(data)
        except Exception as error:
            text = f"{self._topic_partition} at offset {offset}: {error}"
            raise SerializationError(text) from error
