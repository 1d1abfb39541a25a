"""A stream is copied into a topic once: over splits and merges, stops and starts, with leases and without."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from headrace import Admin
from headrace.clients.consumer.records import ConsumerRecord
from headrace.core.lease.checkpoint import TRIM_HORIZON, at_timestamp
from headrace.errors import ConfigError, HeadraceError, StreamNotFoundError, TransportError
from headrace.kinesis.aggregation.encoding import Aggregate
from headrace.kinesis.bridge.into_topic import IntoTopic, IntoTopicBridge
from headrace.kinesis.bridge.names import StreamPlace, bridge_name, parse_stream
from headrace.kinesis.bridge.positions import BridgePositions
from headrace.kinesis.client.settings import AwsSettings
from headrace.kinesis.reading.settings import ReadSettings
from headrace.testing import ApiKey, Broker, error
from headrace.testing.clock import LeapingClock
from headrace.testing.kinesis import FakeAws, Limits
from tests.integration.kinesis.bridge.harness import committed_records

Tell = Callable[[Broker, FakeAws], Awaitable[None]]


class SlowClock(LeapingClock):
    """The process's clock, set back by a duration until it leaps ahead."""

    def __init__(self, behind_ms: int) -> None:
        super().__init__()
        self._leapt_ns = -behind_ms * 1_000_000


def scenario(steps: Tell) -> None:
    async def run() -> None:
        async with FakeAws(limits=Limits().unthrottled()) as aws:
            aws.kinesis.create_stream("orders", 2)
            with Broker() as broker:
                broker.create_topic("orders", partitions=2)
                await steps(broker, aws)

    asyncio.run(run())


def plan(broker: Broker, aws: FakeAws, **changes: Any) -> IntoTopic:
    place = StreamPlace(
        changes.pop("stream", "orders"),
        AwsSettings(
            endpoint_url=aws.endpoint_url,
            region=aws.region,
            access_key_id="fake",
            secret_access_key="fake",
        ),
    )
    options = {"topic": "orders", "name": "copy", "once": True, **changes}
    return IntoTopic(source=place, target=broker, reading=ReadSettings(poll_ms=200), **options)


async def copy(plan: IntoTopic) -> int:
    bridge = IntoTopicBridge(plan)
    await bridge.run(asyncio.Event())
    return bridge.progress.records


def put(aws: FakeAws, numbers: range) -> None:
    for number in numbers:
        aws.kinesis.put("orders", b"%d" % number, f"key-{number % 7}")


def check_once(records: Sequence[ConsumerRecord], numbers: range) -> None:
    for each in range(7):
        values = [int(record.value) for record in records if record.key == b"key-%d" % each]
        assert values == [number for number in numbers if number % 7 == each]


def test_each_record_is_copied_once_over_a_split_a_merge_and_restarts() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        put(aws, range(30))
        assert await copy(plan(broker, aws)) == 30
        aws.kinesis.split("orders", "shardId-000000000000")
        put(aws, range(30, 60))
        assert await copy(plan(broker, aws)) == 30
        first, second, *_ = [shard.name for shard in aws.kinesis.shards("orders", only_open=True)]
        aws.kinesis.merge("orders", first, second)
        put(aws, range(60, 90))
        assert await copy(plan(broker, aws)) == 30
        assert await copy(plan(broker, aws)) == 0
        check_once(await committed_records(broker, "orders"), range(90))

    scenario(steps)


def test_user_records_of_an_aggregate_are_copied_separately() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        aws.kinesis.create_stream("one", 1)
        whole = Aggregate(1_000)
        for number in range(3):
            assert whole.add(f"key-{number}", None, b"%d" % number)
        aws.kinesis.put("one", whole.encode(), "any")
        assert await copy(plan(broker, aws, stream="one")) == 3
        found = await committed_records(broker, "orders")
        assert sorted((record.key, record.value) for record in found) == [
            (b"key-0", b"0"),
            (b"key-1", b"1"),
            (b"key-2", b"2"),
        ]
        assert sorted(str(dict(r.headers)["kinesis.sub_sequence"]) for r in found) == [
            "b'0'",
            "b'1'",
            "b'2'",
        ]

    scenario(steps)


def test_a_bridge_without_once_copies_new_records_until_it_is_stopped() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        stopping = asyncio.Event()
        running = asyncio.ensure_future(
            IntoTopicBridge(plan(broker, aws, once=False)).run(stopping)
        )
        put(aws, range(20))
        await asyncio.to_thread(broker.wait_for, topic="orders", records=20)
        stopping.set()
        await running
        put(aws, range(20, 30))
        await copy(plan(broker, aws))
        check_once(await committed_records(broker, "orders"), range(30))

    scenario(steps)


