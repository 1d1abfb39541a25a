"""Splits, merges and ends of shards of the fake, and changes of streams."""

from __future__ import annotations

import pytest

from headrace.testing.kinesis import AwsError, FakeKinesis
from headrace.testing.kinesis.numbers import LAST_HASH_KEY
from tests.unit.testing.kinesis.asking import FIRST, ask, datas, fake, get, iterator


def covers_all_hash_keys(kinesis: FakeKinesis) -> bool:
    edges = [
        edge for shard in kinesis.shards("orders", only_open=True) for edge in shard.hash_range
    ]
    inner = zip(edges[1:-1:2], edges[2::2], strict=True)
    return (edges[0], edges[-1]) == (0, LAST_HASH_KEY) and all(a + 1 == b for a, b in inner)


def test_a_split_shard_ends_with_its_last_records() -> None:
    kinesis = fake()
    kinesis.put("orders", b"before")
    kinesis.split("orders", FIRST)
    kinesis.put("orders", b"after", explicit_hash_key=0)
    reply = get(kinesis, iterator(kinesis))
    assert datas(reply) == [b"before"]
    assert "NextShardIterator" not in reply
    children = [(child["ShardId"], child["ParentShards"]) for child in reply["ChildShards"]]
    assert children == [("shardId-000000000001", [FIRST]), ("shardId-000000000002", [FIRST])]
    assert datas(get(kinesis, iterator(kinesis, "shardId-000000000001"))) == [b"after"]


def test_a_split_shard_can_end_with_one_more_call() -> None:
    kinesis = fake(shard_end="extra_call")
    kinesis.put("orders", b"before")
    kinesis.split("orders", FIRST)
    reply = get(kinesis, iterator(kinesis))
    assert (datas(reply), "ChildShards" in reply) == ([b"before"], False)
    last = get(kinesis, reply["NextShardIterator"])
    assert (datas(last), "NextShardIterator" in last, len(last["ChildShards"])) == ([], False, 2)


def test_a_merged_shard_has_both_parents() -> None:
    kinesis = fake()
    kinesis.split("orders", FIRST)
    kinesis.merge("orders", "shardId-000000000002", "shardId-000000000001")
    listed = ask(kinesis, "ListShards", StreamName="orders")["Shards"]
    assert (listed[3]["ParentShardId"], listed[3]["AdjacentParentShardId"]) == (
        "shardId-000000000002",
        "shardId-000000000001",
    )
    assert "AdjacentParentShardId" not in listed[1]
    assert ["EndingSequenceNumber" in shard["SequenceNumberRange"] for shard in listed] == [
        True,
        True,
        True,
        False,
    ]
    reply = get(kinesis, iterator(kinesis, "shardId-000000000001"))
    assert sorted(reply["ChildShards"][0]["ParentShards"]) == [
        "shardId-000000000001",
        "shardId-000000000002",
    ]
    assert covers_all_hash_keys(kinesis)


@pytest.mark.parametrize("counts", [(2, 4, 2, 1), (2, 3, 5, 4, 7), (2, 4, 3)])
def test_update_shard_count_ends_with_equal_ranges(counts: tuple[int, ...]) -> None:
    kinesis = fake()
    for count in counts:
        kinesis.reshard("orders", count)
        shards = kinesis.shards("orders", only_open=True)
        sizes = [shard.hash_range.last - shard.hash_range.first for shard in shards]
        assert (len(shards), max(sizes) - min(sizes) <= 1) == (count, True)
        assert covers_all_hash_keys(kinesis)


def test_reads_and_writes_continue_during_a_change() -> None:
    kinesis = fake(transition_ms=500)

    def status() -> str:
        reply = ask(kinesis, "DescribeStreamSummary", StreamName="orders")
        return str(reply["StreamDescriptionSummary"]["StreamStatus"])

    assert status() == "CREATING"
    with pytest.raises(AwsError, match=r"ResourceInUseException.*CREATING"):
        ask(kinesis, "ListShards", StreamName="orders")
    with pytest.raises(AwsError, match="ResourceNotFoundException"):
        kinesis.put("orders", b"")
    kinesis.advance(500)
    assert status() == "ACTIVE"
    kinesis.split("orders", FIRST)
    assert status() == "UPDATING"
    assert kinesis.put("orders", b"1").shard == FIRST
    with pytest.raises(AwsError, match="not ACTIVE, instead in state UPDATING"):
        kinesis.reshard("orders", 2)
    kinesis.advance(500)
    assert status() == "ACTIVE"
    assert kinesis.put("orders", b"2").shard != FIRST
    kinesis.call("DeleteStream", StreamName="orders")
    assert status() == "DELETING"
    kinesis.advance(500)
    with pytest.raises(AwsError, match="ResourceNotFoundException"):
        status()


@pytest.mark.parametrize(
    ("operation", "members", "refusal"),
    [
        (
            "SplitShard",
            {"ShardToSplit": FIRST, "NewStartingHashKey": "9"},
            "already been merged or split",
        ),
        (
            "SplitShard",
            {"ShardToSplit": "shardId-000000000003", "NewStartingHashKey": "0"},
            "is not both greater",
        ),
        (
            "SplitShard",
            {"ShardToSplit": "shardId-000000000009", "NewStartingHashKey": "9"},
            "Could not find shard",
        ),
        (
            "MergeShards",
            {
                "ShardToMerge": "shardId-000000000003",
                "AdjacentShardToMerge": "shardId-000000000002",
            },
            "adjacent pair",
        ),
        (
            "UpdateShardCount",
            {"TargetShardCount": 7, "ScalingType": "UNIFORM_SCALING"},
            "LimitExceededException",
        ),
        ("UpdateShardCount", {"TargetShardCount": 3, "ScalingType": "OTHER"}, "enum value set"),
        ("CreateStream", {"ShardCount": 1}, "already exists"),
    ],
)
def test_invalid_resharding_is_refused(
    operation: str, members: dict[str, object], refusal: str
) -> None:
    kinesis = fake()
    kinesis.split("orders", FIRST)
    kinesis.split("orders", "shardId-000000000001")
    with pytest.raises(AwsError, match=refusal):
        ask(kinesis, operation, StreamName="orders", **members)
