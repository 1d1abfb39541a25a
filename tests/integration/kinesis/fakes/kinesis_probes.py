"""Probes of a Kinesis server. Each returns what it observes, without values that differ between any two servers."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.integration.kinesis.fakes.peers import KinesisPeer, outcome

Probe = Callable[[KinesisPeer], Awaitable[Any]]
FIRST: Final = "shardId-000000000000"
SECOND: Final = "shardId-000000000001"
THIRD: Final = "shardId-000000000002"


def datas(reply: Any) -> list[bytes]:
    return [record["Data"] for record in reply["Records"]]


async def a_new_stream(peer: KinesisPeer) -> Any:
    name = await peer.stream(3)
    summary = (await peer.client.describe_stream_summary(StreamName=name))[
        "StreamDescriptionSummary"
    ]
    shards = await peer.shards(name)
    return (
        summary["OpenShardCount"],
        summary["RetentionPeriodHours"],
        summary["StreamARN"].partition(":stream/")[2] == name,
        [shard["ShardId"] for shard in shards],
        [len(shard["SequenceNumberRange"]["StartingSequenceNumber"]) for shard in shards],
        int(shards[0]["HashKeyRange"]["StartingHashKey"]),
        int(shards[-1]["HashKeyRange"]["EndingHashKey"]),
    )


async def keys_go_to_the_same_shards(peer: KinesisPeer) -> Any:
    name = await peer.stream(3)
    records = [{"Data": b"x", "PartitionKey": f"key-{number}"} for number in range(20)]
    records += [{"Data": b"x", "PartitionKey": "k", "ExplicitHashKey": "0"}]
    reply = await peer.client.put_records(StreamName=name, Records=records)
    return reply["FailedRecordCount"], [each["ShardId"] for each in reply["Records"]]


async def sequence_numbers_grow(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    numbers = [reply["SequenceNumber"] for reply in await peer.put(name, b"1", b"2", b"3")]
    start = (await peer.shards(name))[0]["SequenceNumberRange"]["StartingSequenceNumber"]
    return (
        {len(number) for number in numbers},
        int(start) < int(numbers[0]),
        sorted(numbers, key=int) == numbers,
    )


async def the_five_beginnings(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    puts = await peer.put(name, b"0", b"1", b"2")
    number = puts[1]["SequenceNumber"]
    seen = [
        datas(await peer.read(name, FIRST)),
        datas(await peer.read(name, FIRST, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=number)),
        datas(await peer.read(name, FIRST, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=number)),
        datas(await peer.read(name, FIRST, "LATEST")),
        datas(await peer.read(name, FIRST, "AT_TIMESTAMP", Timestamp=1)),
    ]
    latest = await peer.iterator(name, FIRST, "LATEST")
    await peer.put(name, b"3")
    return [*seen, datas(await peer.client.get_records(ShardIterator=latest))]


async def reading_at_the_time_of_a_record(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    await peer.put(name, b"0", b"1")
    stamp = (await peer.read(name, FIRST))["Records"][1]["ApproximateArrivalTimestamp"]
    return b"1" in datas(await peer.read(name, FIRST, "AT_TIMESTAMP", Timestamp=stamp))


async def limits_and_next_iterators(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    await peer.put(name, b"0", b"1", b"2")
    token = await peer.iterator(name, FIRST)
    seen = []
    for _ in range(3):
        reply = await peer.client.get_records(ShardIterator=token, Limit=2)
        seen.append((datas(reply), reply["MillisBehindLatest"] > 0))
        token = reply["NextShardIterator"]
    return seen


async def a_split(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    await peer.put(name, b"before")
    await peer.split(name, FIRST)
    listed = [
        (
            shard["ShardId"],
            shard.get("ParentShardId"),
            shard.get("AdjacentParentShardId"),
            shard["HashKeyRange"],
            "EndingSequenceNumber" in shard["SequenceNumberRange"],
        )
        for shard in await peer.shards(name)
    ]
    return listed, (await peer.put(name, b"after"))[0]["ShardId"]


async def the_end_of_a_shard(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    await peer.put(name, b"before")
    await peer.split(name, FIRST)
    reply = await peer.read(name, FIRST)
    children = [(each["ShardId"], each["ParentShards"]) for each in reply.get("ChildShards", [])]
    return datas(reply), reply.get("NextShardIterator"), children


async def a_merge(peer: KinesisPeer) -> Any:
    name = await peer.stream(2)
    await peer.client.merge_shards(StreamName=name, ShardToMerge=FIRST, AdjacentShardToMerge=SECOND)
    await peer.settled(name)
    child = (await peer.shards(name))[2]
    last = await peer.read(name, SECOND)
    return (
        child["ParentShardId"],
        child["AdjacentParentShardId"],
        child["HashKeyRange"],
        [sorted(each["ParentShards"]) for each in last["ChildShards"]],
    )


async def update_shard_count(peer: KinesisPeer) -> Any:
    name = await peer.stream(2)
    counts = []
    for target in (4, 2, 3):
        reply = await peer.client.update_shard_count(
            StreamName=name, TargetShardCount=target, ScalingType="UNIFORM_SCALING"
        )
        await peer.settled(name)
        summary = await peer.client.describe_stream_summary(StreamName=name)
        counts.append(
            (
                reply["CurrentShardCount"],
                reply["TargetShardCount"],
                summary["StreamDescriptionSummary"]["OpenShardCount"],
            )
        )
    return counts


async def pages_of_shards(peer: KinesisPeer) -> Any:
    name = await peer.stream(5)
    reply = await peer.client.list_shards(StreamName=name, MaxResults=2)
    pages = [[shard["ShardId"] for shard in reply["Shards"]]]
    while "NextToken" in reply:
        reply = await peer.client.list_shards(NextToken=reply["NextToken"], MaxResults=2)
        pages.append([shard["ShardId"] for shard in reply["Shards"]])
    return pages


async def filters_of_shards(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    await peer.split(name, FIRST)
    kinds = ("AT_LATEST", "FROM_TRIM_HORIZON")
    seen = [await peer.shards(name, ShardFilter={"Type": kind}) for kind in kinds]
    seen.append(await peer.shards(name, ShardFilter={"Type": "AFTER_SHARD_ID", "ShardId": SECOND}))
    return [[shard["ShardId"] for shard in shards] for shards in seen]


async def shards_that_were_open_at_the_horizon(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    await peer.split(name, FIRST)
    shards = await peer.shards(name, ShardFilter={"Type": "AT_TRIM_HORIZON"})
    return [shard["ShardId"] for shard in shards]


async def consumers_of_fan_out(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    client = peer.client
    arn = (await client.describe_stream_summary(StreamName=name))["StreamDescriptionSummary"][
        "StreamARN"
    ]
    reply = (await client.register_stream_consumer(StreamARN=arn, ConsumerName="efo"))["Consumer"]
    while True:
        found = await client.describe_stream_consumer(StreamARN=arn, ConsumerName="efo")
        if found["ConsumerDescription"]["ConsumerStatus"] == "ACTIVE":
            break
    listed = await client.list_stream_consumers(StreamARN=arn)
    return reply["ConsumerARN"].startswith(f"{arn}/consumer/efo:"), [
        each["ConsumerName"] for each in listed["Consumers"]
    ]


async def refusals_of_reads(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    return {
        "no stream": await outcome(peer.shards("nowhere")),
        "no shard": await outcome(peer.iterator(name, "shardId-000000000009")),
        "no number": await outcome(peer.iterator(name, FIRST, "AT_SEQUENCE_NUMBER")),
        "no time": await outcome(peer.iterator(name, FIRST, "AT_TIMESTAMP")),
    }


async def ten_thousand_and_one_records_wanted(peer: KinesisPeer) -> Any:
    token = await peer.iterator(await peer.stream(), FIRST)
    return await outcome(peer.client.get_records(ShardIterator=token, Limit=10_001))


async def a_time_to_come(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    return await outcome(peer.iterator(name, FIRST, "AT_TIMESTAMP", Timestamp=4_000_000_000))


async def a_number_of_another_shard(peer: KinesisPeer) -> Any:
    name = await peer.stream(2)
    reply = (await peer.put(name, b"1"))[0]
    other = FIRST if reply["ShardId"] == SECOND else SECOND
    kind, number = "AFTER_SEQUENCE_NUMBER", reply["SequenceNumber"]
    return await outcome(peer.iterator(name, other, kind, StartingSequenceNumber=number))


async def a_bad_iterator(peer: KinesisPeer) -> Any:
    return await outcome(peer.client.get_records(ShardIterator="nonsense"))


async def refusals_of_writes(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    put = peer.client.put_record
    edge = str(1 << 128)
    return {
        "no stream": await outcome(peer.put("nowhere", b"x")),
        "a hash key of 2^128": await outcome(
            put(StreamName=name, Data=b"x", PartitionKey="k", ExplicitHashKey=edge)
        ),
    }


async def a_partition_key_of_257_characters(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    return await outcome(peer.client.put_record(StreamName=name, Data=b"", PartitionKey="k" * 257))


async def a_request_of_501_records(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    records = [{"Data": b"x", "PartitionKey": "k"}] * 501
    return await outcome(peer.client.put_records(StreamName=name, Records=records))


async def more_than_one_mib(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    return await outcome(peer.put(name, b"x" * ((1 << 20) + 1)))


async def refusals_of_changes(peer: KinesisPeer) -> Any:
    name = await peer.stream(3)
    await peer.split(name, FIRST)
    client = peer.client
    return {
        "created twice": await outcome(client.create_stream(StreamName=name, ShardCount=1)),
        "no neighbours": await outcome(
            client.merge_shards(
                StreamName=name, ShardToMerge="shardId-000000000003", AdjacentShardToMerge=THIRD
            )
        ),
        "no such shard": await outcome(
            client.split_shard(
                StreamName=name, ShardToSplit="shardId-000000000099", NewStartingHashKey="9"
            )
        ),
    }


async def a_split_at_the_edge(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    return await outcome(
        peer.client.split_shard(StreamName=name, ShardToSplit=FIRST, NewStartingHashKey="0")
    )


async def a_split_of_a_closed_shard(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    await peer.split(name, FIRST)
    return await outcome(
        peer.client.split_shard(StreamName=name, ShardToSplit=FIRST, NewStartingHashKey="9")
    )


async def far_more_shards_at_once(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    return await outcome(
        peer.client.update_shard_count(
            StreamName=name, TargetShardCount=9, ScalingType="UNIFORM_SCALING"
        )
    )


async def a_token_beside_a_name(peer: KinesisPeer) -> Any:
    name = await peer.stream(2)
    reply = await peer.client.list_shards(StreamName=name, MaxResults=1)
    return await outcome(peer.shards(name, NextToken=reply["NextToken"]))


async def a_stream_that_is_deleted(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    token = await peer.iterator(name, FIRST)
    await peer.client.delete_stream(StreamName=name)
    while await outcome(peer.client.describe_stream_summary(StreamName=name)) == "ok":
        pass
    return await outcome(peer.client.get_records(ShardIterator=token))


async def retention(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    client = peer.client
    up, down = client.increase_stream_retention_period, client.decrease_stream_retention_period
    return [
        await outcome(up(StreamName=name, RetentionPeriodHours=48)),
        await outcome(up(StreamName=name, RetentionPeriodHours=47)),
        await outcome(down(StreamName=name, RetentionPeriodHours=49)),
        await outcome(up(StreamName=name, RetentionPeriodHours=8761)),
        await outcome(down(StreamName=name, RetentionPeriodHours=24)),
    ]


async def six_reads_at_once(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    token = await peer.iterator(name, FIRST)
    asked = [await outcome(peer.client.get_records(ShardIterator=token)) for _ in range(6)]
    return asked[-1]


async def the_first_event_of_fan_out(peer: KinesisPeer) -> Any:
    name = await peer.stream()
    await peer.put(name, b"1")
    client = peer.client
    arn = (await client.describe_stream_summary(StreamName=name))["StreamDescriptionSummary"][
        "StreamARN"
    ]
    reply = (await client.register_stream_consumer(StreamARN=arn, ConsumerName="efo"))["Consumer"]
    while True:
        found = await client.describe_stream_consumer(ConsumerARN=reply["ConsumerARN"])
        if found["ConsumerDescription"]["ConsumerStatus"] == "ACTIVE":
            break
    try:
        pushed = await client.subscribe_to_shard(
            ConsumerARN=reply["ConsumerARN"],
            ShardId=FIRST,
            StartingPosition={"Type": "TRIM_HORIZON"},
        )
        async for event in pushed["EventStream"]:
            pushed["EventStream"].close()
            return datas(event["SubscribeToShardEvent"])
    except Exception as error:  # noqa: BLE001 - whatever the server makes of it
        refusal = type(error).__name__
    else:
        return None
    _collect_connections()
    return refusal


def _collect_connections() -> None:
    """Collect the connection whose answer botocore could not read, without the warning about an open socket."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


PROBES: Final[list[Probe]] = [
    probe
    for name, probe in list(globals().items())
    if callable(probe)
    and getattr(probe, "__module__", "") == __name__
    and name not in {"datas", "_collect_connections"}
]
