"""The operations SplitShard, MergeShards and UpdateShardCount."""

from __future__ import annotations

from headrace.core.lease.lease import HashRange
from headrace.testing.kinesis.account import Account
from headrace.testing.kinesis.calls import Call
from headrace.testing.kinesis.control import require_provisioned
from headrace.testing.kinesis.errors import AwsError, invalid
from headrace.testing.kinesis.numbers import uniform_ranges
from headrace.testing.kinesis.shard import Shard
from headrace.testing.kinesis.stream import ACCOUNT, UPDATING, Stream


def split_shard(account: Account, call: Call) -> None:
    """Handle SplitShard: divide a shard into two."""
    stream = account.stream(call)
    require_provisioned(stream)
    shard = stream.open_shard(call.request["ShardToSplit"])
    at = int(call.request["NewStartingHashKey"])
    first, last = shard.hash_range
    if not first + 1 < at < last:
        raise invalid(
            f"NewStartingHashKey {at} used in SplitShard() on shard {shard.name} in stream "
            f"{stream.name} under account "
            f"{ACCOUNT} is not both greater than one plus the shard's StartingHashKey {first} "
            "and less than the shard's "
            f"EndingHashKey {last}."
        )
    account.begin(stream, UPDATING, call.now_ms, lambda now_ms: _split(stream, shard, at, now_ms))


def merge_shards(account: Account, call: Call) -> None:
    """Handle MergeShards: join two adjacent shards."""
    stream = account.stream(call)
    require_provisioned(stream)
    one = stream.open_shard(call.request["ShardToMerge"])
    other = stream.open_shard(call.request["AdjacentShardToMerge"])
    low, high = sorted((one.hash_range, other.hash_range))
    if low.last + 1 != high.first:
        raise invalid(
            f"Shards {one.name} and {other.name} in stream {stream.name} under account {ACCOUNT} "
            "are not an adjacent pair "
            "of shards eligible for merging"
        )
    account.begin(stream, UPDATING, call.now_ms, lambda now_ms: _merge(stream, one, other, now_ms))


def update_shard_count(account: Account, call: Call) -> dict[str, object]:
    """Handle UpdateShardCount: split and merge until there are so many shards with equal ranges of hash keys."""
    stream = account.stream(call)
    require_provisioned(stream)
    current = len(stream.open_shards())
    target = call.request["TargetShardCount"]
    if not (current + 1) // 2 <= target <= current * 2:
        raise AwsError(
            "LimitExceededException",
            f"UpdateShardCount cannot scale stream {stream.name} under account {ACCOUNT} from "
            f"{current} to {target} shards: "
            "at most to the double or the half of what there is.",
        )
    if target != current:
        account.begin(stream, UPDATING, call.now_ms, lambda now_ms: _scale(stream, target, now_ms))
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardCount": current,
        "TargetShardCount": target,
    }


def _split(stream: Stream, shard: Shard, at: int, now_ms: int) -> None:
    first, last = shard.hash_range
    ranges = (HashRange(first, at - 1), HashRange(at, last))
    shard.close(now_ms, [stream.add_shard(each, now_ms, (shard,)) for each in ranges])


def _merge(stream: Stream, one: Shard, other: Shard, now_ms: int) -> None:
    joined = HashRange(
        min(one.hash_range.first, other.hash_range.first),
        max(one.hash_range.last, other.hash_range.last),
    )
    child = stream.add_shard(joined, now_ms, (one, other))
    one.close(now_ms, [child])
    other.close(now_ms, [child])


def _scale(stream: Stream, target: int, now_ms: int) -> None:
    """Split at every missing border of the new ranges, then merge the shards between two borders.

    Some shards exist only for a moment meanwhile, as in AWS.
    """
    ranges = uniform_ranges(target)
    for border in [each.first for each in ranges[1:]]:
        for shard in stream.open_shards():
            if shard.hash_range.first < border <= shard.hash_range.last:
                _split(stream, shard, border, now_ms)
    for wanted in ranges:
        inside = [
            each
            for each in stream.open_shards()
            if wanted.first <= each.hash_range.first <= wanted.last
        ]
        while len(inside) > 1:
            _merge(stream, inside[0], inside[1], now_ms)
            inside = [
                each
                for each in stream.open_shards()
                if wanted.first <= each.hash_range.first <= wanted.last
            ]
