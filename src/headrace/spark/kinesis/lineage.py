"""The order of shards: a child shard is read after all its parents. All functions are pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint, at_timestamp
from headrace.errors import ConfigError
from headrace.kinesis.reading.shards import ShardInfo
from headrace.spark.kinesis.offsets import ShardPosition, Shards
from headrace.spark.kinesis.options import Starting


def initial(infos: Iterable[ShardInfo], starting: Starting, now_ms: int) -> Shards:
    """Return the shards at the start of a query without checkpoint.

    Args:
        infos: All shards of the stream.
        starting: The starting position of the options.
        now_ms: The present time in milliseconds since 1970, the position for `latest`.

    Raises:
        ConfigError: The starting position names unknown shards.
    """
    listed = {info.shard: info for info in infos}
    if starting.latest:
        now = at_timestamp(now_ms)
        closed = frozenset(shard for shard, info in listed.items() if info.closed)
        return advanced(Shards(waiting=dict.fromkeys(listed, now), done=closed), listed.values())
    if starting.everywhere is not None:
        return advanced(Shards(waiting=dict.fromkeys(listed, starting.everywhere)), listed.values())
    given = dict(starting.shards)
    unknown = sorted(given.keys() - listed.keys())
    if unknown:
        raise ConfigError(
            f"option startingPosition names {', '.join(unknown)}; the stream has {', '.join(listed)}"
        )
    ended = {shard for shard, checkpoint in given.items() if checkpoint.is_end}
    done = frozenset(ended | _ancestors(given, listed))
    waiting = {shard: each for shard, each in given.items() if shard not in done}
    return advanced(Shards(waiting=waiting, done=done), listed.values())


def advanced(shards: Shards, infos: Iterable[ShardInfo]) -> Shards:
    """Remove shards that were read to their end, and add new shards whose parents are all done.

    A parent that Kinesis does not list any more counts as done, unless it is still active.
    """
    listed = {info.shard: info for info in infos}
    ended = {shard for shard, position in shards.active.items() if position.checkpoint.is_end}
    done = shards.done | ended
    active = {shard: position for shard, position in shards.active.items() if shard not in ended}
    waiting: dict[str, Checkpoint] = {}
    for shard, info in listed.items():
        if shard in done or shard in shards.active:
            continue
        if all(parent in done for parent in info.parents if parent in listed or parent in active):
            active[shard] = ShardPosition(shards.waiting.get(shard, TRIM_HORIZON))
        elif shard in shards.waiting:
            waiting[shard] = shards.waiting[shard]
    return Shards(active, waiting, done & listed.keys())


def _ancestors(shards: Iterable[str], listed: Mapping[str, ShardInfo]) -> set[str]:
    found: set[str] = set()
    left = list(shards)
    while left:
        info = listed.get(left.pop())
        parents = info.parents - found if info is not None else frozenset()
        found |= parents
        left += parents
    return found
