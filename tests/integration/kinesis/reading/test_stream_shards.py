"""The shards of a stream, listed with the fake."""

from __future__ import annotations

import asyncio

import pytest

from headrace.core.lease.lease import HashRange
from headrace.errors import ConfigError, KinesisError, StreamNotFoundError
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.reading.shards import ShardInfo, StreamShards
from headrace.testing.kinesis import Call, FakeAws, drop_connection, error, throttle
from tests.integration.kinesis.reading.harness import Lab, aws_settings, lab

KEYS = 1 << 128
OLD_TOKEN = "ExpiredNextTokenException"


def shards_of(it: Lab, stream: str = "orders") -> StreamShards:
    return StreamShards(it.client, stream, timing=it.timing)


def is_second_page(call: Call) -> bool:
    return "NextToken" in call.request


def name(number: int) -> str:
    return f"shardId-{number:012d}"


def test_splits_and_merges_are_listed_with_their_parents() -> None:
    async def scenario() -> None:
        async with lab(2) as it:
            it.aws.kinesis.split("orders", name(0))
            it.aws.kinesis.merge("orders", name(3), name(1))
            listed = await shards_of(it).list_shards()
            assert listed == [
                ShardInfo(name(0), frozenset(), HashRange(0, KEYS // 2 - 1), closed=True),
                ShardInfo(name(1), frozenset(), HashRange(KEYS // 2, KEYS - 1), closed=True),
                ShardInfo(name(2), frozenset({name(0)}), HashRange(0, KEYS // 4 - 1), closed=False),
                ShardInfo(
                    name(3), frozenset({name(0)}), HashRange(KEYS // 4, KEYS // 2 - 1), closed=True
                ),
                ShardInfo(
                    name(4),
                    frozenset({name(1), name(3)}),
                    HashRange(KEYS // 4, KEYS - 1),
                    closed=False,
                ),
            ]
            arn = it.aws.kinesis.account.arn("orders")
            assert await shards_of(it, arn).list_shards() == listed

    asyncio.run(scenario())


def test_all_pages_of_shards_are_listed_despite_expired_tokens_and_errors() -> None:
    async def scenario() -> None:
        async with lab(1_100) as it:
            faults = it.aws.kinesis.faults
            assert len(await shards_of(it).list_shards()) == 1_100
            assert it.count("ListShards") == 2
            faults.on("ListShards", throttle(), times=3)
            faults.on("ListShards", drop_connection(), times=1)
            faults.on("ListShards", error(OLD_TOKEN), times=2, when=is_second_page)
            listed = await shards_of(it).list_shards()
            assert [each.shard for each in listed] == [name(number) for number in range(1_100)]
            forever = faults.on("ListShards", error(OLD_TOKEN), when=is_second_page)
            with pytest.raises(KinesisError, match=OLD_TOKEN):
                await shards_of(it).list_shards()
            assert forever.hits == 3

    asyncio.run(scenario())


def test_describe_waits_for_a_new_stream_and_accepts_a_changing_one() -> None:
    async def scenario() -> None:
        async with lab(0, transition_ms=30_000) as it:
            arn = it.aws.kinesis.create_stream("orders", 1)
            created_s = it.timing.now_ms() // 1000
            described = await shards_of(it).describe()
            assert described.status == "ACTIVE"
            assert described.stream == f"orders@{created_s}"
            assert (described.name, described.arn, described.retention_hours) == ("orders", arn, 24)
            assert it.timing.now_ms() >= created_s * 1000 + 30_000

            it.aws.kinesis.split("orders", name(0))
            assert (await shards_of(it, arn).describe()).status == "UPDATING"
            it.aws.advance(30_000)
            it.aws.kinesis.call("DeleteStream", StreamName="orders")
            with pytest.raises(StreamNotFoundError, match="stream orders is being deleted"):
                await shards_of(it).describe()

    asyncio.run(scenario())


def test_a_stream_that_is_never_created_is_given_up() -> None:
    async def scenario() -> None:
        async with lab(0, transition_ms=3_600_000) as it:
            it.aws.kinesis.create_stream("orders", 1)
            with pytest.raises(KinesisError, match="is still being created"):
                await shards_of(it).describe(within_ms=60_000)

    asyncio.run(scenario())


def test_the_error_for_a_missing_stream_names_the_region_and_a_remedy() -> None:
    async def scenario() -> None:
        async with lab() as it:
            for call in (shards_of(it, "orderz").describe(), shards_of(it, "orderz").list_shards()):
                with pytest.raises(
                    StreamNotFoundError,
                    match=r"no stream 'orderz' in us-east-1: create it, or check region",
                ):
                    await call

    asyncio.run(scenario())


def test_the_error_for_a_wrong_region_names_the_region() -> None:
    async def scenario() -> None:
        async with FakeAws(region="us-east-1") as aws:
            aws.kinesis.create_stream("orders", 1)
            async with open_client(aws_settings(aws, region="eu-west-1"), "kinesis") as client:
                with pytest.raises(StreamNotFoundError, match="in eu-west-1"):
                    await StreamShards(client, "orders").describe()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("AccessDeniedException", KinesisError),
        ("InvalidSignatureException", ConfigError),
        ("ExpiredTokenException", ConfigError),
    ],
)
def test_a_denied_description_fails_at_once(kind: str, expected: type[Exception]) -> None:
    async def scenario() -> None:
        async with lab() as it:
            it.aws.kinesis.faults.on(None, error(kind))
            with pytest.raises(expected, match="describing stream orders: "):
                await shards_of(it).describe()
            with pytest.raises(expected, match="listing the shards of stream orders: "):
                await shards_of(it).list_shards()
            assert it.count("DescribeStreamSummary") == it.count("ListShards") == 1

    asyncio.run(scenario())


def test_the_error_without_an_answer_names_the_endpoint() -> None:
    async def scenario() -> None:
        async with lab() as it:
            nobody = it.settings(endpoint_url="http://127.0.0.1:1")
            async with open_client(nobody, "kinesis") as client:
                message = (
                    r"describing stream orders: no answer from http://127\.0\.0\.1:1 in region \S+: "
                    "check region, endpoint_url and the network"
                )
                with pytest.raises(KinesisError, match=message):
                    await StreamShards(client, "orders", timing=it.timing).describe()

    asyncio.run(scenario())
