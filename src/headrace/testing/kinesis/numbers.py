"""Sequence numbers and hash keys as Kinesis makes them.

A sequence number is an integer of 186 bits, 56 decimal digits. Its fields are:

    bits   4        36             4             64       8      36            32       4
           version  shard created  shard, least  counter  zeros  second of it  shard    version

The first fields of a shard never change. So the numbers of one shard grow, and the numbers of a later shard are greater
than those of its parents.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Final, NamedTuple

from headrace.core.lease.lease import HashRange
from headrace.types import MAX_INT64

LAST_HASH_KEY: Final = (1 << 128) - 1
LAST_COUNTER: Final = MAX_INT64
"""The counter in the last sequence number of a closed shard."""

_VERSION: Final = 2


class Sequence(NamedTuple):
    """The fields of a sequence number.

    Attributes:
        shard: The number of the shard.
        created_s: The creation time of the shard in seconds since 1970.
        counter: The number of the record in the stream.
        second: The time of the record in seconds since 1970.
    """

    shard: int
    created_s: int
    counter: int
    second: int


def sequence_number(shard: int, created_s: int, counter: int, second: int) -> int:
    """Return the sequence number with these fields."""
    number = _VERSION << 36 | created_s
    number = number << 4 | shard & 0xF
    number = number << 64 | counter
    number = number << 44 | second
    number = number << 32 | shard
    return number << 4 | _VERSION


def parse_sequence(number: int) -> Sequence | None:
    """Return the fields of a sequence number, or None if the number is not one."""
    rest, version = number >> 4, number & 0xF
    shard, rest = rest & 0xFFFF_FFFF, rest >> 32
    second, rest = rest & 0xFFF_FFFF_FFFF, rest >> 44
    counter, rest = rest & 0xFFFF_FFFF_FFFF_FFFF, rest >> 64
    nibble, rest = rest & 0xF, rest >> 4
    created_s, first = rest & 0xF_FFFF_FFFF, rest >> 36
    if (version, first, nibble) != (_VERSION, _VERSION, shard & 0xF):
        return None
    return Sequence(shard, created_s, counter, second)


def hash_key(partition_key: str) -> int:
    """Return the hash key of a partition key."""
    digest = hashlib.md5(partition_key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest)


def uniform_ranges(count: int) -> list[HashRange]:
    """Divide all hash keys among a number of shards."""
    edges = [(LAST_HASH_KEY + 1) * index // count for index in range(count + 1)]
    return [HashRange(first, after - 1) for first, after in pairwise(edges)]
