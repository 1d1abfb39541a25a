"""One shard. Its records are stored as the JSON that readers receive."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

import msgspec

from headrace.core.lease.lease import HashRange
from headrace.testing.kinesis.limits import PutBudget, ReadBudget, Window
from headrace.testing.kinesis.numbers import LAST_COUNTER, sequence_number

_ENCRYPTED: Final = b',"EncryptionType":"KMS"'


class Slice(NamedTuple):
    """The records that a read returns: JSON objects with commas between them, and the next position."""

    body: bytes
    records: int
    size: int
    next_sequence: int
    is_last: bool
    """Whether no further record is stored behind these."""
    behind_ms: int


class StoredRecord(msgspec.Struct, rename="pascal"):
    """A record as readers receive it."""

    sequence_number: str
    approximate_arrival_timestamp: float
    data: bytes
    partition_key: str


class Shard:
    """A range of hash keys with its records, in order.

    Attributes:
        number: The number in the shard's name.
        parents: The shards that this shard came from: none, one (after a split) or two (after a merge).
        created_ms: The creation time in milliseconds.
        created_s: The creation time in sequence numbers, in seconds; later than that of the parents.
        closed_ms: The time since which the shard accepts no records; None while it is open.
        children: The shards that came from this shard by a split or merge.
    """

    def __init__(
        self, number: int, hash_range: HashRange, now_ms: int, parents: tuple[Shard, ...] = ()
    ) -> None:
        self.number = number
        self.name = f"shardId-{number:012d}"
        self.hash_range = hash_range
        self.parents = tuple(parent.name for parent in parents)
        self.children: list[Shard] = []
        self.created_ms = now_ms
        self.created_s: int = max([now_ms // 1000, *(parent.created_s + 1 for parent in parents)])
        self.closed_ms: int | None = None
        self.first_sequence = self._sequence(0, now_ms)
        self.last_sequence = self.first_sequence
        self.read_budget = ReadBudget()
        self.put_budget = PutBudget()
        self.iterator_calls = Window()
        self._sequences: list[int] = []
        self._times_ms: list[int] = []
        self._sizes: list[int] = []
        """Cumulative record sizes in bytes: entry *i* is the size of the records 0 to *i*."""
        self._bodies: list[bytes] = []
        self._trimmed_size = 0

    @property
    def end_sequence(self) -> int | None:
        """The last sequence number of the shard; None while it is open."""
        if self.closed_ms is None:
            return None
        return self._sequence(LAST_COUNTER, self.closed_ms)

    def append(
        self,
        counter: int,
        now_ms: int,
        data: str,
        size: int,
        *,
        partition_key: str,
        is_encrypted: bool = False,
    ) -> int:
        """Store a record in the shard.

        Args:
            counter: The number of the record in the stream.
            now_ms: The time of arrival in milliseconds.
            data: The data in base64.
            size: The bytes that count: data and partition key.
            partition_key: The partition key of the record.
            is_encrypted: Whether responses to readers mark the record as encrypted.

        Returns:
            The sequence number of the record.
        """
        sequence = self._sequence(counter, now_ms)
        stamp = b"%d.%03d" % divmod(now_ms, 1000)
        key = msgspec.json.encode(partition_key)
        self._bodies.append(
            b'{"SequenceNumber":"%d","ApproximateArrivalTimestamp":%b,"Data":"%b","PartitionKey":%b%b}'
            % (sequence, stamp, data.encode(), key, _ENCRYPTED if is_encrypted else b"")
        )
        self._sequences.append(sequence)
        self._times_ms.append(now_ms)
        self._sizes.append((self._sizes[-1] if self._sizes else self._trimmed_size) + size)
        self.last_sequence = sequence
        return sequence

    def read(self, sequence: int, max_records: int, max_bytes: int, now_ms: int) -> Slice:
        """Return records from a sequence number on: at least one, if there is any."""
        start = bisect_left(self._sequences, sequence)
        before = self._sizes[start - 1] if start else self._trimmed_size
        space = bisect_left(self._sizes, before + max_bytes + 1, start)
        stop = min(max(space, start + 1), start + max_records, len(self._sequences))
        if start >= stop:
            return Slice(b"", 0, 0, sequence, is_last=True, behind_ms=0)
        is_last = stop == len(self._sequences)
        return Slice(
            b",".join(self._bodies[start:stop]),
            stop - start,
            self._sizes[stop - 1] - before,
            self._sequences[stop - 1] + 1,
            is_last,
            0 if is_last else max(0, now_ms - self._times_ms[stop - 1]),
        )

    def behind_ms(self, sequence: int, now_ms: int) -> int:
        """Return the age in milliseconds of the record at a sequence number; 0 if there is none."""
        index = bisect_left(self._sequences, sequence)
        return now_ms - self._times_ms[index] if index < len(self._sequences) else 0

    def sequence_at(self, timestamp_ms: int) -> int:
        """Return the sequence number of the first record at or after a time, or that of the next record."""
        index = bisect_left(self._times_ms, timestamp_ms)
        return self._sequences[index] if index < len(self._sequences) else self.last_sequence + 1

    def trim(self, horizon_ms: int) -> None:
        """Remove records that arrived before a time."""
        if not self._times_ms or self._times_ms[0] >= horizon_ms:
            return
        count = bisect_left(self._times_ms, horizon_ms)
        self._trimmed_size = self._sizes[count - 1]
        for column in (self._sequences, self._times_ms, self._sizes, self._bodies):
            del column[:count]

    def close(self, now_ms: int, children: list[Shard]) -> None:
        """Accept no more records."""
        self.closed_ms = now_ms
        self.children = children

    def records(self) -> list[StoredRecord]:
        """Return the stored records of the shard."""
        return [msgspec.json.decode(body, type=StoredRecord) for body in self._bodies]

    def described(self) -> dict[str, object]:
        """Return the description of the shard in lists of shards."""
        numbers = {"StartingSequenceNumber": str(self.first_sequence)}
        if self.end_sequence is not None:
            numbers["EndingSequenceNumber"] = str(self.end_sequence)
        reply: dict[str, object] = {"ShardId": self.name}
        reply |= dict(zip(("ParentShardId", "AdjacentParentShardId"), self.parents, strict=False))
        return reply | {
            "HashKeyRange": described_range(self.hash_range),
            "SequenceNumberRange": numbers,
        }

    def child_shards(self) -> list[dict[str, object]]:
        """Return the descriptions of the children in the reply that ends the shard."""
        return [
            {
                "ShardId": child.name,
                "ParentShards": list(child.parents),
                "HashKeyRange": described_range(child.hash_range),
            }
            for child in self.children
        ]

    def _sequence(self, counter: int, now_ms: int) -> int:
        return sequence_number(self.number, self.created_s, counter, now_ms // 1000)


def described_range(hash_range: HashRange) -> dict[str, str]:
    """Return a range of hash keys in AWS's form."""
    return {
        "StartingHashKey": str(hash_range.first),
        "EndingHashKey": str(hash_range.last),
    }
