"""Lease tables of the Kinesis Client Library (1 to 3), from which a group takes over the checkpoints once."""

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
"""The `entityType` of leases in the single table of KCL 3.5. Rows of earlier versions have no such attribute."""
_MULTI_STREAM: Final = re.compile(
    r"(?P<account>\d+):(?P<stream>[^:]+):(?P<created>\d+):(?P<shard>[^:]+)"
)


@dataclass(frozen=True, slots=True)
class KclLease:
    """A row of a lease table, with the attributes that matter here."""

    stream: str | None
    """`name:creation` if the application reads several streams; None if the table is of one stream."""
    shard: str
    checkpoint: str
    sub_sequence: int | None
    owner: str | None
    counter: int
    parents: frozenset[str]


async def read_table(calls: DynamoCalls) -> list[KclLease]:
    """Return all leases of a table, by a consistent read. Nothing is written.

    Raises:
        ConfigError: The table is missing, access is denied, or it is not a lease table.
        LeaseStoreError: DynamoDB does not answer.
    """
    try:
        description = (await calls.call("describe_table"))["Table"]
    except LeaseStoreError as error:
        if error.__cause__ is not None and failure_kind(error.__cause__) is FailureKind.MISSING:
            raise ConfigError(
                f"there is no table {calls.table}. The table has the name of the application of the Kinesis Client "
                "Library. Check the name, region and credentials"
            ) from error
        raise as_configuration(error) from error
    if [each["AttributeName"] for each in description["KeySchema"]] != [_KEY]:
        raise ConfigError(
            f"the table {calls.table} is not a lease table of the Kinesis Client Library: its key is not {_KEY}. The "
            "table has the name of the application"
        )
    items = [item async for item in calls.pages("scan", ConsistentRead=True)]
    return [lease for lease in map(_lease, items) if lease is not None]


def _lease(item: Mapping[str, Any]) -> KclLease | None:
    if item.get("entityType", {}).get("S", _OF_LEASES) != _OF_LEASES:
        return None  # a row about the leader, a worker or a stream
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
        leases: All leases of the table.
        stream: The stream's name.
        created_s: The stream's creation time, in seconds since 1970. If all leases have one other time, this time is
            accepted.

    Raises:
        ConfigError: There are no leases of the stream, or leases of several streams with this name.
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
            f"the table has no leases of the stream {stream}. It has leases of {', '.join(others)}"
        )
    if len(names) > 1 and wanted not in names:
        raise ConfigError(f"the table has leases of {', '.join(names)}, but none of {wanted}")
    chosen = wanted if wanted in names else names[0]
    return [lease for lease in named if lease.stream == chosen]


def renewed(before: Iterable[KclLease], after: Iterable[KclLease]) -> list[str]:
    """Return the owners that took or renewed a lease meanwhile: the application is running."""
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
    """Return the leases with which a group continues: one for each shard of the stream, oldest first.

    The library deletes the lease of a finished shard when the leases of its children are in progress, and creates the
    leases of children late. So a shard without a lease is finished if one of its descendants has a lease; otherwise it
    was not begun.

    Args:
        group: The group's name.
        stream: The stream's name in Headrace's leases, with its creation time.
        leases: The library's leases of this stream.
        listed: The shards of the stream. Leases of other shards are ignored: they have no records.
        now_ms: The time in milliseconds since 1970. It replaces the checkpoint LATEST.
        at_timestamp_ms: The time of the checkpoint AT_TIMESTAMP, which the table does not contain.

    Raises:
        ConfigError: A checkpoint has an unknown form.
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
                f"{lease.shard} has not been read yet. It begins at a time that is in the application's configuration, "
                "not in its table. Pass this time"
            )
        return at_timestamp(at_timestamp_ms)
    try:
        return parse_checkpoint(lease.checkpoint, lease.sub_sequence)
    except ConfigError as error:
        raise ConfigError(
            f"the checkpoint of {lease.shard} has an unknown form: {error}"
        ) from error
