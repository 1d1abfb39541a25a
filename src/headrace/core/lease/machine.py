"""A member of a group that shares the shards of streams by leases: every rule, and no clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace.core.lease.actions import Action, ListedShard, Outcome, Request
from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.core.lease.settings import LeaseSettings
from headrace.ports import Chance


class LeaseCore:
    """One member.

    Every method is told the time, milliseconds of a clock that never goes back (its zero does not matter), and
    returns what is to be done now. `tick` is to be called at `next_deadline_ms`.
    """

    def __init__(
        self,
        group: str,
        streams: Sequence[str],
        owner: str,
        settings: LeaseSettings,
        chance: Chance,
    ) -> None:
        """Take who this is, and what it reads; nothing happens before the first `tick`.

        Args:
            group: The group.
            streams: Streams, as `<name>@<creation time>`.
            owner: A name that no other member has, nor this one had before it was started again.
            settings: The settings of the group.
            chance: Where randomness comes from.
        """
        raise NotImplementedError

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None before the first one and after the end."""
        raise NotImplementedError

    @property
    def held(self) -> Iterable[Lease]:
        """The leases that are held, as they were last seen."""
        raise NotImplementedError

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called and nothing is left to do."""
        raise NotImplementedError

    def tick(self, now_ms: int) -> list[Action]:
        """Do what is due."""
        raise NotImplementedError

    def on_reply(
        self, request: Request, sent_ms: int, now_ms: int, outcome: Outcome, wall_ms: int
    ) -> list[Action]:
        """Take the answer of a request that was sent.

        Args:
            request: The request.
            sent_ms: The time before it was sent.
            now_ms: The time.
            outcome: The answer, or `UNKNOWN`.
            wall_ms: Milliseconds since 1970, for a group that begins at LATEST; nothing else is decided by it.
        """
        raise NotImplementedError

    def advance(self, key: LeaseKey, checkpoint: Checkpoint, now_ms: int) -> list[Action]:
        """Take how far a shard is finished: all before it is, too. What is behind an earlier call does nothing."""
        raise NotImplementedError

    def written(self, key: LeaseKey) -> Checkpoint | None:
        """Return the last checkpoint of a held lease that is known to be stored."""
        raise NotImplementedError

    def progressed(self, key: LeaseKey, now_ms: int, size_bytes: int = 0) -> list[Action]:
        """Take note of a completed fetch; also to be called while fetching waits on purpose."""
        raise NotImplementedError

    def on_drained(
        self, key: LeaseKey, now_ms: int, checkpoint: Checkpoint | None = None
    ) -> list[Action]:
        """Take that a shard has finished what it had begun, after `Drain`, and how far it is."""
        raise NotImplementedError

    def on_ended(self, key: LeaseKey, children: Sequence[ListedShard], now_ms: int) -> list[Action]:
        """Take that the last record of a closed shard is finished.

        Args:
            key: The shard.
            children: Those that follow it, as far as they are known.
            now_ms: The time.
        """
        raise NotImplementedError

    def valid(self, key: LeaseKey, now_ms: int) -> bool:
        """Whether a record of a shard may be handled now."""
        raise NotImplementedError

    def close(self, now_ms: int) -> list[Action]:
        """Drain all shards and give them away; it is over when `is_closed`."""
        raise NotImplementedError
