"""Handing out records: a bounded number at a time, and beginning with another partition each time.

While the decompressed batches of all partitions take more than `HELD_BYTES`, the same partition comes first again. So
memory holds one large batch, and not one for each partition.
"""

from __future__ import annotations

from typing import Final

from headrace.clients.consumer.cursor import Cursor
from headrace.clients.consumer.decoding import Decode, Decoders
from headrace.clients.consumer.records import ConsumerRecord, decoded_record
from headrace.errors import SerializationError
from headrace.types import TopicPartition

HELD_BYTES: Final = 16 << 20
"""Above so many bytes of decompressed batches in all partitions no further batch is decompressed."""


class HandOut:
    """Takes records out of the cursors of one consumer."""

    def __init__(self, cursors: dict[TopicPartition, Cursor], decoders: Decoders) -> None:
        self._cursors = cursors
        self._decoders = decoders
        self._last: Cursor | None = None
        """The cursor whose record was handed out alone, and is being worked on."""
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
        for cursor in self._cursors.values():
            if self._may_give(cursor):
                if cursor.decode():
                    return True
                if not cursor.empty:
                    self.unfinished = True
                    self._end_turn(cursor)
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
        for cursor in list(self._cursors.values()):
            if not self._may_give(cursor):
                continue
            before = len(taken)
            whole = self._take_from(cursor, taken, limit)
            if len(taken) > before:
                self.consumed.add(cursor.name)
            if taken:
                self._end_turn(cursor)
            if not whole or len(taken) >= limit:
                break
        return taken

    def take_one(self) -> ConsumerRecord | None:
        """Hand out one record, from the same partition as before while it has decoded ones."""
        cursor = self._last
        if (
            cursor is None
            or self._cursors.get(cursor.name) is not cursor
            or cursor.paused
            or not cursor.pending
        ):
            records = self.take(1)
            if not records:
                return None
            self._last = self._cursors[TopicPartition(*records[0][:2])]
            return records[0]
        taken: list[ConsumerRecord] = []
        self._take_from(cursor, taken, 1)
        return taken[0]

    def finish_last(self) -> None:
        """The program came back from the record that was handed out alone."""
        if self._last is not None:
            self._last.finished = self._last.position()

    @property
    def drained(self) -> bool:
        """Whether the partition that gave the last record has nothing more here."""
        return self._last is None or self._last.empty

    def _end_turn(self, cursor: Cursor) -> None:
        """Begin with another partition next time: a busy one must not starve the others."""
        if cursor.held and sum(each.held for each in self._cursors.values()) > HELD_BYTES:
            return
        self._cursors[cursor.name] = self._cursors.pop(cursor.name)

    def _may_give(self, cursor: Cursor) -> bool:
        return (
            not cursor.paused
            and not cursor.empty
            and self._decoders.of(cursor.name.topic) is not None
        )

    def _take_from(self, cursor: Cursor, taken: list[ConsumerRecord], limit: int) -> bool:
        """Hand out records of one partition.

        Returns:
            False when no other partition may follow: an error has to be raised by the next poll, or the search for the
            next record goes on.
        """
        decoders = self._decoders.of(cursor.name.topic)
        assert decoders is not None, "checked by the caller"
        decode_key, decode_value = decoders
        while len(taken) < limit:
            if not cursor.pending and not self._decode(cursor, taken):
                return cursor.empty
            first = cursor.next_record
            chunk = cursor.records[first : first + limit - len(taken)]
            if decode_key is None and decode_value is None:
                taken += chunk
                cursor.advance(len(chunk))
                continue
            good = 0
            for record in chunk:
                try:
                    taken.append(_made(record, decode_key, decode_value))
                except SerializationError:
                    if good:
                        cursor.advance(good)
                    if taken:
                        return False
                    raise
                good += 1
            cursor.advance(good)
        return True

    @staticmethod
    def _decode(cursor: Cursor, taken: list[ConsumerRecord]) -> bool:
        try:
            return cursor.decode()
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
