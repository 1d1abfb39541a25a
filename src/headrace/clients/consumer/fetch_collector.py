"""Returns fetched records to polls: a limited number each time, beginning with another partition each time.

While the decompressed batches of all partitions need more than `HELD_BYTES`, the same partition comes first again. So
memory holds one large batch, and not one for each partition.
"""

from __future__ import annotations

from typing import Final

from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.decoding import Decode, Decoders
from headrace.clients.consumer.records import ConsumerRecord, decoded_record
from headrace.errors import SerializationError
from headrace.types import TopicPartition

HELD_BYTES: Final = 16 << 20
"""The limit for decompressed batches of all partitions in bytes; above it no other batch is decompressed."""


class FetchCollector:
    """Collects the fetched records of one consumer."""

    def __init__(
        self, assigned: dict[TopicPartition, AssignedPartition], decoders: Decoders
    ) -> None:
        self._assigned = assigned
        self._decoders = decoders
        self._last: AssignedPartition | None = None
        """The partition whose record `take_one` returned last; None if there is none."""
        self.consumed: set[TopicPartition] = set()
        """The partitions of which records were returned since the consumer began to read."""
        self.unfinished = False
        """Whether the last `ready` stopped before it had looked at all fetched batches."""

    def ready(self) -> bool:
        """Return whether there is a record to return.

        Raises:
            CorruptRecordError: A batch is damaged.
        """
        self.unfinished = False
        for partition in self._assigned.values():
            if self._may_give(partition):
                if partition.decode():
                    return True
                if not partition.empty:
                    self.unfinished = True
                    self._end_turn(partition)
                    break
        return False

    def take(self, limit: int) -> list[ConsumerRecord]:
        """Return at most `limit` records.

        Raises:
            CorruptRecordError: The first batch is damaged.
            SerializationError: The first record cannot be decoded.
        """
        taken: list[ConsumerRecord] = []
        self._last = None
        for partition in list(self._assigned.values()):
            if not self._may_give(partition):
                continue
            before = len(taken)
            whole = self._take_from(partition, taken, limit)
            if len(taken) > before:
                self.consumed.add(partition.name)
            if taken:
                self._end_turn(partition)
            if not whole or len(taken) >= limit:
                break
        return taken

    def take_one(self) -> ConsumerRecord | None:
        """Return one record, from the same partition as before while that has decoded ones."""
        partition = self._last
        if (
            partition is None
            or self._assigned.get(partition.name) is not partition
            or partition.paused
            or not partition.pending
        ):
            records = self.take(1)
            if not records:
                return None
            self._last = self._assigned[TopicPartition(*records[0][:2])]
            return records[0]
        taken: list[ConsumerRecord] = []
        self._take_from(partition, taken, 1)
        return taken[0]

    def finish_last(self) -> None:
        """Mark the record that `take_one` returned last as finished."""
        if self._last is not None:
            self._last.finished = self._last.position()

    @property
    def drained(self) -> bool:
        """Whether the partition of the last record has no more fetched records."""
        return self._last is None or self._last.empty

    def _end_turn(self, partition: AssignedPartition) -> None:
        """Begin with another partition next time, so that a busy one does not starve the others."""
        if partition.held and sum(each.held for each in self._assigned.values()) > HELD_BYTES:
            return
        self._assigned[partition.name] = self._assigned.pop(partition.name)

    def _may_give(self, partition: AssignedPartition) -> bool:
        return (
            not partition.paused
            and not partition.empty
            and self._decoders.of(partition.name.topic) is not None
        )

    def _take_from(
        self, partition: AssignedPartition, taken: list[ConsumerRecord], limit: int
    ) -> bool:
        """Add records of one partition to `taken`.

        Returns:
            Whether another partition may follow. If not, the next poll must raise an error, or must continue the search
            for the next record.
        """
        decoders = self._decoders.of(partition.name.topic)
        assert decoders is not None, "checked by the caller"
        decode_key, decode_value = decoders
        while len(taken) < limit:
            if not partition.pending and not self._decode(partition, taken):
                return partition.empty
            first = partition.next_record
            chunk = partition.records[first : first + limit - len(taken)]
            if decode_key is None and decode_value is None:
                taken += chunk
                partition.advance(len(chunk))
                continue
            good = 0
            for record in chunk:
                try:
                    taken.append(_made(record, decode_key, decode_value))
                except SerializationError:
                    if good:
                        partition.advance(good)
                    if taken:
                        return False
                    raise
                good += 1
            partition.advance(good)
        return True

    @staticmethod
    def _decode(partition: AssignedPartition, taken: list[ConsumerRecord]) -> bool:
        try:
            return partition.decode()
        except Exception:
            if taken:
                return False  # raised by the next poll, which begins with this batch
            raise


def _made(
    record: ConsumerRecord, decode_key: Decode | None, decode_value: Decode | None
) -> ConsumerRecord:
    key, value = record.key, record.value
    what = "key"
    try:
        if key is not None and decode_key is not None:
            key = decode_key(key)
        what = "value"
        if value is not None and decode_value is not None:
            value = decode_value(value)
    except Exception as error:
        topic, partition, offset = record[:3]
        raise SerializationError(
            f"the {what} of the record at offset {offset} of {TopicPartition(topic, partition)} does not decode: "
            f"{error!r}; seek to {offset + 1} to skip it",
            topic=topic,
            partition=partition,
            offset=offset,
        ) from error
    return decoded_record(record, key, value)
