"""Checkpoints and shards in the form of Kinesis' requests and replies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import HashRange
from headrace.kinesis.client.get_records import ChildShard
from headrace.kinesis.reading.shards import ShardInfo

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def iterator_arguments(position: Checkpoint) -> dict[str, Any]:
    """Return the arguments of GetShardIterator for reading behind a checkpoint."""
    kind, place = _place(position)
    if kind.endswith("SEQUENCE_NUMBER"):
        return {"ShardIteratorType": kind, "StartingSequenceNumber": place}
    return {"ShardIteratorType": kind, **({"Timestamp": place} if place else {})}


def starting_position(position: Checkpoint) -> dict[str, Any]:
    """Return the argument of SubscribeToShard for reading behind a checkpoint."""
    kind, place = _place(position)
    if kind.endswith("SEQUENCE_NUMBER"):
        return {"Type": kind, "SequenceNumber": place}
    return {"Type": kind, **({"Timestamp": place} if place else {})}


def _place(position: Checkpoint) -> tuple[str, str | datetime | None]:
    if position.timestamp_ms is not None:
        return "AT_TIMESTAMP", _EPOCH + timedelta(milliseconds=position.timestamp_ms)
    if not position.is_sequence_number:
        return position.position, None
    # An aggregate that is finished in part has to be read again for its remaining user records.
    at_or_after = "AFTER" if position.sub_sequence is None else "AT"
    return f"{at_or_after}_SEQUENCE_NUMBER", position.position


def child_info(child: ChildShard) -> ShardInfo:
    """Return the description of a child of a closed shard."""
    keys = child.hash_key_range
    return ShardInfo(
        shard=child.shard_id,
        parents=frozenset(child.parent_shards),
        hash_range=HashRange(int(keys.starting_hash_key), int(keys.ending_hash_key)),
        closed=False,
    )
