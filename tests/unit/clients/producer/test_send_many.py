"""`send_many` does for many records what `send` does for each, with and without the accelerator."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from headrace.clients.producer.aio import Producer as AioProducer
from headrace.clients.producer.blocking import Producer
from headrace.clients.producer.blocking_delivery import DeliveryFuture
from headrace.embedded.broker import Broker
from headrace.errors import ApiError, ClosedError, ConfigError, ErrorCode, SerializationError
from headrace.records import builder
from headrace.types import TopicPartition
from tests.fixtures.accelerator import built_kernels
from tests.unit.clients.fake_broker import FakeCluster

T0 = TopicPartition("t", 0)


@pytest.fixture(params=["Python", "C"], autouse=True)
def both(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = built_kernels().RecordWriter if request.param == "C" else None
    monkeypatch.setattr(builder, "_FastWriter", writer)


def values(broker: Broker, partition: int = 0) -> list:
    return [record.value for record in broker.read("t", partition, 0, 10_000)]


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def topic(broker: Broker, partitions: int = 1, **options) -> None:
    broker.create_topic("t", partitions=partitions, **options)


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_records_arrive_in_order_and_each_knows_where(compression: str) -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        told: list[DeliveryFuture] = []
        with Producer(cluster.bootstrap, batch_size=300, compression=compression) as producer:
            sent = producer.send_many("t", numbers(1000), timestamp_ms=7, on_delivery=told.append)
            assert sent[999].result() == ("t", 0, 999, 7)
            producer.flush()
            assert [each.metadata().offset for each in sent] == list(range(1000))
            assert told == sent
            assert producer.delivered == 1000
        records = cluster.logs[T0].records()
        assert [(record.value, record.timestamp) for record in records] == [
            (number, 7) for number in numbers(1000)
        ]
        assert len(cluster.logs[T0].batches) > 10


def test_send_many_chooses_the_same_partitions_as_send() -> None:
    keys = [None if number % 5 == 0 else b"key-%d" % number for number in range(60)]
    headers = [("h", b"x"), ("n", None)]
    with Broker() as one, Broker() as other:
        for broker in (one, other):
            topic(broker, 4)
        with Producer(one, partitioner="round_robin") as producer:
            producer.send_many("t", numbers(60), keys=keys, headers=headers, timestamp_ms=5)
            producer.send_many("t", numbers(7), timestamp_ms=6)
        with Producer(other, partitioner="round_robin") as producer:
            for key, value in zip(keys, numbers(60), strict=True):
                producer.send("t", value, key=key, headers=headers, timestamp_ms=5)
            for value in numbers(7):
                producer.send("t", value, timestamp_ms=6)
        for partition in range(4):
            ours, theirs = (broker.read("t", partition, 0, 100) for broker in (one, other))
            assert [record[2:5] for record in ours] == [record[2:5] for record in theirs]
            assert len(ours) > 10


def test_keys_decide_and_keyless_records_share_batches() -> None:
    with Broker() as broker:
        topic(broker, 3)
        with Producer(broker, batch_size=500) as producer:
            keyed = producer.send_many("t", numbers(30), keys=[b"k"] * 30)
            keyless = producer.send_many("t", numbers(3_000))
            producer.flush()
        assert len({each.topic_partition for each in keyed}) == 1
        assert {each.topic_partition.partition for each in keyless} == {0, 1, 2}
        where = [each.topic_partition.partition for each in keyless]
        changes = sum(before != after for before, after in itertools.pairwise(where))
        assert changes < 300  # not one by one, but batch by batch


def test_send_many_writes_to_the_given_partition_and_refuses_a_missing_one() -> None:
    with Broker() as broker:
        topic(broker, 2)
        with Producer(broker) as producer:
            producer.send_many("t", numbers(5), partition=1)
            with pytest.raises(ApiError) as raised:
                producer.send_many("t", numbers(5), partition=2)
            assert raised.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (values(broker, 0), values(broker, 1)) == ([], numbers(5))


def test_a_value_that_is_nothing_to_the_serde_keeps_all_back() -> None:
    with Broker() as broker:
        topic(broker, serde="json")
        with Producer(broker) as producer:
            with pytest.raises(SerializationError, match="the value for topic 't'"):
                producer.send_many("t", [1, 2, object()])
            with pytest.raises(SerializationError, match="the key for topic 't'"):
                producer.send_many("t", [1, 2], keys=[b"k", 3])
            producer.send_many("t", [1, None, {"a": 2}])
        assert values(broker) == [1, None, {"a": 2}]


def test_a_record_that_is_too_large_is_refused_and_those_before_it_are_sent() -> None:
    with Broker() as broker:
        topic(broker)
        with Producer(broker, max_request_size=2000, batch_size=1000) as producer:
            with pytest.raises(ApiError) as raised:
                producer.send_many("t", [b"a", b"b", b"x" * 3000, b"c"])
            assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE
            producer.send("t", b"d")
        assert values(broker) == [b"a", b"b", b"d"]


def test_a_list_that_does_not_fit_into_the_buffer_is_sent_bit_by_bit() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        with Producer(cluster.bootstrap, batch_size=1000, buffer_memory=3000) as producer:
            most = 0
            work = producer._core.sender.work

            def watched() -> None:
                nonlocal most
                most = max(most, producer._core.sender.buffered)
                work()

            producer._core.sender.work = watched  # type: ignore[method-assign]  # to look inside
            producer.send_many("t", numbers(3000))
            assert 3000 < most < 6000
        assert [record.value for record in cluster.logs[T0].records()] == numbers(3000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"values": b"bytes"}, "values are a list, one for each record, not b'bytes'"),
        ({"values": "text"}, "values are a list"),
        ({"values": 5}, "values are a list"),
        ({"values": [b"v"], "keys": b"k"}, "keys are a list"),
        ({"values": [b"v"], "keys": []}, "0 keys for 1 values"),
        ({"values": [b"v"], "timestamp_ms": "now"}, "timestamp_ms is a whole number"),
        ({"values": [b"v"], "timestamp_ms": 1.5}, "timestamp_ms is a whole number"),
        ({"values": [b"v"], "timestamp_ms": 2**63}, "timestamp_ms is a number of 64 bits"),
        ({"values": [b"v"], "headers": [1]}, "headers are pairs"),
    ],
)
def test_wrong_use_is_named(arguments: dict, message: str) -> None:
    with Broker() as broker:
        topic(broker)
        with Producer(broker) as producer, pytest.raises(ConfigError, match=message):
            producer.send_many("t", **arguments)
        assert values(broker) == []


def test_a_time_that_no_record_can_have_is_refused_by_send() -> None:
    with Broker() as broker:
        topic(broker)
        with Producer(broker) as producer:
            with pytest.raises(ConfigError, match="timestamp_ms is a number of 64 bits"):
                producer.send("t", b"v", timestamp_ms=2**63)
            producer.send("t", b"w").result(5)
        assert values(broker) == [b"w"]


def test_send_many_accepts_an_empty_list_and_fails_after_close() -> None:
    with Broker() as broker:
        topic(broker)
        with Producer(broker) as producer:
            assert producer.send_many("t", []) == []
            producer.send_many("t", (value for value in numbers(3)))
        with pytest.raises(ClosedError):
            producer.send_many("t", numbers(3))
        assert values(broker) == numbers(3)


def test_the_same_with_asyncio() -> None:
    async def program(bootstrap: str) -> None:
        async with AioProducer(bootstrap, batch_size=1000, buffer_memory=3000) as producer:
            sent = await producer.send_many("t", numbers(2000), timestamp_ms=9)
            assert await sent[1999] == ("t", 0, 1999, 9)
            for _ in range(10):
                await producer.send_many("t", numbers(100), keys=[b"k"] * 100)

    with FakeCluster(topics={"t": 1}) as cluster:
        asyncio.run(program(cluster.bootstrap))
        found = [record.value for record in cluster.logs[T0].records()]
        assert found == numbers(2000) + 10 * numbers(100)
