"""The HTTP server of the fakes, called by clients of AWS."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import msgspec
import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import ClientError, EventStreamError, HTTPClientError

from headrace.errors import ConfigError
from headrace.testing import ManualClock
from headrace.testing.kinesis import FakeAws, delay, drop_connection
from tests.integration.kinesis.fakes.peers import client_of, outcome

FIRST = "shardId-000000000000"
HEADERS = {
    "Content-Type": "application/x-amz-json-1.1",
    "Authorization": "AWS4-HMAC-SHA256 Credential=k/20260101/us-east-1/kinesis/aws4_request",
    "X-Amz-Target": "Kinesis_20131202.ListStreams",
}


@pytest.fixture
def aws() -> Iterator[FakeAws]:
    with FakeAws() as running:
        running.kinesis.create_stream("orders")
        yield running


async def posted(aws: FakeAws, **headers: str) -> tuple[int, Any]:
    changed = {name: value for name, value in (HEADERS | headers).items() if value}
    async with (
        aiohttp.ClientSession() as session,
        session.post(aws.endpoint_url, data=b"{}", headers=changed) as answer,
    ):
        return answer.status, msgspec.json.decode(await answer.read())


def refusal(aws: FakeAws, **headers: str) -> str:
    """Return the error for a request with other headers."""
    status, reply = asyncio.run(posted(aws, **headers))
    assert status == 400
    return f"{reply['__type']}: {reply['message']}"


def test_a_request_needs_a_signature_a_target_and_json(aws: FakeAws) -> None:
    assert asyncio.run(posted(aws)) == (
        200,
        {
            "StreamNames": ["orders"],
            "HasMoreStreams": False,
            "StreamSummaries": aws.kinesis.call("ListStreams")["StreamSummaries"],
        },
    )
    assert "MissingAuthenticationTokenException" in refusal(aws, Authorization="")
    assert "UnknownOperationException" in refusal(aws, **{"X-Amz-Target": "Sqs_1.Send"})
    assert "switch CBOR off" in refusal(aws, **{"Content-Type": "application/x-amz-cbor-1.1"})


def test_the_fake_runs_on_the_callers_event_loop() -> None:
    async def work() -> list[str]:
        async with FakeAws() as aws, client_of("kinesis", aws.endpoint_url) as client:
            await client.create_stream(StreamName="orders", ShardCount=1)
            reply = await client.list_streams()
            return list(reply["StreamNames"])

    assert asyncio.run(work()) == ["orders"]


def test_a_fake_with_a_region_has_streams_and_tables_in_that_region_only() -> None:
    async def work(aws: FakeAws, region: str) -> str:
        options = aws.client_options | {"region_name": region}
        async with get_session().create_client("kinesis", **options) as client:
            return await outcome(client.describe_stream_summary(StreamName="orders"))

    with FakeAws(region="eu-central-1") as aws:
        arn = aws.kinesis.create_stream("orders")
        assert arn == "arn:aws:kinesis:eu-central-1:000000000000:stream/orders"
        assert asyncio.run(work(aws, "eu-central-1")) == "ok"
        assert asyncio.run(work(aws, "us-west-2")) == "ResourceNotFoundException"


def test_stored_data_outlives_the_server() -> None:
    aws = FakeAws(clock=ManualClock())
    with pytest.raises(ConfigError, match="is not running"):
        _ = aws.endpoint_url
    with aws:
        aws.kinesis.create_stream("orders")
        with pytest.raises(ConfigError, match="is running already"):
            aws.start()
    with aws:
        assert asyncio.run(posted(aws))[1]["StreamNames"] == ["orders"]
    aws.stop()


@pytest.mark.parametrize("handled", [False, True])
def test_a_lost_connection_is_an_error_of_the_client(aws: FakeAws, handled: bool) -> None:  # noqa: FBT001 - a parameter
    async def put(attempts: int) -> None:
        config = AioConfig(retries={"total_max_attempts": attempts})
        async with get_session().create_client(
            "kinesis", config=config, **aws.client_options
        ) as client:
            await client.put_record(StreamName="orders", Data=b"1", PartitionKey="k")

    aws.kinesis.faults.on("PutRecord", once=drop_connection(handled=handled))
    with pytest.raises(HTTPClientError):
        asyncio.run(put(attempts=1))
    assert len(aws.kinesis.records("orders")) == handled
    aws.kinesis.faults.on("PutRecord", once=drop_connection(handled=handled))
    asyncio.run(put(attempts=2))
    assert len(aws.kinesis.records("orders")) == 2 * handled + 1


def test_a_delay_delays_the_answer(aws: FakeAws) -> None:
    aws.kinesis.faults.on("ListStreams", once=delay(0.2))
    before = time.monotonic()
    asyncio.run(posted(aws))
    assert time.monotonic() - before >= 0.2


def test_errors_of_both_services_have_their_types(aws: FakeAws) -> None:
    async def work() -> list[str]:
        async with (
            client_of("kinesis", aws.endpoint_url) as kinesis,
            client_of("dynamodb", aws.endpoint_url) as dynamodb,
        ):
            with pytest.raises(kinesis.exceptions.ResourceNotFoundException):
                await kinesis.describe_stream_summary(StreamName="nowhere")
            with pytest.raises(dynamodb.exceptions.ResourceNotFoundException):
                await dynamodb.describe_table(TableName="nowhere")
            with pytest.raises(ClientError) as failed:
                await dynamodb.describe_table(TableName="nowhere")
            return [failed.value.response["Error"]["Code"]]

    assert asyncio.run(work()) == ["ResourceNotFoundException"]


def test_events_of_fan_out_reach_aiobotocore(aws: FakeAws) -> None:
    kinesis = aws.kinesis
    arn = kinesis.register_consumer("orders", "billing")
    kinesis.put("orders", b"1")

    async def work() -> list[Any]:
        async with client_of("kinesis", aws.endpoint_url) as client:
            reply = await client.subscribe_to_shard(
                ConsumerARN=arn, ShardId=FIRST, StartingPosition={"Type": "TRIM_HORIZON"}
            )
            seen: list[Any] = []
            children = 0
            async for event in reply["EventStream"]:
                pushed = event["SubscribeToShardEvent"]
                seen.append([record["Data"] for record in pushed["Records"]])
                children = len(pushed.get("ChildShards", []))
                if len(seen) == 1:
                    await asyncio.to_thread(kinesis.put, "orders", b"2")
                if len(seen) == 2:
                    await asyncio.to_thread(kinesis.split, "orders", FIRST)
            return [*seen, children]

    assert asyncio.run(work()) == [[b"1"], [b"2"], [], 2]


@pytest.mark.parametrize("kind", [None, "InternalFailureException"])
def test_a_subscription_breaks_or_ends_with_an_error(aws: FakeAws, kind: str | None) -> None:
    arn = aws.kinesis.register_consumer("orders", "billing")

    async def work() -> None:
        async with client_of("kinesis", aws.endpoint_url) as client:
            reply = await client.subscribe_to_shard(
                ConsumerARN=arn, ShardId=FIRST, StartingPosition={"Type": "LATEST"}
            )
            try:
                async for _ in reply["EventStream"]:
                    aws.kinesis.end_subscriptions(kind)
            finally:
                reply["EventStream"].close()

    with pytest.raises(aiohttp.ClientPayloadError if kind is None else EventStreamError):
        asyncio.run(work())


def test_the_error_without_aiohttp_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "headrace.testing.kinesis.server", raising=False)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[kinesis\]'"):
        FakeAws().start()
