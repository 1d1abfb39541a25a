"""The effect of each write on a row, as functions: for stores that read and write a row in one transaction.

None means that the condition of the write does not hold. DynamoDB has the same rules as condition expressions. One
suite tests both.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.errors import ConfigError

NAME_BYTES_LIMIT: Final = 512
"""The longest name of a group or scope, in bytes. With a stream's name it fits into a partition key of DynamoDB (2048
bytes)."""
_STREAM: Final = re.compile(r"[^#\x00-\x20\x7f]{1,300}")
_SHARD: Final = re.compile(r"[^\x00-\x20\x7f]{1,200}")


def check_key(key: LeaseKey) -> None:
    """Check that every store can hold the names in a key.

    Raises:
        ConfigError: A name is too long or contains a character that is not allowed.
    """
    check_name("group", key.group)
    if not _STREAM.fullmatch(key.stream):
        raise ConfigError(
            f"{key.stream!r} cannot name a stream of leases: use 1 to 300 characters without '#' and blanks"
        )
    if not _SHARD.fullmatch(key.shard):
        raise ConfigError(
            f"{key.shard!r} cannot name a shard of leases: use 1 to 200 characters without blanks"
        )


def check_name(what: str, name: str) -> None:
    """Check that every store can hold the name of a group or scope.

    Raises:
        ConfigError: The name is empty, too long or not printable.
    """
    if (
        not 0 < len(name.encode(errors="surrogatepass")) <= NAME_BYTES_LIMIT
        or not name.isprintable()
    ):
        raise ConfigError(
            f"{name!r} cannot name a {what}: use 1 to {NAME_BYTES_LIMIT} bytes of printable text"
        )


def taken(row: Lease, seen: Lease, owner: str) -> Lease | None:
    """Return the row with its new owner."""
    if (row.epoch, row.beat) == (seen.epoch, seen.beat):
        return replace(
            row,
            owner=owner,
            epoch=row.epoch + 1,
            beat=row.beat + 1,
            switches=row.switches + 1,
            next_owner=None,
        )
    if (row.owner, row.epoch, row.beat) == (owner, seen.epoch + 1, seen.beat + 1):
        # An earlier attempt, whose answer was lost, has written this. Other members measure the lease from that
        # attempt, and this owner from now, so the beat has to change again.
        return replace(row, beat=row.beat + 1)
    return None


def renewed(
    row: Lease,
    owner: str,
    epoch: int,
    beat: int,
    *,
    checkpoint: Checkpoint | None = None,
    bytes_per_s: float | None = None,
) -> Lease | None:
    """Return the row after a renewal; the unchanged row if a later renewal was written before."""
    if (row.owner, row.epoch) != (owner, epoch):
        return None
    if row.beat >= beat:
        return row
    row = replace(row, beat=beat)
    if bytes_per_s is not None:
        row = replace(row, bytes_per_s=bytes_per_s)
    return row if checkpoint is None else replace(row, checkpoint=checkpoint, switches=0)


def asked(row: Lease, seen: Lease, asker: str) -> Lease | None:
    """Return the row with the member that asks for the lease."""
    if row.epoch != seen.epoch or row.next_owner not in {None, asker}:
        return None
    return replace(row, next_owner=asker)


def given(
    row: Lease, owner: str, epoch: int, *, to: str | None, checkpoint: Checkpoint | None
) -> Lease | None:
    """Return the released row, reserved for the member `to` if there is one."""
    if (row.owner, row.next_owner, row.epoch) == (None, to, epoch + 1):
        return row
    if (row.owner, row.epoch) != (owner, epoch):
        return None
    return replace(
        row,
        checkpoint=checkpoint or row.checkpoint,
        owner=None,
        epoch=epoch + 1,
        next_owner=to,
        switches=row.switches if checkpoint is None else 0,
    )


def moved(row: Lease, seen: Lease, checkpoint: Checkpoint) -> Lease | None:
    """Return the row with an administrator's checkpoint and without an owner. The new epoch fences the old owner."""
    if is_moved(row, seen, checkpoint):
        return row
    if (row.epoch, row.beat) != (seen.epoch, seen.beat):
        return None
    return replace(
        row, checkpoint=checkpoint, owner=None, epoch=row.epoch + 1, next_owner=None, switches=0
    )


def is_moved(row: Lease, seen: Lease, checkpoint: Checkpoint) -> bool:
    """Return whether an earlier attempt, whose answer was lost, has already written the checkpoint."""
    return (row.owner, row.epoch, row.checkpoint) == (None, seen.epoch + 1, checkpoint)
