"""Records of a stream in the shape of a topic's: the stream in place of the topic, a shard's number, one big offset.

An offset is the sequence number with the number of the user record within it behind, so offsets order as records do,
are the same for everybody who reads the shard, and tell both when they are asked. They do not fit into eight bytes.
"""

from __future__ import annotations

import re
from typing import Final

from headrace.clients.consumer.records import ConsumerRecord
from headrace.errors import KinesisError

SUB_BITS: Final = 24
"""An aggregated record has a mebibyte, or ten, and no user record takes less than a byte."""
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
        """The sequence number; the user records of an aggregated record share one."""
        return str(self.offset >> SUB_BITS)

    @property
    def sub_sequence(self) -> int | None:
        """Which user record of an aggregated record it is, from 0; None for any other."""
        sub = self.offset & ((1 << SUB_BITS) - 1)
        return sub - 1 if sub else None

    @property
    def place(self) -> str:
        """The sequence number, with the number of the user record behind a colon where several share it."""
        sub = self.sub_sequence
        return self.sequence_number if sub is None else f"{self.sequence_number}:{sub}"


def offset_of(sequence_number: str, sub_sequence: int | None) -> int:
    """Return the offset of a record."""
    return int(sequence_number) << SUB_BITS | (0 if sub_sequence is None else sub_sequence + 1)


def shard_name(partition: int) -> str:
    """Return the id of the shard that has a number."""
    return f"shardId-{partition:012d}"


def partition_of(shard: str) -> int:
    """Return the number of a shard.

    Raises:
        KinesisError: Its id has none.
    """
    found = _NUMBERED.fullmatch(shard)
    if found is None:
        raise KinesisError(f"the shard {shard!r} has no number at its end, as Kinesis' shards have")
    return int(found[2])
