"""Administration of a group's leases: find out which owners are alive, and reset checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace.core.lease.actions import ListedShard
from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.kinesis.leases.store import LeaseStore

_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Watched:
    """The leases of a group on a stream after an observation."""

    leases: list[Lease]
    alive: frozenset[str]
    """The owners that wrote something during the observation."""


async def watched(
    store: LeaseStore, group: str, stream: str, *, wait_ms: int, until_one: bool = False
) -> Watched:
    """Observe leases until every owner has written something, or the time has passed.

    Args:
        store: The lease store.
        group: The group's name.
        stream: The stream, with its creation time.
        wait_ms: The longest observation in milliseconds. An owner that writes nothing for its lease time has lost its
            leases.
        until_one: Whether one owner that is alive ends the observation.

    Raises:
        LeaseStoreError: The store does not answer.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + wait_ms / 1000
    first = {lease.key: lease for lease in await store.leases(group, stream)}
    leases, alive = list(first.values()), frozenset[str]()
    while True:
        owners = {lease.owner for lease in leases if lease.owner is not None}
        left_s = deadline_s - loop.time()
        if alive >= owners or (alive and until_one) or left_s <= 0:
            return Watched(leases, alive)
        await asyncio.sleep(min(_LOOK_S, left_s))
        leases = await store.leases(group, stream)
        alive |= {lease.owner for lease in leases if lease.owner and _stirred(lease, first)}


def _stirred(lease: Lease, first: dict[LeaseKey, Lease]) -> bool:
    before = first.get(lease.key)
    return before is None or (before.epoch, before.beat) != (lease.epoch, lease.beat)


@dataclass(frozen=True, slots=True)
class Move:
    """The new checkpoint of a lease."""

    key: LeaseKey
    seen: Lease | None
    """The lease before the move. None: the shard has no lease yet."""
    lease: Lease
    """The lease after the move."""


async def apply(store: LeaseStore, moves: Sequence[Move]) -> list[Move]:
    """Write moves, and return those that failed because another process has written the lease meanwhile.

    Child shards are written first. If a member finds the lease of a parent without the lease of a child, it takes the
    child for a new one. It then reads the child from its first record.

    Raises:
        LeaseStoreError: The store does not answer. Some moves may be written.
    """
    failed = []
    for move in sorted(moves, key=lambda each: each.key.shard, reverse=True):
        if move.seen is None:
            done = await store.create(move.lease)
        else:
            done = await store.reset(move.seen, move.lease.checkpoint) is not None
        if not done:
            failed.append(move)
    if not failed:
        return []
    # If the response to an attempt was lost, the next attempt is refused although the lease was written.
    key = failed[0].key
    written = {lease.key: lease for lease in await store.leases(key.group, key.stream)}
    return [move for move in failed if written.get(move.key) != move.lease]


def moves(
    group: str,
    stream: str,
    leases: Sequence[Lease],
    listed: Sequence[ListedShard],
    to: Checkpoint,
    *,
    keep_ended: bool,
) -> list[Move]:
    """Return the moves of a reset: one for each shard of the stream, oldest first.

    Args:
        group: The group's name.
        stream: The stream, with its creation time.
        leases: The present leases.
        listed: The shards of the stream. Leases of other shards have no records any more and stay unchanged.
        to: The new checkpoint.
        keep_ended: Whether shards that were read to their end are left out.
    """
    seen = {lease.key.shard: lease for lease in leases}
    found = []
    for info in sorted(listed, key=lambda each: each.shard):
        key = LeaseKey(group, stream, info.shard)
        before = seen.get(info.shard)
        if keep_ended and before is not None and before.checkpoint.is_end:
            continue
        after = Lease(key=key, checkpoint=to, parents=info.parents, hash_range=info.hash_range)
        found.append(Move(key, before, after))
    return found
