"""A member of a group, on an event loop: it does what `LeaseCore` decides, and decides nothing."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from headrace.core.lease.actions import ListedShard, Why
from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.core.lease.settings import LeaseSettings
from headrace.errors import HeadraceError
from headrace.kinesis.leases.store import LeaseStore
from headrace.ports import Chance


class Lister(Protocol):
    """Where a member learns of the shards of a stream."""

    async def list_shards(self) -> Sequence[ListedShard]:
        """Return every shard that still has records."""


class Listener(Protocol):
    """Who reads the shards. Calls for one shard come one after another, for several at once."""

    async def assigned(self, lease: Lease) -> None:
        """Begin to read a shard, behind the checkpoint of its lease."""

    async def drain(self, key: LeaseKey, why: Why, deadline_ms: int | None) -> None:
        """Begin nothing new in a shard; call `Member.drained` when what was begun is finished.

        Args:
            key: The shard.
            why: Why it goes.
            deadline_ms: When it goes in any case, by the member's clock; None: it is waited for.
        """

    async def restart(self, key: LeaseKey) -> None:
        """Restart the reader of a shard, which has fetched nothing for too long."""

    async def revoked(self, key: LeaseKey, why: Why) -> None:
        """Stop whatever still runs in a shard."""

    async def failed(self, error: HeadraceError) -> None:
        """Take what makes it pointless to go on: access was taken away, the stream was deleted."""


def monotonic_ms() -> int:
    """Return milliseconds of a clock that never goes back."""
    return time.monotonic_ns() // 1_000_000


def wall_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class Member:
    """One member of a group, on one or several streams."""

    def __init__(
        self,
        store: LeaseStore,
        group: str,
        streams: Mapping[str, Lister],
        listener: Listener,
        settings: LeaseSettings | None = None,
        *,
        clock: Callable[[], int] = monotonic_ms,
        wall_clock: Callable[[], int] = wall_ms,
        chance: Chance | None = None,
    ) -> None:
        """Take what it needs; nothing is sent yet.

        Args:
            store: Where leases are; opened and closed by who made it.
            group: The group.
            streams: By stream (`<name>@<creation time>`), who lists its shards.
            listener: Who is told of shards.
            settings: How long leases last, and where the group begins.
            clock: Milliseconds that never go back.
            wall_clock: Milliseconds since 1970, for a group that begins at LATEST.
            chance: Where randomness comes from.
        """
        self.owner = uuid.uuid4().hex
        """The name of this member: no other has it, nor will this one when it is started again."""
        self._chance = chance or random.Random()  # noqa: S311 - it spreads scans, and guards nothing
        raise NotImplementedError

    @property
    def held(self) -> list[Lease]:
        """The leases that this member holds, as they were last seen."""
        raise NotImplementedError

    async def start(self) -> None:
        """Begin to share the shards."""
        raise NotImplementedError

    def advance(self, key: LeaseKey, checkpoint: Checkpoint) -> None:
        """Take how far a shard is finished, with all before it; it is written within a second or so."""
        raise NotImplementedError

    async def checkpoint(self, key: LeaseKey, checkpoint: Checkpoint) -> None:
        """As `advance`, and wait until it is written.

        Raises:
            LeaseLostError: The lease is not this member's (any more).
        """
        raise NotImplementedError

    def progressed(self, key: LeaseKey, size_bytes: int = 0) -> None:
        """Take note of a completed fetch; also to be called while fetching waits on purpose."""
        raise NotImplementedError

    def valid(self, key: LeaseKey) -> bool:
        """Whether a record of a shard may be handled now; to be asked before each."""
        raise NotImplementedError

    def drained(self, key: LeaseKey, checkpoint: Checkpoint | None = None) -> None:
        """Take that a shard has finished what it had begun, and how far it is; after `Listener.drain`."""
        raise NotImplementedError

    def ended(self, key: LeaseKey, children: Sequence[ListedShard] = ()) -> None:
        """Take that the last record of a closed shard is finished, and which shards follow it."""
        raise NotImplementedError

    async def close(self) -> None:
        """Drain all shards, give them away with their last checkpoints, and end; within `drain_timeout_ms`."""
        raise NotImplementedError