async def running_into(
    broker: Broker, aws: FakeAws, change: Callable[[], object], **changes: Any
) -> None:
    """Run a bridge until it ends or has copied twenty records. Call `change` after ten records."""
    put(aws, range(10))
    bridge, stopping = IntoTopicBridge(plan(broker, aws, once=False, **changes)), asyncio.Event()
    running = asyncio.ensure_future(bridge.run(stopping))
    async with asyncio.timeout(20):
        while bridge.progress.records < 10:
            await asyncio.wait([running], timeout=0.05)
        change()
        while bridge.progress.records < 20 and not running.done():
            await asyncio.wait([running], timeout=0.05)
    stopping.set()
    await running


def test_partitions_may_be_added_while_a_bridge_runs() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        def grow() -> None:
            with Admin(broker) as admin:
                admin.add_partitions("orders", 5)
            put(aws, range(10, 20))

        await running_into(broker, aws, grow)
        values = sorted(int(one.value) for one in await committed_records(broker, "orders"))
        assert values == list(range(20))

    scenario(steps)


def test_a_deleted_topic_is_reported_and_not_created_again() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        def delete() -> None:
            broker.delete_topic("orders")
            put(aws, range(10, 20))

        with pytest.raises(ConfigError, match=r"no topic 'orders'.*headrace topic create orders"):
            await running_into(broker, aws, delete, properties={"max_block_ms": 500})
        assert "orders" not in broker.topics()

    scenario(steps)


def test_a_stream_that_is_created_again_is_a_different_stream() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        def create_again() -> None:
            aws.kinesis.call("DeleteStream", StreamName="orders")
            aws.advance(5_000)
            aws.kinesis.create_stream("orders", 2)
            put(aws, range(10, 20))

        with pytest.raises(StreamNotFoundError, match="was deleted and created again"):
            await running_into(broker, aws, create_again)
        assert await copy(plan(broker, aws)) == 10, "the new one, by a bridge that is started again"
        check_once(await committed_records(broker, "orders"), range(20))

    scenario(steps)


def test_records_of_ten_megabytes_and_of_zero_bytes_are_copied() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        broker.create_topic("large", configs={"max.message.bytes": str(11 << 20)})
        arn = aws.kinesis.create_stream("large", 2)
        aws.kinesis.call("UpdateMaxRecordSize", StreamARN=arn, MaxRecordSizeInKiB=10_240)
        aws.kinesis.put("large", bytes((10 << 20) - 1), "k", explicit_hash_key=0)
        aws.kinesis.put("large", b"", "k", explicit_hash_key=1 << 127)
        assert await copy(plan(broker, aws, stream="large", topic="large")) == 2
        found = await committed_records(broker, "large")
        assert {one.value if not one.value else len(one.value) for one in found} == {
            b"",
            (10 << 20) - 1,
        }

    scenario(steps)


def test_the_start_position_applies_to_the_first_run_only() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        put(aws, range(10))
        aws.advance(60_000)
        start = at_timestamp(aws.clock.now_ms())
        put(aws, range(10, 20))
        assert await copy(plan(broker, aws, start=start)) == 10
        assert await copy(plan(broker, aws, start=TRIM_HORIZON)) == 0
        check_once(await committed_records(broker, "orders"), range(10, 20))

    scenario(steps)


def test_latest_is_the_time_of_the_first_start() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        put(aws, range(10))
        aws.advance(60_000)
        assert await copy(plan(broker, aws, start=None)) == 0
        aws.advance(60_000)
        put(aws, range(10, 20))
        assert await copy(plan(broker, aws, start=None)) == 10
        check_once(await committed_records(broker, "orders"), range(10, 20))

    scenario(steps)


def test_latest_is_never_later_than_the_copied_records_even_if_their_shards_expired() -> None:
    hour_ms = 3_600_000

    async def run() -> None:
        async with FakeAws(limits=Limits().unthrottled(), clock=SlowClock(26 * hour_ms)) as aws:
            aws.kinesis.create_stream("orders", 1)
            with Broker() as broker:
                broker.create_topic("orders")
                put(aws, range(10))
                assert await copy(plan(broker, aws)) == 10
                aws.kinesis.split("orders", "shardId-000000000000")
                aws.advance(20 * hour_ms)
                put(aws, range(10, 20))
                aws.advance(6 * hour_ms)
                assert len(aws.kinesis.shards("orders")) == 2
                assert await copy(plan(broker, aws, start=None)) == 10
                check_once(await committed_records(broker, "orders"), range(20))

    asyncio.run(run())


