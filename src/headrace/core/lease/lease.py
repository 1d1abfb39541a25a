"""A lease as it is stored: one row for each shard that a group reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.core.lease.checkpoint import Checkpoint


class LeaseKey(NamedTuple):
    """The key of a lease: one shard, read by one group."""

    group: str
    stream: str
    """`<name>@<creation time in s since 1970>`. A stream that is deleted and created again has another key."""
    shard: str

    def __str__(self) -> str:
        return f"{self.group}/{self.stream}/{self.shard}"


class HashRange(NamedTuple):
    """The hash keys whose records a shard accepts: integers of 128 bits, both ends included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The group's state for one shard: its owner and its checkpoint.

    The Kinesis Client Library has one counter. A lease has two, `epoch` and `beat`. A renewal or checkpoint is
    conditional on (owner, epoch), and on a stored beat that is lower than the request's beat. So the owner can repeat a
    request after a lost response, and a late request cannot undo a later one.

    Attributes:
        key: The shard and the group.
        checkpoint: The position up to which the group has finished the shard.
        owner: The unique name of the member that reads the shard; None if the lease is free.
        epoch: The fencing token. Each change of the owner increases it by one.
        beat: The number of the last renewal. It only grows, so an observer needs no clock but its own.
        parents: The shards that this shard came from: none, one (after a split) or two (after a merge).
        next_owner: The member that asks for the lease. If the lease is free: the member to which it was given. None: no
            member.
        hash_range: The hash keys of the shard's records; None if they are not known.
        bytes_per_s: The average number of bytes that are read from the shard per second.
        switches: The number of changes of the owner since the last checkpoint.
    """

    key: LeaseKey
    checkpoint: Checkpoint
    owner: str | None = None
    epoch: int = 0
    beat: int = 0
    parents: frozenset[str] = frozenset()
    next_owner: str | None = None
    hash_range: HashRange | None = None
    bytes_per_s: float = 0.0
    switches: int = 0
