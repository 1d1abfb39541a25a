"""What a store of leases does. Its rules are `core/lease`'s; a store only writes what it is told, conditionally."""

from __future__ import annotations

from typing import Protocol

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey


class LeaseStore(Protocol):
    """Rows that change only by compare-and-set. One store serves any number of groups and streams.

    Every method may be repeated after a lost answer. A refused condition is a result, never an exception: None or
    False. `LeaseStoreError` means that the outcome is not known: the write may have happened, or may happen yet.
    """

    async def open(self) -> None:
        """Connect, and create what is missing.

        Raises:
            ConfigError: What is there cannot be used: no access, a table of another shape.
            LeaseStoreError: It cannot be reached.
        """

    async def close(self) -> None:
        """Let go of connections."""

    async def leases(self, group: str, stream: str) -> list[Lease]:
        """Return all leases of a group on a stream, as they are now (a consistent read)."""

    async def streams(self) -> list[tuple[str, str]]:
        """Return every (group, stream) that has leases, sorted."""

    async def create(self, lease: Lease) -> bool:
        """Write a lease unless there is one with its key; return whether it was written.

        False may also mean that an earlier attempt, whose answer was lost, has written it.

        Raises:
            ConfigError: A name in the key is one that rows cannot have.
        """

    async def take(self, seen: Lease, owner: str) -> Lease | None:
        """Make somebody the owner, if epoch and beat are as they were seen.

        Writes owner, epoch + 1, beat + 1, switches + 1 and removes `next_owner`. A repetition after a lost answer
        finds the row already written by itself (owner, epoch and beat one more than seen), raises the beat once more
        (others count from the first attempt, the owner from this one) and returns it.
        """

    async def renew(
        self,
        key: LeaseKey,
        owner: str,
        epoch: int,
        beat: int,
        *,
        checkpoint: Checkpoint | None = None,
        bytes_per_s: float | None = None,
    ) -> Lease | None:
        """Write the beat, which numbers the owner's writes, if (owner, epoch) holds and the row's is lower.

        With a checkpoint write that, too, and switches = 0. Return the row as it is then; also where its beat was not
        lower, as this renewal was written before, or is late: which of the two the beat says. None if (owner, epoch)
        does not hold.
        """

    async def ask(self, seen: Lease, asker: str) -> bool:
        """Write `next_owner` if the epoch is as seen and nobody asks yet (or this asker does already)."""

    async def give(
        self,
        key: LeaseKey,
        owner: str,
        epoch: int,
        *,
        to: str | None,
        checkpoint: Checkpoint | None,
    ) -> bool:
        """Write checkpoint (None: leave it), epoch + 1, no owner, and `next_owner` = `to` (None: nobody): all in one.

        So it is free, and left to the next owner for a moment. Conditional on (owner, epoch); a repetition finds
        epoch + 1 without an owner and with that next one, and counts as done.
        """

    async def reset(self, seen: Lease, checkpoint: Checkpoint) -> Lease | None:
        """Write an administrator's checkpoint, epoch + 1, no owner and no `next_owner`, if epoch and beat are as seen.

        Whether an owner lives is for the caller to find out before; one that does is shut out by the epoch.
        """

    async def delete(self, seen: Lease) -> bool:
        """Remove a row if its epoch is as seen; True also if it is gone."""

    async def record_once(self, scope: str, name: str, value: str) -> str:
        """Write a value under a name unless there is one; return the one that is there now (Spark's ends of rounds)."""

    async def recorded(self, scope: str) -> dict[str, str]:
        """Return all values of a scope by name."""

    async def forget(self, scope: str, names: list[str]) -> None:
        """Remove values; those that are gone already do not matter."""
