"""What administrators do with the leases of a group: see who lives, and have it go on elsewhere."""

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
    """Leases of a group on a stream, after they were watched for a while."""

    leases: list[Lease]
    alive: frozenset[str]
    """Owners that wrote something meanwhile."""


async def watched(
    store: LeaseStore, group: str, stream: str, *, wait_ms: int, until_one: bool = False
) -> Watched:
    """Watch leases until every owner gave a sign of life, or the time is over.

    Args:
        store: Where they are.
        group: Whose they are.
        stream: Of which stream, with its creation time.
        wait_ms: How long: an owner that wrote nothing for as long as its leases last has lost them.
        until_one: Whether one that lives is enough.

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
    """A lease, and where it is to go on."""

    key: LeaseKey
    seen: Lease | None
    """None: the shard has no lease yet, and gets one."""
    lease: Lease
    """As it is to be."""


async def apply(store: LeaseStore, moves: Sequence[Move]) -> list[Move]:
    """Write moves, and return those that failed: somebody else has written there meanwhile.

    Shards that came from others first: who finds the lease of a parent without its child's takes the child for one
    that is younger than the group, and reads it from its beginning.

    Raises:
        LeaseStoreError: The store does not answer; some of them may be written.
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
    # One that was written by an attempt whose answer was lost is refused to the next attempt.
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
    """Return what a reset does: a move for each shard that the stream has, oldest first.

    Args:
        group: Whose leases they are.
        stream: Of which stream, with its creation time.
        leases: As they are.
        listed: The shards; leases of others have no records any more and stay as they are.
        to: Where to go on.
        keep_ended: Whether shards that were read to their end stay so.
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
