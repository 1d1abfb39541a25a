"""A15 and C11: records that expire, and readers that choose by tags."""

from __future__ import annotations

import time

import pytest

from headrace import TopicPartition
from tests.acceptance.place import PATIENCE_S, Member, read_all, until


def test_a15_a_record_may_have_a_time_to_live(headrace_place, name) -> None:
    topic = headrace_place.topic(name, configs={"headrace.ttl.enable": "true"})
    producer = headrace_place.producer()
    producer.send(topic, b"1", ttl_ms=300)
    producer.send(topic, b"2")
    producer.send(topic, b"3", ttl_ms=3_600_000)
    producer.flush()
    expired_at = time.monotonic() + 0.4
    there = headrace_place.consumer()
    there.assign({TopicPartition(topic, 0): 0})
    while time.monotonic() < expired_at:
        there.poll(0.05)
    late = Member(headrace_place, name, [topic])
    until(lambda: len(late.numbers) >= 2, late)
    assert late.numbers == [2, 3]
    assert late.consumer.end_offsets([TopicPartition(topic, 0)])[TopicPartition(topic, 0)] == 3


@pytest.mark.parametrize("filters", ["true", "false"])
def test_c11_a_consumer_gets_the_records_with_its_tags(headrace_place, name, filters) -> None:
    topic = headrace_place.topic(name, 2, configs={"headrace.filter.enable": filters})
    producer = headrace_place.producer(compression="zstd")
    for number in range(200):
        tags = ["rare"] if number % 50 == 0 else ["common", f"t{number % 3}"]
        producer.send(topic, b"%d" % number, partition=number % 2, tags=tags)
    producer.flush()
    rare = Member(headrace_place, f"{name}-rare", [topic], tags={"rare"})
    two = Member(headrace_place, f"{name}-two", [topic], tags=["t0", "t1"])
    until(lambda: len(rare.numbers) >= 4, rare)
    assert sorted(rare.numbers) == [0, 50, 100, 150]
    wanted = [number for number in range(200) if number % 50 and number % 3 != 2]
    until(lambda: len(two.numbers) >= len(wanted), two)
    assert sorted(two.numbers) == wanted
    ends = {TopicPartition(topic, number): 100 for number in range(2)}
    deadline = time.monotonic() + PATIENCE_S
    while rare.consumer.positions() != ends:
        assert time.monotonic() < deadline
        rare.poll()
    assert rare.consumer.end_offsets(list(ends)) == ends


def test_c11_a_consumer_without_tags_gets_all_records(headrace_place, name) -> None:
    topic = headrace_place.topic(name, configs={"headrace.filter.enable": "true"})
    producer = headrace_place.producer()
    producer.send_many(topic, [b"1", b"2"], tags=["a"])
    producer.flush()
    consumer = headrace_place.consumer()
    consumer.assign({TopicPartition(topic, 0): 0})
    records = read_all(consumer, 2)
    assert [record.headers for record in records] == [(("headrace.tag", b"a"),)] * 2
