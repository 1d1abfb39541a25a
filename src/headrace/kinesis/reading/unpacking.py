"""The way from stored records to records: aggregates are divided, and finished user records are left out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import HashRange
from headrace.kinesis.aggregation.decoding import UserRecord, belongs, taken_apart
from headrace.kinesis.aggregation.encoding import MAGIC
from headrace.kinesis.client.get_records import FetchedRecord
from headrace.kinesis.reading.records import KinesisRecord

AGGREGATES_BYTES: Final = 2 << 20
"""The most bytes of aggregates that are divided at a time. A user record of 6 bytes becomes an object of 300 bytes."""
_ALL_KEYS = HashRange(0, (1 << 128) - 1)


class Unpacking:
    """Turns the stored records of one shard into records."""

    def __init__(
        self, stream: str, shard: str, *, hash_range: HashRange | None, deaggregate: bool
    ) -> None:
        """Prepare for one shard; `hash_range` is None if it is not known."""
        self._stream = stream
        self._shard = shard
        self._hash_range = None if hash_range == _ALL_KEYS else hash_range
        self._deaggregate = deaggregate

    def count(self, stored: list[FetchedRecord]) -> int:
        """Return how many of a reply's records, from the first on, are to be made into records at a time."""
        if not self._deaggregate:
            return len(stored)
        size = 0
        for index, each in enumerate(stored):
            if each.data.startswith(MAGIC):
                size += len(each.data)
                if size > AGGREGATES_BYTES and index:
                    return index
        return len(stored)

    def records(self, stored: Iterable[FetchedRecord], start: Checkpoint) -> list[KinesisRecord]:
        """Return the records in stored records, in order.

        Args:
            stored: The stored records as Kinesis returned them.
            start: The checkpoint behind which reading started. In the aggregate that it points into, only later records
                count.
        """
        stream, shard, apart = self._stream, self._shard, self._deaggregate
        records: list[KinesisRecord] = []
        if start.sub_sequence is not None:
            # Other libraries also write the sub-sequence number 0 for a plain record: such a record is finished.
            stored = [
                each
                for each in stored
                if each.sequence_number != start.position or each.data.startswith(MAGIC)
            ]
        for each in stored:
            users = taken_apart(each.data) if apart and each.data.startswith(MAGIC) else None
            if users is not None:
                records += self._of_aggregate(each, users, start)
                continue
            records.append(
                KinesisRecord(
                    stream,
                    shard,
                    each.sequence_number,
                    None,
                    True,  # noqa: FBT003 - a column, and this is called for each record
                    each.partition_key,
                    None,
                    each.data,
                    round(each.approximate_arrival_timestamp * 1000),
                    each.encryption_type,
                )
            )
        return records

    def _of_aggregate(
        self, stored: FetchedRecord, users: list[UserRecord], start: Checkpoint
    ) -> list[KinesisRecord]:
        sequence_number = stored.sequence_number
        done = -1
        if start.sub_sequence is not None and start.position == sequence_number:
            done = start.sub_sequence
        hash_range = self._hash_range
        kept = [
            (sub_sequence, user)
            for sub_sequence, user in enumerate(users)
            if hash_range is None or belongs(user, hash_range)
        ]
        timestamp_ms = round(stored.approximate_arrival_timestamp * 1000)
        last = kept[-1][0] if kept else -1
        return [
            KinesisRecord(
                self._stream,
                self._shard,
                sequence_number,
                sub_sequence,
                sub_sequence == last,
                user.partition_key,
                user.explicit_hash_key,
                user.data,
                timestamp_ms,
                stored.encryption_type,
            )
            for sub_sequence, user in kept
            if sub_sequence > done
        ]
