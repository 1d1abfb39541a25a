"""Lease tables of the Kinesis Client Library (1 to 3), read once to go on where its application stopped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headrace.core.lease.actions import ListedShard
from headrace.core.lease.checkpoint import (
    SHARD_END,
    TRIM_HORIZON,
    Checkpoint,
    at_timestamp,
    parse_checkpoint,
)
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.errors import ConfigError, LeaseStoreError
from headrace.kinesis.client.errors import FailureKind, failure_kind
from headrace.kinesis.leases.dynamodb_calls import DynamoCalls, as_configuration

_KEY: Final = "leaseKey"
_OF_LEASES: Final = "LEASE"
"""The entityType of leases in the one table of KCL 3.5; before, rows have none."""
_MULTI_STREAM: Final = re.compile(
    r"(?P<account>\d+):(?P<stream>[^:]+):(?P<created>\d+):(?P<shard>[^:]+)"
)


@dataclass(frozen=True, slots=True)
class KclLease:
    """A row, as far as it matters here."""

    stream: str | None
    """`name:creation` of applications that read several streams; None where the table is of one."""
    shard: str
    checkpoint: str
    sub_sequence: int | None
    owner: str | None
    counter: int
    parents: frozenset[str]


async def read_table(calls: DynamoCalls) -> list[KclLease]:
    """Return all leases of a table; a consistent read. Nothing is written.

    Raises:
        ConfigError: It is missing, not allowed, or no lease table.
        LeaseStoreError: DynamoDB does not answer.
    """
    try:
        description = (await calls.call("describe_table"))["Table"]
    except LeaseStoreError as error:
        if error.__cause__ is not None and failure_kind(error.__cause__) is FailureKind.MISSING:
            raise ConfigError(
                f"there is no table {calls.table}: it has the name of the application of the Kinesis Client Library; "
                "check region and credentials"
            ) from error
        raise as_configuration(error) from error
    if [each["AttributeName"] for each in description["KeySchema"]] != [_KEY]:
        raise ConfigError(
            f"the table {calls.table} is no lease table of the Kinesis Client Library: its key is not {_KEY}; the "
            "table's name is the application's"
        )
    items = [item async for item in calls.pages("scan", ConsistentRead=True)]
    return [lease for lease in map(_lease, items) if lease is not None]


def _lease(item: Mapping[str, Any]) -> KclLease | None:
    if item.get("entityType", {}).get("S", _OF_LEASES) != _OF_LEASES:
        return None  # of its leader, its workers, its streams
    key = item[_KEY]["S"]
    several = _MULTI_STREAM.fullmatch(key)
    sub = item.get("checkpointSubSequenceNumber", {}).get("N")
    checkpoint = item.get("checkpoint", {}).get("S")
    if checkpoint is None:
        raise ConfigError(f"the row {key!r} has no checkpoint: is this a lease table?")
    return KclLease(
        stream=f"{several['stream']}:{several['created']}" if several else None,
        shard=several["shard"] if several else key,
        checkpoint=checkpoint,
        sub_sequence=None if sub is None else int(sub),
        owner=item.get("leaseOwner", {}).get("S"),
        counter=int(item.get("leaseCounter", {}).get("N", 0)),
        parents=frozenset(item.get("parentShardId", {}).get("SS", ())),
    )


def of_stream(leases: Sequence[KclLease], stream: str, created_s: int) -> list[KclLease]:
    """Return the leases of one stream.

    Args:
        leases: All of the table.
        stream: The stream's name.
        created_s: When it was created, since 1970; applications may give anything else for it, if only one thing.

    Raises:
        ConfigError: There are none, or of several streams of the name.
    """
    if all(lease.stream is None for lease in leases):
        return list(leases)
    named = [
        lease for lease in leases if lease.stream and lease.stream.rpartition(":")[0] == stream
    ]
    names = sorted({lease.stream for lease in named if lease.stream})
    wanted = f"{stream}:{created_s}"
    if not names:
        others = sorted({lease.stream.rpartition(":")[0] for lease in leases if lease.stream})
        raise ConfigError(
            f"the table has no leases of the stream {stream}, but of {', '.join(others)}"
        )
    if len(names) > 1 and wanted not in names:
        raise ConfigError(f"the table has leases of {', '.join(names)}, and none is of {wanted}")
    chosen = wanted if wanted in names else names[0]
    return [lease for lease in named if lease.stream == chosen]


def renewed(before: Iterable[KclLease], after: Iterable[KclLease]) -> list[str]:
    """Return the owners that renewed something meanwhile, or took it: the application runs."""
    counters = {(lease.stream, lease.shard): lease.counter for lease in before}
    return sorted(
        {
            lease.owner
            for lease in after
            if lease.owner and counters.get((lease.stream, lease.shard)) != lease.counter
        }
    )


def converted(
    group: str,
    stream: str,
    leases: Sequence[KclLease],
    listed: Sequence[ListedShard],
    *,
    now_ms: int,
    at_timestamp_ms: int | None = None,
) -> list[Lease]:
    """Return the leases with which a group goes on: one for each shard that the stream has, oldest first.

    The library deletes leases of shards that are finished when those of their children are under way, and creates the
    children's late. So a shard without a lease is finished if one that came from it has one, and else it was not begun.

    Args:
        group: Whose leases they will be.
        stream: As our leases name it, with its creation time.
        leases: The library's, of this stream.
        listed: The shards of the stream; leases of others are left out, there is nothing to read.
        now_ms: The time, since 1970: where LATEST is from now on.
        at_timestamp_ms: What AT_TIMESTAMP means; the table does not say.

    Raises:
        ConfigError: A checkpoint cannot be understood.
    """
    known = {lease.shard: lease for lease in leases}
    parents = {info.shard: info.parents for info in listed}
    finished: set[str] = set()
    waiting = [parent for shard in known for parent in parents.get(shard, ())]
    while waiting:
        shard = waiting.pop()
        if shard not in finished:
            finished.add(shard)
            waiting.extend(parents.get(shard, ()))
    found = []
    for info in sorted(listed, key=lambda each: each.shard):
        lease = known.get(info.shard)
        if lease is not None:
            checkpoint = _checkpoint(lease, now_ms, at_timestamp_ms)
        else:
            checkpoint = SHARD_END if info.shard in finished else TRIM_HORIZON
        key = LeaseKey(group, stream, info.shard)
        found.append(
            Lease(key=key, checkpoint=checkpoint, parents=info.parents, hash_range=info.hash_range)
        )
    return found


def _checkpoint(lease: KclLease, now_ms: int, at_timestamp_ms: int | None) -> Checkpoint:
    if lease.checkpoint == "LATEST":
        return at_timestamp(now_ms)
    if lease.checkpoint == "AT_TIMESTAMP":
        if at_timestamp_ms is None:
            raise ConfigError(
                f"{lease.shard} has not been read yet and begins at a time that is in the application's configuration, "
                "not in its table: say which"
            )
        return at_timestamp(at_timestamp_ms)
    try:
        return parse_checkpoint(lease.checkpoint, lease.sub_sequence)
    except ConfigError as error:
        raise ConfigError(f"the checkpoint of {lease.shard} is not understood: {error}") from error
