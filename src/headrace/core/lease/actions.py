"""The actions of a group member: requests to the lease store, and news for the reader of the shards.

A request is answered with `LeaseCore.on_reply`, once, whatever comes of it. News are not answered.
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
    """The lease expired or belongs to another member. Records since the last checkpoint are handled again there."""
    ENDED = "ended"
    """The shard is closed and was read to its end."""
    SHUTDOWN = "shutdown"
    """This member is closed."""
    STALLED = "stalled"
    """Fetches failed for too long. Another member may be able to read the shard."""


class Unknown(Enum):
    """The type of `UNKNOWN`, which stands for an unknown outcome."""

    UNKNOWN = "unknown"


UNKNOWN: Final = Unknown.UNKNOWN
"""The outcome of a request that was not answered: it may have happened, or may happen yet."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Read the leases on a stream; answered by a list of leases."""

    stream: str


@dataclass(frozen=True, slots=True)
class ListShards:
    """List the shards of a stream; answered by a list of shards."""

    stream: str


@dataclass(frozen=True, slots=True)
class Create:
    """Write a lease if there is none; answered by whether it was written."""

    lease: Lease

    @property
    def key(self) -> LeaseKey:
        """The key of the lease."""
        return self.lease.key


@dataclass(frozen=True, slots=True)
class Take:
    """Make this member the owner; answered by the lease, or None if it is not as it was seen."""

    seen: Lease

    @property
    def key(self) -> LeaseKey:
        """The key of the lease."""
        return self.seen.key


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew a lease, with a checkpoint or without; answered by the lease, or None if it is another's."""

    key: LeaseKey
    epoch: int
    beat: int
    """The number of this request: of two, the one with the higher was sent later, and the other does nothing then."""
    checkpoint: Checkpoint | None
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the owner of a lease for it; answered by whether the question stands."""

    seen: Lease

    @property
    def key(self) -> LeaseKey:
        """The key of the lease."""
        return self.seen.key


@dataclass(frozen=True, slots=True)
class Give:
    """Free a lease, for another member to take if `to` is one, with its last checkpoint (None: as it is).

    Answered by whether it was this member's.
    """

    key: LeaseKey
    epoch: int
    to: str | None
    checkpoint: Checkpoint | None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the lease of a shard that is gone; answered by whether it is gone."""

    seen: Lease

    @property
    def key(self) -> LeaseKey:
        """The key of the lease."""
        return self.seen.key


@dataclass(frozen=True, slots=True)
class Assigned:
    """A shard is to be read from the checkpoint of its lease on."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Drain:
    """A shard is to begin nothing new, to finish what it has begun, and to say so with `on_drained`."""

    key: LeaseKey
    why: Why
    deadline_ms: int | None
    """When the lease goes whether it has finished or not; None: it is waited for."""


@dataclass(frozen=True, slots=True)
class Restart:
    """The reader of a shard has fetched nothing for too long, and is to begin again where it is."""

    key: LeaseKey


@dataclass(frozen=True, slots=True)
class Revoked:
    """A shard is this member's no more: whatever runs there is to stop at once."""

    key: LeaseKey
    why: Why


Write = Create | Take | Ask | Delete
Request = Scan | ListShards | Create | Take | Renew | Ask | Give | Delete
News = Assigned | Drain | Restart | Revoked
Action = Request | News
Outcome = object
"""The answer of the store to a `Request`, or `UNKNOWN`."""
