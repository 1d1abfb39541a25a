"""A reader that follows the children of shards reads every record of the fake once, through any resharding."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import get_args

import pytest

from headrace.testing.kinesis import AwsError, FakeKinesis, Limits
from headrace.testing.kinesis.account import ShardEnd
from tests.unit.testing.kinesis.asking import FIRST, datas, fake, get, iterator


def change(kinesis: FakeKinesis, entropy: random.Random) -> None:
    """Split, merge or scale, if this is possible now."""
    shards = [shard.name for shard in kinesis.shards("orders", only_open=True)]
    at = entropy.randrange(len(shards))
    try:
        match entropy.choice(["split", "merge", "scale"]):
            case "split" if len(shards) < 6:
                kinesis.split("orders", shards[at])
            case "merge" if at:
                kinesis.merge("orders", shards[at - 1], shards[at])
            case _:
                kinesis.reshard("orders", entropy.randint((len(shards) + 1) // 2, len(shards) + 1))
    except AwsError as refused:
        if refused.kind not in {"ResourceInUseException", "LimitExceededException"}:
            raise


class Reader:
    """A reader of all known shards. It reads a child after both of its parents have ended."""

    def __init__(self, kinesis: FakeKinesis) -> None:
        self.kinesis = kinesis
        self.tokens = {FIRST: iterator(kinesis)}
        self.ended: set[str] = set()
        self.seen: list[bytes] = []

    def step(self, entropy: random.Random) -> None:
        if not self.tokens:
            return
        shard = entropy.choice(sorted(self.tokens))
        reply = get(self.kinesis, self.tokens.pop(shard), Limit=entropy.choice([1, 3, 10_000]))
        self.seen += datas(reply)
        if "NextShardIterator" in reply:
            self.tokens[shard] = reply["NextShardIterator"]
            return
        self.ended.add(shard)
        for child in reply["ChildShards"]:
            if self.ended.issuperset(child["ParentShards"]):
                self.tokens[child["ShardId"]] = iterator(self.kinesis, child["ShardId"])


@pytest.mark.parametrize("shard_end", get_args(ShardEnd))
@pytest.mark.parametrize("seed", range(4))
def test_a_random_walk_over_the_fake_keeps_its_invariants(seed: int, shard_end: ShardEnd) -> None:
    entropy = random.Random(seed)
    limits = Limits().unthrottled()
    kinesis = fake(limits=limits, shard_end=shard_end, transition_ms=40)
    kinesis.advance(40)
    reader = Reader(kinesis)
    written: dict[str, list[bytes]] = defaultdict(list)
    for number in range(400):
        kinesis.advance(entropy.randint(0, 20))
        key = f"key-{entropy.randrange(12)}"
        if entropy.random() < 0.7:
            data = b"%b:%d" % (key.encode(), number)
            kinesis.put("orders", data, key)
            written[key].append(data)
        if entropy.random() < 0.1:
            change(kinesis, entropy)
        if entropy.random() < 0.5:
            reader.step(entropy)
    for _ in range(1_000):
        reader.step(entropy)
    by_key = {
        key: [data for data in reader.seen if data.startswith(key.encode() + b":")]
        for key in written
    }
    assert by_key == written, "every record once, and those of a key in order"
    assert len(reader.ended) > 3
