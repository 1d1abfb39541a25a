"""Records of Kinesis shards with the fields of a topic's records: stream name, shard number, and a large offset.

An offset combines the sequence number with the index of a user record in its aggregated record. So offsets have the
order of the records, are the same for all readers of the shard, and contain both numbers. They exceed eight bytes.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.clients.consumer.records import ConsumerRecord
from headrace.errors import KinesisError

SUB_BITS: Final = 24
"""The bits of an offset for the index of a user record. An aggregated record has at most 10 MiB, and a user record at
least one byte."""
_NUMBERED: Final = re.compile(r"(.*-)?([0-9]{1,18})", re.ASCII)


class StreamRecord(ConsumerRecord):
    """A record of a shard: `topic` is the stream's name, `partition` the shard's number, `key` the partition key."""

    __slots__ = ()

    @property
    def shard(self) -> str:
        """The id of the shard."""
        return shard_name(self.partition)

    @property
    def sequence_number(self) -> str:
        """The sequence number. All user records of an aggregated record have the same one."""
        return str(self.offset >> SUB_BITS)

    @property
    def sub_sequence(self) -> int | None:
        """The index of the user record in its aggregated record, from 0; None for a record that is not aggregated."""
        sub = self.offset & ((1 << SUB_BITS) - 1)
        return sub - 1 if sub else None

    @property
    def place(self) -> str:
        """The sequence number; for a user record of an aggregated record, followed by a colon and its index."""
        sub = self.sub_sequence
        return self.sequence_number if sub is None else f"{self.sequence_number}:{sub}"


def offset_of(sequence_number: str, sub_sequence: int | None) -> int:
    """Return the offset for a sequence number and the index of a user record (None if there is none)."""
    return int(sequence_number) << SUB_BITS | (0 if sub_sequence is None else sub_sequence + 1)


def shard_name(partition: int) -> str:
    """Return the id of the shard that has a number."""
    return f"shardId-{partition:012d}"


def partition_of(shard: str) -> int:
    """Return the number of a shard.

    Raises:
        KinesisError: The id of the shard does not end with a number.
    """
    found = _NUMBERED.fullmatch(shard)
    if found is None:
        raise KinesisError(
            f"the id of shard {shard!r} does not end with a number, as ids of Kinesis do"
        )
    return int(found[2])
