"""The producer with the fake of Kinesis over HTTP: its requests, retries, waits and refusals."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headrace.core.lease.checkpoint import TRIM_HORIZON
from headrace.errors import ClosedError, ConfigError, KinesisError, StreamNotFoundError
from headrace.kinesis.aio import Producer
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.reading.reader import ShardReader
from headrace.kinesis.reading.records import KinesisRecord
from headrace.kinesis.reading.shards import StreamShards
from headrace.testing.kinesis import FakeAws, Limits, drop_connection, error, fail_records


def settings_of(aws: FakeAws, **changes: str) -> AwsSettings:
    return AwsSettings(
        endpoint_url=aws.endpoint_url,
        region=changes.get("region", aws.region),
        access_key_id="fake",
        secret_access_key="fake",
    )


def fake(**options: str) -> FakeAws:
    return FakeAws(limits=Limits().unthrottled(), **options)  # type: ignore[arg-type]  # names of its own


async def everything(aws: FakeAws, stream: str) -> list[KinesisRecord]:
    """Read a stream: parents before their children, with the user records of aggregates."""
    found: list[KinesisRecord] = []
    async with open_client(settings_of(aws), "kinesis") as client:
        for shard in await StreamShards(client, stream).list_shards():
            reader = ShardReader(
                client, stream, shard.shard, TRIM_HORIZON, hash_range=shard.hash_range
            )
            while True:
                fetched = await reader.fetch()
                found += fetched.records
                if fetched.ended or (not fetched.behind_ms and not fetched.records):
                    break
            await reader.aclose()
    return found


def by_key(records: list[KinesisRecord]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = defaultdict(list)
    for record in records:
        found[record.partition_key].append(record.data)
    return found


def test_records_stay_in_order_when_some_are_refused_and_an_answer_is_lost() -> None:
    async def scenario() -> None:
        async with fake() as aws:
            aws.kinesis.create_stream("orders", 2)
            aws.kinesis.faults.on("PutRecords", fail_records(0, 3), times=2)
            async with Producer(settings_of(aws), linger_ms=5, backoff_ms=10) as producer:
                deliveries = [
                    await producer.send(
                        "orders", str(number).encode(), partition_key=f"k{number % 7}"
                    )
                    for number in range(70)
                ]
                sent = [await delivery for delivery in deliveries]
            records = {record.sequence_number: record for record in await everything(aws, "orders")}
            assert len(records) == len(sent) == 70
            for number, (shard, sequence_number, sub_sequence) in enumerate(sent):
                found = records[sequence_number]
                assert (found.data, found.shard, sub_sequence) == (
                    str(number).encode(),
                    shard,
                    None,
                )
            for key, values in by_key(list(records.values())).items():
                assert values == [b"%d" % n for n in range(70) if f"k{n % 7}" == key]

    asyncio.run(scenario())


def test_aggregates_reach_their_shards_after_a_split() -> None:
    async def scenario() -> None:
        async with fake() as aws:
            aws.kinesis.create_stream("orders", 2)
            async with Producer(settings_of(aws), linger_ms=5, aggregate_bytes=500) as producer:
                sent = []
                for number in range(300):
                    if number in {100, 200}:
                        await producer.flush()
                        shard = aws.kinesis.shards("orders", only_open=True)[0].name
                        aws.kinesis.split("orders", shard)
                    sent.append(
                        await producer.send(
                            "orders", b"%d" % number, partition_key=f"k{number % 9}"
                        )
                    )
                places = [await delivery for delivery in sent]
            records = await everything(aws, "orders")
            assert len(records) == 300
            found = {(r.shard, r.sequence_number, r.sub_sequence): r.data for r in records}
            assert [found[place] for place in places] == [b"%d" % n for n in range(300)]
            for key, values in by_key(records).items():
                assert values == [b"%d" % n for n in range(300) if f"k{n % 9}" == key]
            assert len(aws.kinesis.records("orders")) < 150, "many are in one"

    asyncio.run(scenario())


def test_a_request_without_an_answer_is_repeated_and_no_record_is_lost() -> None:
    async def scenario() -> None:
        async with fake() as aws:
            aws.kinesis.create_stream("orders", 1)
            aws.kinesis.faults.on("PutRecords", drop_connection(handled=True), times=1)
            async with Producer(settings_of(aws), linger_ms=0, backoff_ms=10) as producer:
                delivery = await producer.send("orders", b"1", partition_key="k")
                await delivery
            data = [record.data for record in await everything(aws, "orders")]
            assert data == [b"1", b"1"], "at least once: twice where an answer was lost"

    asyncio.run(scenario())


def test_send_waits_while_the_buffer_is_full() -> None:
    async def scenario() -> None:
        async with fake() as aws:
            aws.kinesis.create_stream("orders", 1)
            async with Producer(settings_of(aws), linger_ms=0, buffer_bytes=1_000) as producer:
                most = 0
                for number in range(50):
                    _ = await producer.send("orders", bytes(200), partition_key=f"k{number}")
                    most = max(most, producer._engine.buffered)
                assert most <= 1_000
            assert len(await everything(aws, "orders")) == 50

    asyncio.run(scenario())


def test_errors_contain_their_reason() -> None:
    async def scenario() -> None:
        async with fake(region="eu-central-1") as aws:
            aws.kinesis.create_stream("orders", 1)
            async with Producer(settings_of(aws), linger_ms=0) as producer:
                with pytest.raises(StreamNotFoundError, match="no stream 'other'"):
                    await (await producer.send("other", b"", partition_key="k"))
                with pytest.raises(KinesisError, match="more than record_bytes=1048576"):
                    _ = await producer.send("orders", bytes(1 << 20), partition_key="k")
            async with Producer(settings_of(aws, region="us-east-1"), linger_ms=0) as producer:
                with pytest.raises(
                    StreamNotFoundError, match="in us-east-1: create it, or check region"
                ):
                    await (await producer.send("orders", b"", partition_key="k"))
            aws.kinesis.faults.on("PutRecords", error("UnrecognizedClientException"), times=1)
            async with Producer(settings_of(aws), linger_ms=0) as producer:
                with pytest.raises(ConfigError, match="does not know these credentials"):
                    await (await producer.send("orders", b"", partition_key="k"))
            with pytest.raises(ClosedError):
                _ = await producer.send("orders", b"", partition_key="k")
            with pytest.raises(ConfigError, match="request_bytes=100"):
                Producer(request_bytes=100)

    asyncio.run(scenario())


def test_flush_raises_a_failure_that_the_program_has_not_seen() -> None:
    async def scenario() -> None:
        async with fake() as aws:
            producer = Producer(settings_of(aws), linger_ms=0)
            _ = await producer.send("missing", b"", partition_key="k")
            with pytest.raises(StreamNotFoundError):
                await producer.flush()
            await producer.flush()
            await producer.close()

    asyncio.run(scenario())


def test_a_refused_record_fails_at_once_and_the_next_record_is_written() -> None:
    async def scenario() -> None:
        async with fake() as aws:
            aws.kinesis.create_stream("orders", 1)
            refused = fail_records(0, kind="InvalidArgumentException")
            aws.kinesis.faults.on("PutRecords", once=refused)
            async with Producer(settings_of(aws), linger_ms=20) as producer:
                first, other, next_ = [
                    await producer.send("orders", data, partition_key=key)
                    for data, key in [(b"1", "a"), (b"2", "b"), (b"3", "a")]
                ]
                with pytest.raises(KinesisError, match="writing to orders: InvalidArgument"):
                    await first
                assert {(await each).shard for each in (other, next_)} == {"shardId-000000000000"}
            assert [record.data for record in await everything(aws, "orders")] == [b"2", b"3"]

    asyncio.run(scenario())


def test_seen_failures_are_dropped_and_the_list_of_failures_is_bounded() -> None:
    async def scenario() -> None:
        async with fake() as aws:
            producer = Producer(settings_of(aws), linger_ms=0)
            for _ in range(3):
                with pytest.raises(StreamNotFoundError):
                    await (await producer.send("missing", b"", partition_key="k"))
            assert producer._engine.failures == []
            unheard = [
                await producer.send("missing", b"", partition_key=f"k{number}")
                for number in range(1_500)
            ]
            await asyncio.gather(*(each.settled() for each in unheard))
            assert len(producer._engine.failures) == 1_000
            with pytest.raises(StreamNotFoundError):
                await producer.close()

    asyncio.run(scenario())


def test_aggregates_wait_for_a_list_of_shards_until_their_records_time_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = [ConnectionError("no way there")]
    list_shards = StreamShards.list_shards

    async def unsteady(shards: StreamShards) -> Any:
        if failures:
            raise KinesisError("listing the shards of orders: no answer") from failures.pop()
        return await list_shards(shards)

    monkeypatch.setattr(StreamShards, "list_shards", unsteady)

    async def scenario() -> None:
        async with fake() as aws:
            aws.kinesis.create_stream("orders", 1)
            producer = Producer(settings_of(aws), linger_ms=0, aggregate_bytes=50_000)
            sent = await (await producer.send("orders", b"1", partition_key="k"))
            assert sent.shard == "shardId-000000000000"
            await producer.close()

    asyncio.run(scenario())


def test_a_producer_that_is_closed_while_it_connects_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        connecting, gate, events = asyncio.Event(), asyncio.Event(), []

        @asynccontextmanager
        async def slow_client(aws: AwsSettings, service: str) -> AsyncIterator[object]:
            connecting.set()
            await gate.wait()
            yield object()
            events.append("closed")

        monkeypatch.setattr("headrace.kinesis.producing.aio_engine.open_client", slow_client)
        producer = Producer()
        sending = asyncio.ensure_future(producer.send("orders", b"", partition_key="k"))
        await connecting.wait()
        closing = asyncio.ensure_future(producer.close())
        await asyncio.wait([closing], timeout=0.05)
        gate.set()
        with pytest.raises(ClosedError):
            _ = await sending
        await closing
        assert events == ["closed"]

    asyncio.run(scenario())


def test_send_refuses_text_as_data() -> None:
    async def scenario() -> None:
        producer = Producer()
        with pytest.raises(
            TypeError, match=r"data is of type .*pass bytes, as text\.encode\(\) returns"
        ):
            _ = await producer.send("orders", "text", partition_key="k")  # type: ignore[arg-type]  # that is the test
        untyped: Any = producer
        for data in (7, None, ["x"], object()):
            with pytest.raises(TypeError, match="data is of type"):
                await untyped.send("orders", data, partition_key="k")
        for stream in (7, None, ["orders"]):
            with pytest.raises(TypeError, match="stream is of type"):
                await untyped.send(stream, b"x", partition_key="k")
        with pytest.raises(
            TypeError, match="data is of type bytes and partition_key of type NoneType"
        ):
            _ = await producer.send("orders", b"", partition_key=None)  # type: ignore[arg-type]  # that is the test

    asyncio.run(scenario())


def test_the_error_of_a_timed_out_record_names_the_timeout() -> None:
    async def scenario() -> None:
        async with fake() as aws:
            aws.kinesis.create_stream("orders", 1)
            aws.kinesis.faults.on("PutRecords", fail_records(0), times=1000)
            options: dict[str, Any] = {"linger_ms": 0, "delivery_timeout_ms": 200, "backoff_ms": 10}
            async with Producer(settings_of(aws), **options) as producer:
                delivery = await producer.send("orders", b"1", partition_key="k")
                with pytest.raises(
                    KinesisError, match="not written to orders within delivery_timeout_ms=200"
                ):
                    await delivery

    asyncio.run(scenario())
