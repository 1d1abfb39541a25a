"""A topic is copied into a stream: in order, at least once.

Only the records that a killed process had in flight come twice.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from typing import Any

import pytest

from headrace import Admin
from headrace.clients.consumer.aio import Consumer
from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.producer.blocking import Producer
from headrace.errors import ConfigError, KinesisError, StreamNotFoundError
from headrace.kinesis.aio import Producer as StreamProducer
from headrace.kinesis.bridge.into_stream import (
    IntoStream,
    IntoStreamBridge,
    partition_key_of,
    producing,
)
from headrace.kinesis.bridge.names import StreamPlace
from headrace.kinesis.client.settings import AwsSettings
from headrace.protocol.api_keys import ApiKey
from headrace.testing import Broker
from headrace.testing import drop_connection as drop_kafka_connection
from headrace.testing.kinesis import Exchange, FakeAws, Limits, drop_connection, fail_records


def place(aws: FakeAws, stream: str = "orders") -> StreamPlace:
    return StreamPlace(
        stream,
        AwsSettings(
            endpoint_url=aws.endpoint_url,
            region=aws.region,
            access_key_id="fake",
            secret_access_key="fake",
        ),
    )


def plan(broker: Broker, aws: FakeAws, **changes: Any) -> IntoStream:
    options = {"destination": place(aws), "topic": "orders", "name": "back", "once": True}
    return IntoStream(target=broker, **{**options, **changes})


async def copy(plan: IntoStream) -> IntoStreamBridge:
    bridge = IntoStreamBridge(plan)
    await bridge.run(asyncio.Event())
    return bridge


def scenario(steps: Any) -> None:
    async def run() -> None:
        async with FakeAws(limits=Limits().unthrottled()) as aws:
            aws.kinesis.create_stream("orders", 2)
            with Broker() as broker:
                await steps(broker, aws)

    asyncio.run(run())


def fill(broker: Broker, numbers: range) -> None:
    if "orders" not in broker.topics():
        broker.create_topic("orders", partitions=2)
    with Producer(broker) as producer:
        for number in numbers:
            producer.send("orders", b"%d" % number, key=b"key-%d" % (number % 5))


def values_by_key(aws: FakeAws) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for record in aws.kinesis.records("orders"):
        found[record.partition_key].append(int(record.data))
    return found


def test_a_stopped_bridge_continues_at_its_committed_offsets() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        fill(broker, range(40))
        first = await copy(plan(broker, aws))
        fill(broker, range(40, 60))
        second = await copy(plan(broker, aws))
        assert (first.progress.records, second.progress.records) == (40, 20)
        for key, values in values_by_key(aws).items():
            assert values == [n for n in range(60) if f"key-{n % 5}" == key]

    scenario(steps)


def test_latest_is_the_end_of_the_first_start() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        fill(broker, range(10))
        assert (await copy(plan(broker, aws, latest=True))).progress.records == 0
        fill(broker, range(10, 30))
        assert (await copy(plan(broker, aws, latest=True))).progress.records == 20

    scenario(steps)


def test_added_partitions_are_copied_from_their_beginning_even_with_latest() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        fill(broker, range(10))
        assert (await copy(plan(broker, aws, latest=True))).progress.records == 0
        with Admin(broker) as admin:
            admin.add_partitions("orders", 4)
        with Producer(broker) as producer:
            for partition in range(4):
                producer.send("orders", b"%d" % partition, key=b"k", partition=partition)
        assert (await copy(plan(broker, aws, latest=True))).progress.records == 4

    scenario(steps)


def test_a_bridge_continues_at_the_oldest_record_after_retention_removed_the_next_one() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        broker.create_topic("orders")
        await copy(plan(broker, aws, latest=True))
        fill(broker, range(10))
        with Admin(broker) as admin:
            admin.truncate("orders", {0: 4})
        assert (await copy(plan(broker, aws, latest=True))).progress.records == 6

    scenario(steps)


@pytest.mark.parametrize("too_large_for", ["the bridge", "the stream"])
def test_a_refused_record_is_named_and_earlier_records_are_written_once(
    too_large_for: str,
) -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        broker.create_topic("orders")
        with Producer(broker) as producer:
            for number in range(20):
                producer.send("orders", b"%d" % number, key=b"key-%d" % number)
            producer.send("orders", bytes(2_000), key=b"large")
        if too_large_for == "the stream":
            refused = fail_records(20, kind="InvalidArgumentException")
            aws.kinesis.faults.on(
                "PutRecords", refused, when=lambda call: len(call.request["Records"]) > 20
            )
            limits = producing(aggregate=False, record_bytes=None)
        else:
            limits = producing(aggregate=False, record_bytes=1_000)
        with pytest.raises(KinesisError, match=r"orders\[0\]@20 cannot be copied"):
            await copy(plan(broker, aws, producing=limits))
        aws.kinesis.faults.on("PutRecords", fail_records(0, kind="InvalidArgumentException"))
        with pytest.raises(KinesisError, match=r"orders\[0\]@20 cannot be copied"):
            await copy(plan(broker, aws, producing=limits))
        written = sorted(int(record.data) for record in aws.kinesis.records("orders"))
        assert written == list(range(20)), "not once more at each start"

    scenario(steps)


def test_a_topic_with_transactions_and_deletions_is_copied_to_its_end() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        broker.create_topic("orders", configs={"cleanup.policy": "compact"})
        with Producer(broker, transactional_id="t") as producer:
            with producer.transaction():
                producer.send("orders", b"kept", key=b"a")
                producer.send("orders", None, key=b"gone")
            producer.begin_transaction()
            producer.send("orders", b"aborted", key=b"a")
            producer.abort_transaction()
            assert (await copy(plan(broker, aws))).progress.records == 2
            producer.begin_transaction()
            producer.send("orders", b"later", key=b"a")
            producer.flush()
            assert (await copy(plan(broker, aws))).progress.records == 0, "it is not committed"
            producer.commit_transaction()
            assert (await copy(plan(broker, aws))).progress.records == 1
        found = {(record.partition_key, record.data) for record in aws.kinesis.records("orders")}
        assert found == {("a", b"kept"), ("gone", b""), ("a", b"later")}

    scenario(steps)


def test_a_bridge_waits_for_brokers_that_do_not_answer() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        fill(broker, range(10))
        silent = broker.faults.on(ApiKey.OFFSET_COMMIT, drop_kafka_connection())
        impatient = {"request_timeout_ms": 300}
        running = asyncio.ensure_future(copy(plan(broker, aws, properties=impatient)))
        while silent.hits < 2 or not aws.kinesis.records("orders"):
            await asyncio.wait([running], timeout=0.1)
            assert not running.done(), "it has not given up"
        await asyncio.wait([running], timeout=0.5)  # longer than a commit may take
        silent.remove()
        await running
        assert (await copy(plan(broker, aws))).progress.records == 0, "all is committed"
        assert len(aws.kinesis.records("orders")) == 10

    scenario(steps)


def test_a_topic_that_is_deleted_ends_a_bridge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.kinesis.bridge.into_stream._LOOK_S", 0)

    async def steps(broker: Broker, aws: FakeAws) -> None:
        fill(broker, range(10))
        bridge = IntoStreamBridge(plan(broker, aws, once=False))
        running = asyncio.ensure_future(bridge.run(asyncio.Event()))
        await asyncio.to_thread(
            aws.kinesis.wait_until, lambda: len(aws.kinesis.records("orders")) == 10
        )
        broker.delete_topic("orders")
        with pytest.raises(ConfigError, match=r"no topic 'orders'.*headrace topic create orders"):
            async with asyncio.timeout(20):
                await running

    scenario(steps)


def test_records_in_flight_of_a_killed_process_are_copied_again_in_order() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        fill(broker, range(40))
        written = asyncio.Event()

        def notice(exchange: Exchange) -> Any:
            written.set()
            return drop_connection(handled=True)(exchange)

        aws.kinesis.faults.on("PutRecords", notice, times=2)
        killed = asyncio.ensure_future(copy(plan(broker, aws)))
        await written.wait()
        killed.cancel()
        await asyncio.gather(killed, return_exceptions=True)
        await copy(plan(broker, aws))
        for key, values in values_by_key(aws).items():
            assert list(dict.fromkeys(values)) == [n for n in range(40) if f"key-{n % 5}" == key]

    scenario(steps)


def test_an_envelope_contains_the_origin_of_a_record() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        broker.create_topic("orders")
        with Producer(broker) as producer:
            producer.send("orders", b"\xff", key=b"k", headers=[("a", b"b")], timestamp_ms=7)
            producer.send("orders", None, key=b"gone", timestamp_ms=8)
        await copy(plan(broker, aws, envelope=True))
        found = sorted(
            (json.loads(r.data) for r in aws.kinesis.records("orders")), key=lambda r: r["offset"]
        )
        place = {"topic": "orders", "partition": 0}
        assert found == [
            {**place, "offset": 0, "timestamp_ms": 7, "key": "k", "value": "/w==",
             "value_encoding": "base64", "headers": [{"name": "a", "value": "b"}]},
            {**place, "offset": 1, "timestamp_ms": 8, "key": "gone", "value": None, "headers": []},
        ]  # fmt: skip

    scenario(steps)


def test_errors_name_a_remedy() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        with pytest.raises(ConfigError, match=r"no topic 'orders'.*headrace topic create orders"):
            await copy(plan(broker, aws))
        fill(broker, range(1))
        with pytest.raises(StreamNotFoundError, match="no stream 'other'"):
            await copy(plan(broker, aws, destination=place(aws, "other")))
        small = producing(aggregate=False, record_bytes=5)
        with pytest.raises(
            KinesisError, match=r"orders\[\d\]@0 cannot be copied.*group __bridge.back"
        ):
            await copy(plan(broker, aws, producing=small))

    scenario(steps)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"alice", "alice"),
        (None, "orders-3-9"),
        (b"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (b"\xff", "a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89"),
    ],
)
def test_keys_become_partition_keys(key: bytes | None, expected: str) -> None:
    assert partition_key_of(ConsumerRecord("orders", 3, 9, 0, key, b"", (), 0)) == expected
    long = ConsumerRecord("orders", 3, 9, 0, b"k" * 257, b"", (), 0)
    assert len(partition_key_of(long)) == 64


def test_records_of_a_lost_partition_are_not_copied() -> None:
    """(1) The bridge has polled records. (2) Its session ends. (3) Another process owns the partition, and copies."""

    async def steps(broker: Broker, aws: FakeAws) -> None:
        fill(broker, range(20))
        bridge = IntoStreamBridge(plan(broker, aws))
        options: dict[str, Any] = {
            "group": "bridge",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        async with (
            Consumer(broker, **options) as consumer,
            StreamProducer(place(aws).aws) as producer,
        ):
            await consumer.subscribe(["orders"])
            while not (records := await consumer.poll(1)):
                pass
            member = consumer._core._member
            assert member is not None
            member.lose("the session is over")
            await bridge._copy(consumer, producer, records)
            assert aws.kinesis.records("orders") == []
            assert bridge.progress.records == 0

    scenario(steps)


@pytest.mark.parametrize("doubted", [0, 7])
def test_no_record_is_skipped_if_the_bridge_keeps_a_partition_after_a_late_heartbeat(
    monkeypatch, doubted: int
) -> None:
    """(1) The session seems to end. (2) A late response shows that it has not. No other process copies them."""

    async def steps(broker: Broker, aws: FakeAws) -> None:
        broker.create_topic("orders", partitions=1)
        fill(broker, range(20))
        bridge = IntoStreamBridge(plan(broker, aws))
        options: dict[str, Any] = {
            "group": "bridge",
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
        }
        async with (
            Consumer(broker, **options) as consumer,
            StreamProducer(place(aws).aws) as producer,
        ):
            await consumer.subscribe(["orders"])
            while not (records := await consumer.poll(1)):
                pass
            answers = iter([True] * doubted + [False] + [True] * 100)
            monkeypatch.setattr(consumer, "owns", lambda _: next(answers))
            await bridge._copy(consumer, producer, records)
            assert len(aws.kinesis.records("orders")) == doubted
            while len(aws.kinesis.records("orders")) < 20:
                records = await consumer.poll(1)
                assert records, "the others were skipped"
                await bridge._copy(consumer, producer, records)
            assert bridge.progress.records == 20
            (committed,) = (await consumer.committed()).values()
            assert committed is not None
            assert committed.offset == 20

    scenario(steps)
