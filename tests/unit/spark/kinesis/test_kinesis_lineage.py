"""The order of shards: parents first, each shard once, no shard left out."""

from __future__ import annotations

import random

import pytest

from headrace.core.lease.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint, at_timestamp
from headrace.core.lease.lease import HashRange
from headrace.errors import ConfigError
from headrace.kinesis.reading.shards import ShardInfo
from headrace.spark.kinesis.lineage import advanced, initial
from headrace.spark.kinesis.offsets import ShardPosition, Shards
from headrace.spark.kinesis.options import Starting

ANY = HashRange(0, 1)


def shard(name: str, *parents: str, closed: bool = False) -> ShardInfo:
    return ShardInfo(name, frozenset(parents), ANY, closed)


# a is split into b and c, which are merged to d.
TREE = [
    shard("a", closed=True),
    shard("b", "a", closed=True),
    shard("c", "a", closed=True),
    shard("d", "b", "c"),
    shard("z"),
]


def end(shards: Shards, *names: str) -> Shards:
    ended = dict.fromkeys(names, ShardPosition(SHARD_END))
    return Shards({**shards.active, **ended}, shards.waiting, shards.done)


def test_a_child_shard_is_read_after_all_its_parents() -> None:
    shards = initial(TREE, Starting(), 0)
    assert set(shards.active) == {"a", "z"}
    shards = advanced(end(shards, "a"), TREE)
    assert set(shards.active) == {"b", "c", "z"}
    shards = advanced(end(shards, "b"), TREE)
    assert set(shards.active) == {"c", "z"}
    shards = advanced(end(shards, "c"), TREE)
    assert set(shards.active) == {"d", "z"}
    assert shards.done == {"a", "b", "c"}


def test_latest_begins_at_the_open_shards_and_never_reads_their_parents() -> None:
    shards = initial(TREE, Starting(latest=True), 77)
    assert shards.active == {
        "d": ShardPosition(at_timestamp(77)),
        "z": ShardPosition(at_timestamp(77)),
    }
    assert shards.done == {"a", "b", "c"}
    later = advanced(end(shards, "d"), [*TREE, shard("e", "d")])
    assert later.active["e"] == ShardPosition(TRIM_HORIZON)


def test_a_start_time_applies_only_to_shards_that_existed_at_the_start() -> None:
    shards = initial(TREE, Starting(everywhere=at_timestamp(5)), 77)
    for names in ("a",), ("b", "c"):
        shards = advanced(end(shards, *names), TREE)
    assert shards.active["d"] == ShardPosition(at_timestamp(5))
    later = advanced(end(shards, "d"), [*TREE, shard("e", "d")])
    assert later.active["e"] == ShardPosition(TRIM_HORIZON)


def test_given_shard_positions_exclude_earlier_shards() -> None:
    starting = Starting(shards=(("b", Checkpoint("12")), ("c", SHARD_END)))
    shards = initial(TREE, starting, 0)
    assert shards.active == {"b": ShardPosition(Checkpoint("12")), "z": ShardPosition(TRIM_HORIZON)}
    with pytest.raises(ConfigError, match="names q; the stream has a, b, c, d, z"):
        initial(TREE, Starting(shards=(("q", Checkpoint("1")),)), 0)


def test_an_unlisted_parent_delays_its_children_only_while_it_is_read() -> None:
    listed = TREE[1:]
    assert set(initial(listed, Starting(), 0).active) == {"b", "c", "z"}
    reading = Shards({"a": ShardPosition(Checkpoint("3"))})
    assert set(advanced(reading, listed).active) == {"a", "z"}


def test_done_shards_are_remembered_while_kinesis_lists_them() -> None:
    shards = advanced(Shards({"a": ShardPosition(SHARD_END)}), TREE)
    assert "a" not in advanced(shards, TREE).active
    assert advanced(shards, TREE[1:]).done == frozenset()


def test_any_tree_of_splits_and_merges_is_read_once_and_in_order() -> None:
    for seed in range(60):
        chance = random.Random(seed)
        tree = [shard("s000"), shard("s001")]
        open_shards = ["s000", "s001"]
        shards = initial(tree, Starting(), 0)
        read: list[str] = []
        for _ in range(40):
            if len(tree) < 30:
                _reshard(chance, tree, open_shards)
            closed = {each.shard for each in tree} - set(open_shards)
            ready = [each for each in sorted(shards.active) if each in closed]
            chosen = [each for each in ready if chance.random() < 0.7]
            read += chosen
            shards = advanced(end(shards, *chosen), tree)
        for _ in tree:
            closed = {each.shard for each in tree} - set(open_shards)
            ready = [each for each in shards.active if each in closed]
            read += ready
            shards = advanced(end(shards, *ready), tree)
        assert sorted([*read, *shards.active]) == [each.shard for each in tree], seed
        order = {name: place for place, name in enumerate(read)}
        for each in tree:
            assert all(order[parent] < order.get(each.shard, 1000) for parent in each.parents), seed


def _reshard(chance: random.Random, tree: list[ShardInfo], open_shards: list[str]) -> None:
    count = len(tree)
    if len(open_shards) > 1 and chance.random() < 0.5:
        parents = chance.sample(open_shards, 2)
        children = [f"s{count:03d}"]
    else:
        parents = [chance.choice(open_shards)]
        children = [f"s{count:03d}", f"s{count + 1:03d}"]
    for parent in parents:
        open_shards.remove(parent)
    open_shards += children
    tree += [shard(child, *parents) for child in children]
