"""Which shards are read when: a shard that came of others after all of these. All here is pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint, at_timestamp
from headrace.errors import ConfigError
from headrace.kinesis.reading.shards import ShardInfo
from headrace.spark.kinesis.offsets import ShardPosition, Shards
from headrace.spark.kinesis.options import Starting


def initial(infos: Iterable[ShardInfo], starting: Starting, now_ms: int) -> Shards:
    """Return where a query begins that has no checkpoint.

    Args:
        infos: All shards there are.
        starting: What was asked for.
        now_ms: A time at or after which they were listed; `latest` becomes it.

    Raises:
        ConfigError: It names shards that there are not.
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
    """Put away shards that have ended, and take in those that are not known yet and whose parents are all done.

    A parent that Kinesis lists no more is done, unless it is still being read.
    """
    listed = {info.shard: info for info in infos}
    ended = {shard for shard, place in shards.active.items() if place.checkpoint.is_end}
    done = shards.done | ended
    active = {shard: place for shard, place in shards.active.items() if shard not in ended}
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