def test_a_bridge_reads_its_positions_from_slow_brokers() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        put(aws, range(10))
        assert await copy(plan(broker, aws)) == 10
        positions = BridgePositions(broker, "copy", {}, 10)
        poll, empty = positions._consumer.poll, 3

        async def slow_poll(timeout_s: float = 1.0, max_records: int | None = None) -> Any:
            nonlocal empty
            empty -= 1
            return [] if empty >= 0 else await poll(timeout_s, max_records)

        positions._consumer.poll = slow_poll  # type: ignore[method-assign]  # that is the test
        await positions.open()
        shards = {key.rpartition("/")[2] for key in positions._found if key.count("/") == 1}
        assert shards == {"shardId-000000000000", "shardId-000000000001"}
        await positions.close()

    scenario(steps)


def test_the_error_for_unreadable_positions_contains_the_reason() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        put(aws, range(10))
        assert await copy(plan(broker, aws)) == 10
        positions = BridgePositions(broker, "copy", {}, 1)
        with (
            broker.faults.on(ApiKey.FETCH, error("KAFKA_STORAGE_ERROR")),
            pytest.raises(
                TransportError, match=r"read up to offset 0 of .* 1 s.*last error: .*free space"
            ),
        ):
            await positions.open()
        await positions.close()

    scenario(steps)


def test_one_of_two_bridges_with_one_name_but_two_lease_stores_ends() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        stopping = asyncio.Event()
        both = [
            asyncio.ensure_future(IntoTopicBridge(plan(broker, aws, once=False)).run(stopping))
            for _ in range(2)
        ]
        sent = 0
        while not any(each.done() for each in both):
            put(aws, range(sent, sent + 7))
            sent += 7
            await asyncio.wait(both, timeout=0.1)
        stopping.set()
        ended = await asyncio.gather(*both, return_exceptions=True)
        [error] = filter(None, ended)
        assert isinstance(error, ConfigError)
        assert "another bridge of the name 'copy' has taken" in str(error)
        assert "--leases" in str(error)
        await copy(plan(broker, aws))
        check_once(await committed_records(broker, "orders"), range(sent))

    scenario(steps)


def test_a_bridge_that_fails_in_every_shard_ends_at_once() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        broker.create_topic("small", partitions=2, configs={"max.message.bytes": "1000"})
        aws.kinesis.reshard("orders", 4)
        for shard in aws.kinesis.shards("orders", only_open=True):
            aws.kinesis.put("orders", bytes(2_000), "k", explicit_hash_key=shard.hash_range.first)
        async with asyncio.timeout(20):
            with pytest.raises(HeadraceError, match=r"raise its max\.message\.bytes"):
                await copy(plan(broker, aws, topic="small", once=False))

    scenario(steps)


def test_errors_name_a_remedy() -> None:
    async def steps(broker: Broker, aws: FakeAws) -> None:
        with pytest.raises(ConfigError, match=r"no topic 'absent'.*headrace topic create absent"):
            await copy(plan(broker, aws, topic="absent"))
        with pytest.raises(StreamNotFoundError, match="no stream 'absent'"):
            await copy(plan(broker, aws, stream="absent"))
        with pytest.raises(ConfigError, match="is not the URL of a lease store"):
            await copy(plan(broker, aws, leases="redis://x", once=False))
        with pytest.raises(ConfigError, match="once works in one process only"):
            await copy(plan(broker, aws, leases="memory://x"))
        broker.create_topic("__bridge.forgetful", configs={"cleanup.policy": "delete"})
        with pytest.raises(ConfigError, match=r"__bridge\.forgetful has cleanup\.policy=delete"):
            await copy(plan(broker, aws, name="forgetful"))

    scenario(steps)


def test_urls_of_streams_are_parsed() -> None:
    place = parse_stream("kinesis://orders?region=eu-central-1&endpoint_url=http://127.0.0.1:4567")
    assert (place.name, place.aws.region, place.aws.endpoint_url) == (
        "orders",
        "eu-central-1",
        "http://127.0.0.1:4567",
    )
    arn = "arn:aws:kinesis:eu-central-1:123456789012:stream/orders"
    assert parse_stream(f"kinesis://{arn}").name == "orders"
    for text, expected in [
        ("kinesis://", "contains no stream"),
        ("kinesis://orders?access_key=a", "keys come from the environment"),
        ("kinesis://orders?region", "behind the question mark"),
        ("kinesis://arn:aws:s3:::x", "is not the ARN of a stream"),
    ]:
        with pytest.raises(ConfigError, match=expected):
            parse_stream(text)
    assert bridge_name(None, "orders", "a topic") == "orders.a-topic"
    with pytest.raises(ConfigError, match="too long for a bridge's name: choose a name"):
        # A shortened name could be the name of another bridge, too.
        bridge_name(None, "orders" * 20, "orders" * 20)
    with pytest.raises(ConfigError, match="use a-z, A-Z"):
        bridge_name("a/b", "orders", "topic")
