"""C11: delayed and scheduled messages."""

from __future__ import annotations

import time

from headrace import TopicPartition
from tests.acceptance.place import read_all


def test_c11_a_scheduled_record_is_delivered_when_it_is_due(headrace_place, name) -> None:
    topic = headrace_place.topic(name, configs={"headrace.delay.enable": "true"})
    producer = headrace_place.producer()
    start_ms = time.time_ns() // 1_000_000
    producer.send(topic, b"3", delay_ms=900)
    producer.send(topic, b"2", deliver_at_ms=start_ms + 600)
    producer.send(topic, b"1")
    producer.send_many(topic, [b"4", b"5"], deliver_at_ms=start_ms + 1500)
    producer.flush()
    consumer = headrace_place.consumer()
    consumer.assign({TopicPartition(topic, 0): 0})
    came: list[tuple[bytes, float]] = []
    while len(came) < 5:
        came += ((record.value, time.time() * 1000) for record in read_all(consumer, 1))
    assert [value for value, _ in came] == [b"1", b"2", b"3", b"4", b"5"]
    for (_, at_ms), delay_ms in zip(came[1:], (600, 900, 1500, 1500), strict=True):
        assert at_ms >= start_ms + delay_ms - 2


def test_c11_scheduled_records_do_not_delay_other_records(headrace_place, name) -> None:
    topic = headrace_place.topic(name, configs={"headrace.delay.enable": "true"})
    producer = headrace_place.producer()
    for number in range(40):  # a consumer passes over forty places without a record
        producer.send(topic, b"never", delay_ms=3_600_000)
        producer.flush()
        if number % 20 == 19:
            producer.send(topic, b"%d" % number)
            producer.flush()
    consumer = headrace_place.consumer()
    consumer.assign({TopicPartition(topic, 0): 0})
    assert [record.value for record in read_all(consumer, 2)] == [b"19", b"39"]
