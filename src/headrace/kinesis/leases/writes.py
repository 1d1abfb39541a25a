"""What each write makes of a row, as functions: for stores that read and write a row in one step of their own.

None stands for a refused condition. DynamoDB has the same rules as condition expressions; one suite tests both.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.errors import ConfigError

NAME_BYTES_LIMIT: Final = 512
"""Of a group or a scope; with a stream's name a partition key of DynamoDB (2048 bytes) holds it."""
_STREAM: Final = re.compile(r"[^#\x00-\x20\x7f]{1,300}")
_SHARD: Final = re.compile(r"[^\x00-\x20\x7f]{1,200}")


def check_key(key: LeaseKey) -> None:
    """Refuse names that some store cannot hold.

    Raises:
        ConfigError: It says which name, and why.
    """
    check_name("group", key.group)
    if not _STREAM.fullmatch(key.stream):
        raise ConfigError(
            f"{key.stream!r} cannot name a stream of leases: 1 to 300 characters without '#' and blanks"
        )
    if not _SHARD.fullmatch(key.shard):
        raise ConfigError(
            f"{key.shard!r} cannot name a shard of leases: 1 to 200 characters without blanks"
        )


def check_name(what: str, name: str) -> None:
    """Refuse the name of a group or scope that some store cannot hold.

    Raises:
        ConfigError: It says why.
    """
    if (
        not 0 < len(name.encode(errors="surrogatepass")) <= NAME_BYTES_LIMIT
        or not name.isprintable()
    ):
        raise ConfigError(
            f"{name!r} cannot name a {what}: 1 to {NAME_BYTES_LIMIT} bytes of printable text are wanted"
        )


def taken(row: Lease, seen: Lease, owner: str) -> Lease | None:
    """Return the row as its new owner has it."""
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
        # Written before, by an attempt whose answer was lost: a new beat, since others count from the first one.
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
    """Return the row after a renewal; as it is where a later one was written before."""
    if (row.owner, row.epoch) != (owner, epoch):
        return None
    if row.beat >= beat:
        return row
    row = replace(row, beat=beat)
    if bytes_per_s is not None:
        row = replace(row, bytes_per_s=bytes_per_s)
    return row if checkpoint is None else replace(row, checkpoint=checkpoint, switches=0)


def asked(row: Lease, seen: Lease, asker: str) -> Lease | None:
    """Return the row with somebody who asks for it."""
    if row.epoch != seen.epoch or row.next_owner not in {None, asker}:
        return None
    return replace(row, next_owner=asker)


def given(
    row: Lease, owner: str, epoch: int, *, to: str | None, checkpoint: Checkpoint | None
) -> Lease | None:
    """Return the row when it is free, for somebody to take if `to` is one."""
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
    """Return the row with an administrator's checkpoint, and free: whoever had it is shut out by the epoch."""
    if is_moved(row, seen, checkpoint):
        return row
    if (row.epoch, row.beat) != (seen.epoch, seen.beat):
        return None
    return replace(
        row, checkpoint=checkpoint, owner=None, epoch=row.epoch + 1, next_owner=None, switches=0
    )


def is_moved(row: Lease, seen: Lease, checkpoint: Checkpoint) -> bool:
    """Return whether the write was made before, by an attempt whose answer was lost."""
    return (row.owner, row.epoch, row.checkpoint) == (None, seen.epoch + 1, checkpoint)
