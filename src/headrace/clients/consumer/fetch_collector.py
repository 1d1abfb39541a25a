"""Handing out records: a bounded number at a time, and beginning with another partition each time.

While the decompressed batches of all partitions take more than `HELD_BYTES`, the same partition comes first again. So
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
"""Above so many bytes of decompressed batches in all partitions no further batch is decompressed."""


class FetchCollector:
    """Takes records out of the assigned of one consumer."""

    def __init__(
        self, assigned: dict[TopicPartition, AssignedPartition], decoders: Decoders
    ) -> None:
        self._assigned = assigned
        self._decoders = decoders
        self._last: AssignedPartition | None = None
        """The partition whose record was handed out alone, and is being worked on."""
        self.consumed: set[TopicPartition] = set()
        """The partitions of which records were handed out since the consumer began to read."""
        self.unfinished = False
        """Whether the last `ready` stopped before it had looked at everything that was fetched."""

    def ready(self) -> bool:
        """Whether there is a record to hand out.

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
        """Hand out at most so many records.

        Raises:
            CorruptRecordError: The first batch is damaged.
            SerializationError: The first record does not decode.
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
        """Hand out one record, from the same partition as before while it has decoded ones."""
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
        """The program came back from the record that was handed out alone."""
        if self._last is not None:
            self._last.finished = self._last.position()

    @property
    def drained(self) -> bool:
        """Whether the partition that gave the last record has nothing more here."""
        return self._last is None or self._last.empty

    def _end_turn(self, partition: AssignedPartition) -> None:
        """Begin with another partition next time: a busy one must not starve the others."""
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
        """Hand out records of one partition.

        Returns:
            False when no other partition may follow: an error has to be raised by the next poll, or the search for the
            next record goes on.
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
