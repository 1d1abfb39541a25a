"""The actions of a group member: requests to the lease store, and news for the reader of the shards.

Each request is answered exactly once with `LeaseCore.on_reply`, also if it failed. News are not answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, Protocol

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import HashRange, Lease, LeaseKey


class ListedShard(Protocol):
    """A shard as a list of shards describes it."""

    @property
    def shard(self) -> str:
        """The id of the shard."""

    @property
    def parents(self) -> frozenset[str]:
        """The shards that this shard came from: none, one (after a split) or two (after a merge)."""

    @property
    def hash_range(self) -> HashRange | None:
        """The hash keys of the shard's records; None if they are not known."""


class Why(StrEnum):
    """The reason for which a shard is drained or revoked."""

    HANDOVER = "handover"
    """Another member asks for the lease."""
    LOST = "lost"
    """The lease expired or belongs to another member. The new owner handles the records since the last checkpoint
    again."""
    ENDED = "ended"
    """The shard is closed and was read to its end."""
    SHUTDOWN = "shutdown"
    """The program closes this member."""
    STALLED = "stalled"
    """Fetches failed for too long. Another member may be able to read the shard."""


class Unknown(Enum):
    """The type of `UNKNOWN`, which stands for an unknown outcome."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN
"""The outcome of a request that was not answered: the store may have executed the request, or may still execute it."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Read the leases on a stream. The response is a list of leases."""

    stream: str


@dataclass(frozen=True, slots=True)
class ListShards:
    """List the shards of a stream. The response is a list of shards."""

    stream: str


@dataclass(frozen=True, slots=True)
class Create:
    """Write a lease that does not exist yet. The response is whether the lease was written."""

    lease: Lease

    @property
    def key(self) -> LeaseKey:
        return self.lease.key


@dataclass(frozen=True, slots=True)
class Take:
    """Make this member the owner of a lease. The response is the lease, or None if it differs from `seen`."""

    seen: Lease

    @property
    def key(self) -> LeaseKey:
        return self.seen.key


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew a lease, with a checkpoint or without. The response is the lease, or None if another member owns it."""

    key: LeaseKey
    epoch: int
    beat: int
    """The number of this request. The store ignores a request whose number is lower than that of an executed one."""
    checkpoint: Checkpoint | None
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the owner of a lease for the lease. The response is whether the request was stored."""

    seen: Lease

    @property
    def key(self) -> LeaseKey:
        return self.seen.key


@dataclass(frozen=True, slots=True)
class Give:
    """Release a lease, or transfer it to the member `to`, with its last checkpoint (None: the stored one).

    The response is whether this member owned the lease.
    """

    key: LeaseKey
    epoch: int
    to: str | None
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the lease of a shard that does not exist any more. The response is whether the lease is removed."""

    seen: Lease

    @property
    def key(self) -> LeaseKey:
        return self.seen.key


@dataclass(frozen=True, slots=True)
class Assigned:
    """The reader must read a shard, from the checkpoint of its lease."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Drain:
    """The reader must begin no further record of a shard, finish the begun ones, and report with `on_drained`."""

    key: LeaseKey
    why: Why
    deadline_ms: int | None
    """The time at which the lease ends even if records are unfinished. None: the member waits for the records."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The reader of a shard has not completed a fetch for too long, and must be restarted at its position."""

    key: LeaseKey


@dataclass(frozen=True, slots=True)
class Revoked:
    """This member does not own a shard any more. The reader must stop all processing of the shard at once."""

    key: LeaseKey
    why: Why


Write = Create | Take | Ask | Delete
Request = Scan | ListShards | Create | Take | Renew | Ask | Give | Delete
News = Assigned | Drain | Restart | Revoked
Action = Request | News
Outcome = object
"""The response of the store to a `Request`, or `UNKNOWN`."""
