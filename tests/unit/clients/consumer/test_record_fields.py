"""Fields of a record besides its content: the type of its time, its size, its tags."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace.clients.consumer.records import ConsumerRecord, FetchedBatches
from headrace.clients.flows.fetch import FetchedPartition
from headrace.records.accel import kernels
from headrace.records.builder import build_batch
from headrace.stream_record import StreamRecord
from headrace.types import TopicPartition

TOPICS = {"by_producer": "CreateTime", "by_broker": "LogAppendTime"}
HEADERS = [("größe", b"12"), ("none", None)]
"""A header's key of five characters, two of which take two bytes, and a value of four."""
VALUE = b'{"id": 1}'
SIZE = len(b"key") + len(VALUE) + 7 + 2 + 4


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    with headrace.Broker() as broker, headrace.Producer(broker) as producer:
        for topic, kind in TOPICS.items():
            broker.create_topic(topic, configs={"message.timestamp.type": kind})
            producer.send(topic, VALUE, key=b"key", headers=HEADERS, timestamp_ms=1_000)
            producer.send(topic, None, tags=["new", "für-alle"])
        producer.flush()
        yield broker


def read(broker: headrace.Broker, topic: str, **options: Any) -> list[ConsumerRecord]:
    with headrace.Consumer(broker, auto_offset_reset="earliest", **options) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        found: list[ConsumerRecord] = []
        while len(found) < 2:
            found += consumer.poll(10)
    return found


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("serde", [None, "bytes", "str", "json"])
def test_a_blocking_consumer_sets_timestamp_type_size_and_tags(
    broker: headrace.Broker, topic: str, serde: str | None
) -> None:
    first, second = read(broker, topic, serde=serde)
    assert first.timestamp_type == second.timestamp_type == TOPICS[topic]
    assert (first.timestamp_ms == 1_000) is (first.timestamp_type == "CreateTime")
    assert first.size == SIZE
    assert first.tags == ()
    assert second.tags == ("new", "für-alle")
    assert second.size == 2 * len("headrace.tag") + len(b"new") + len("für-alle".encode())


@pytest.mark.parametrize("topic", TOPICS)
def test_the_asyncio_consumer_and_the_broker_set_timestamp_type_size_and_tags(
    broker: headrace.Broker, topic: str
) -> None:
    async def through_asyncio() -> ConsumerRecord:
        options: dict[str, Any] = {"auto_offset_reset": "earliest", "serde": "json"}
        async with headrace.aio.Consumer(broker, **options) as consumer:
            await consumer.assign([TopicPartition(topic, 0)])
            async for record in consumer:
                return record
        raise AssertionError

    in_process = broker.read(topic, 0, 0, 1, serde="json")
    for record in (asyncio.run(through_asyncio()), *in_process):
        assert record.value == {"id": 1}
        assert record.timestamp_type == TOPICS[topic]
        assert (record.size, record.tags) == (SIZE, ())


def test_a_worker_receives_timestamp_type_size_and_tags(broker: headrace.Broker) -> None:
    app = headrace.App(broker)
    told: list[tuple[str, int, tuple[str, ...]]] = []

    @app.worker("by_broker", group="g", auto_offset_reset="earliest")
    def handle(value: Any, context: headrace.Context) -> None:
        record = context.record
        told.append((record.timestamp_type, record.size, record.tags))

    with app.test(broker) as trial:
        trial.wait_idle()
    assert sorted(each[0] for each in told) == ["LogAppendTime"] * 2
    assert ("LogAppendTime", SIZE, ()) in told
    assert ("new", "für-alle") in {tags for _, _, tags in told}


def test_a_stream_record_has_timestamp_type_size_and_tags() -> None:
    record = StreamRecord("orders", 3, 9 << 24, 7, b"k", b"value", (), 1, "LogAppendTime")
    assert (record.size, record.tags, record.timestamp_type) == (6, (), "LogAppendTime")


def test_a_record_that_a_test_makes_has_a_size_if_its_content_is_bytes_or_text() -> None:
    record = ConsumerRecord("t", 0, 0, 0, "ä", b"vv", (), 0)
    assert record.size == 4
    assert record.timestamp_type == "CreateTime"
    with pytest.raises(TypeError, match="a record that was made with a dict has no size"):
        _ = ConsumerRecord("t", 0, 0, 0, None, {}, (), 0).size


def test_a_tag_that_is_no_text_is_shown_somehow() -> None:
    headers = (("headrace.tag", b"\xff"), ("headrace.tag", None), ("headrace.tag", b"ok"))
    assert ConsumerRecord("t", 0, 0, 0, None, None, headers, 0).tags == ("\ufffd", "ok")


@pytest.mark.skipif(kernels is None, reason="the accelerator is not installed")
def test_records_of_the_accelerator_are_not_tracked_by_the_garbage_collector() -> None:
    batch = build_batch([(b"k", b"v", (), 1)])
    batches = FetchedBatches(TopicPartition("t", 0), FetchedPartition(batch), check_crcs=True)
    found = batches.next_slice()
    assert found is not None
    assert not gc.is_tracked(found.records[0])
