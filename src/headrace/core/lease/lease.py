"""A lease as it is stored: one row for each shard that a group reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace.core.lease.checkpoint import Checkpoint


class LeaseKey(NamedTuple):
    """Which shard, and for whom."""

    group: str
    stream: str
    """`<name>@<creation time, s since 1970>`: a stream that is deleted and created again is another one."""
    shard: str

    def __str__(self) -> str:
        return f"{self.group}/{self.stream}/{self.shard}"


class HashRange(NamedTuple):
    """The hash keys whose records a shard takes, both ends included; integers of 128 bits."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The group's state for one shard: its owner and its checkpoint.

    `epoch` and `beat` are two counters instead of the Kinesis Client Library's one: renewals and checkpoints are
    conditional on (owner, epoch), and on a beat that is lower than the number that the owner gave them. So one may be
    repeated after a lost answer, and one that comes late takes nothing back.

    Attributes:
        key: Whose it is.
        checkpoint: How far the group has come.
        owner: Who reads it, a name that nobody else ever has; None when it is free.
        epoch: Fencing token: one more at every change of the owner.
        beat: The number of the last renewal, which grows; who watches it needs no clock but its own.
        parents: The shards that this one came from: none, one (a split) or two (a merge).
        next_owner: Who asks for it; of a free one, whom it was given to.
        hash_range: Which records are the shard's; None where it is not known.
        bytes_per_s: How much it carries, averaged.
        switches: How often it changed hands since the last checkpoint.
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
