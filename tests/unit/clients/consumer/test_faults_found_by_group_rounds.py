"""Faults that `tests/property/test_group_rounds.py` has found, each as a small test."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from headrace.clients.config import ClientConfig
from headrace.clients.consumer.blocking import Consumer
from headrace.clients.drivers import open_blocking_driver
from headrace.clients.flows.alter import create_partitions
from headrace.clients.producer.blocking import Producer
from headrace.embedded.broker import Broker
from headrace.embedded.clock import ManualClock
from headrace.errors import ApiError
from headrace.types import TopicPartition


@pytest.fixture
def broker():
    with Broker(clock=ManualClock()) as opened:
        opened.create_topic("t", partitions=2)
        yield opened


def add_partition(broker: Broker, count: int) -> None:
    driver = open_blocking_driver(broker, ClientConfig())
    outcome = driver.run(create_partitions(driver.engine.state, {"t": count}))
    driver.close()
    assert outcome == {"t": None}


def test_a_consumer_finds_partitions_that_were_added_since_it_asked(broker) -> None:
    with Consumer(broker, auto_offset_reset="earliest") as consumer:
        assert len(consumer.partitions_for("t")) == 2
        add_partition(broker, 3)
        broker.publish("t", b"x", partition=2)
        consumer.assign([TopicPartition("t", 2)])
        assert [record.value for record in consumer.poll(5)] == [b"x"]


def test_a_producer_finds_partitions_that_were_added_since_it_asked(broker) -> None:
    with Producer(broker) as producer:
        producer.send("t", b"x", partition=0).result()
        add_partition(broker, 3)
        assert producer.send("t", b"x", partition=2).result().partition == 2
        add_partition(broker, 4)
        assert producer.send("t", b"x", partition=3).result().partition == 3
        with pytest.raises(ApiError, match="no partition 4"):
            producer.send("t", b"x", partition=4)


def test_positions_that_cannot_be_found_do_not_keep_the_poll_from_its_time(broker) -> None:
    with Consumer(broker, auto_offset_reset="earliest", request_timeout_ms=500) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        broker.delete_topic("t")
        began_ms = broker.now_ms()
        with contextlib.suppress(ApiError):  # the topic may be reported as deleted as well
            assert consumer.poll(2.0) == []
        assert broker.now_ms() - began_ms <= 2_500


def test_a_process_that_stopped_for_longer_than_its_session_hands_out_nothing_unasked(
    broker,
) -> None:
    for number in range(20):
        broker.publish("t", b"%d" % number, partition=0)
    lost: list = []

    class Listener:
        def on_lost(self, partitions):
            lost.extend(partitions)

    options: dict[str, Any] = {
        "group": "g",
        "auto_offset_reset": "earliest",
        "session_timeout_ms": 10_000,
    }
    with Consumer(broker, **options) as stopped, Consumer(broker, **options) as other:
        stopped.subscribe(["t"], listener=Listener())
        assert [record.offset for record in stopped.poll(10, max_records=5)] == [0, 1, 2, 3, 4]
        stopped.commit()
        broker._runtime.clients.remove(stopped._driver)  # as SIGSTOP would
        broker.advance(15_000)
        other.subscribe(["t"])
        assert len(other.poll(10)) == 15
        other.commit()
        broker._runtime.clients.append(stopped._driver)
        assert stopped.poll(0.2) == [], "the fifteen that it had fetched are another's by now"
        assert TopicPartition("t", 0) in lost
