"""The interface of a lease store. `core/lease` decides; a store only executes conditional writes."""

from __future__ import annotations

from typing import Protocol

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey


class LeaseStore(Protocol):
    """Rows that change only by compare-and-set. One store serves any number of groups and streams.

    Every method may be repeated after a lost response. The refusal of a condition is a result, never an exception: None
    or False. `LeaseStoreError` means that the outcome is unknown: the write may have been executed, or may still be.
    """

    async def open(self) -> None:
        """Connect, and create what is missing.

        Raises:
            ConfigError: The store cannot be used: access is denied, or a table has another schema.
            LeaseStoreError: The store does not answer.
        """

    async def close(self) -> None:
        """Close the connections of the store."""

    async def leases(self, group: str, stream: str) -> list[Lease]:
        """Return all leases of a group on a stream as they are now (a consistent read)."""

    async def streams(self) -> list[tuple[str, str]]:
        """Return every (group, stream) that has leases, sorted."""

    async def create(self, lease: Lease) -> bool:
        """Write a lease unless one with its key exists; return whether it was written.

        False may also mean that an earlier attempt, whose answer was lost, has written the lease.

        Raises:
            ConfigError: A name in the key is not allowed in rows.
        """

    async def take(self, seen: Lease, owner: str) -> Lease | None:
        """Make a member the owner if epoch and beat are as seen; return the lease, or None.

        The write sets the owner, increases epoch, beat and switches by one, and removes `next_owner`. A repetition
        after a lost response finds its own write (the owner, and epoch and beat one higher than seen). It then
        increases the beat again, because other members measure the lease from the first attempt and the owner from this
        one, and returns the row.
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
        """Write the beat, which numbers the owner's writes, if (owner, epoch) holds and the stored beat is lower.

        A checkpoint is written in the same write, with switches = 0. Return the row as it is then. The row is also
        returned if its beat was not lower: then this renewal was executed before, or is late; the beat shows which.
        None if (owner, epoch) does not hold.
        """

    async def ask(self, seen: Lease, asker: str) -> bool:
        """Write `next_owner` if the epoch is as seen and no other member asks already."""

    async def give(
        self,
        key: LeaseKey,
        owner: str,
        epoch: int,
        *,
        to: str | None,
        checkpoint: Checkpoint | None,
    ) -> bool:
        """Write at once the checkpoint (None: unchanged), epoch + 1, no owner, and `next_owner` = `to`.

        So the lease is free, and reserved for the next owner for a moment; `to` may be None. The write is conditional
        on (owner, epoch). A repetition finds epoch + 1 without an owner and with this next owner, and counts as done.
        """

    async def reset(self, seen: Lease, checkpoint: Checkpoint) -> Lease | None:
        """Write an administrator's checkpoint, epoch + 1, no owner and no `next_owner`, if epoch and beat are as seen.

        The caller finds out before whether an owner is alive. The new epoch fences an owner that is.
        """

    async def delete(self, seen: Lease) -> bool:
        """Remove a row if its epoch is as seen. Return True also if the row does not exist."""

    async def record_once(self, scope: str, name: str, value: str) -> str:
        """Write a value under a name unless it has one; return the stored value (for the rounds of Spark)."""

    async def recorded(self, scope: str) -> dict[str, str]:
        """Return all values of a scope by name."""

    async def forget(self, scope: str, names: list[str]) -> None:
        """Remove values. Missing ones are ignored."""
