"""An embedded broker: topics, records with and without clients, a manual clock, and data after a restart."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace.clients.producer.blocking import Producer
from headrace.embedded.broker import Broker
from headrace.embedded.clock import START_MS, ManualClock
from headrace.errors import ApiError, ClosedError, ConfigError, ErrorCode, SerializationError


@pytest.fixture
def broker():
    with Broker(clock=ManualClock()) as opened:
        yield opened


def test_a_record_is_published_and_read(broker) -> None:
    broker.create_topic("orders", partitions=2, serde="json", key_serde="str")
    where = broker.publish("orders", {"id": 1}, key="alice", headers=[("h", b"x")], partition=1)
    assert where == ("orders", 1, 0, START_MS)
    [record] = broker.read("orders", 1, 0)
    assert (record.key, record.value, record.headers) == ("alice", {"id": 1}, (("h", b"x"),))
    assert broker.read("orders", 0, 0) == []


def test_a_range_is_read_across_batches(broker) -> None:
    broker.create_topic("t")
    for number in range(10):
        broker.publish("t", b"%d" % number)
    assert [record.value for record in broker.read("t", 0, 3, 4)] == [b"3", b"4", b"5", b"6"]
    with pytest.raises(ApiError) as raised:
        broker.read("t", 0, 11)
    assert raised.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    with pytest.raises(ApiError):
        broker.read("t", 1, 0)


def test_every_producer_uses_the_partitioner_and_serde_of_the_topic(broker) -> None:
    broker.create_topic("turns", partitions=3, partitioner="round_robin", serde="str")
    with Producer(broker) as producer:
        sent = [producer.send("turns", "x", key=b"same") for _ in range(6)]
        assert [each.result().partition for each in sent] == [0, 1, 2, 0, 1, 2]
        with pytest.raises(SerializationError, match="turns"):
            producer.send("turns", b"bytes")
    with Producer(broker, partitioner="key_hash", serde="bytes") as other:
        assert (
            len({other.send("turns", b"x", key=b"same").result().partition for _ in range(6)}) == 1
        )


def test_a_topic_cannot_name_an_unknown_partitioner_or_serde(broker) -> None:
    with pytest.raises(ConfigError, match="nobody's"):
        broker.create_topic("t", partitioner="nobody's")
    broker.create_topic("t", configs={"headrace.partitioner": "nobody's"})
    with pytest.raises(ConfigError, match="nobody's"):
        broker.publish("t", b"x")
    assert broker.publish("t", b"x", partition=0).offset == 0


def test_topics_are_listed_and_deleted(broker) -> None:
    broker.create_topic("b")
    broker.create_topic("a")
    with pytest.raises(ApiError):
        broker.create_topic("a")
    assert broker.topics() == ["a", "b"]
    broker.delete_topic("a")
    assert broker.topics() == ["b"]


def test_data_in_a_directory_survives_a_restart(tmp_path) -> None:
    with Broker(tmp_path) as first:
        first.create_topic("t", serde="json")
        first.publish("t", [1, 2])
    with Broker(tmp_path) as second:
        assert [record.value for record in second.read("t", 0, 0)] == [[1, 2]]


def test_calls_of_a_closed_broker_raise_closed_error() -> None:
    broker = Broker()
    producer = Producer(broker)
    broker.close()
    broker.close()
    with pytest.raises(ClosedError):
        broker.topics()
    with pytest.raises(ClosedError):
        producer.send("t", b"x")


def test_callbacks_get_the_deliveries(broker) -> None:
    broker.create_topic("t")
    told: list = []
    with Producer(broker) as producer:
        for number in range(5):
            producer.send("t", b"%d" % number, on_delivery=told.append)
        producer.flush()
        assert [each.metadata().offset for each in told] == list(range(5))


def test_a_broker_in_memory_loads_no_slow_module() -> None:
    """Modules that take long to import (event loops, sockets, SQLite, clients) are imported with their first use."""
    script = """
import sys, time, headrace
headrace.Broker  # loads it
began = time.process_time()
headrace.Broker()
print(time.process_time() - began < 0.05)
heavy = {"asyncio", "sqlite3", "ssl", "concurrent.futures.thread", "uvloop", "pyspark", "fastavro", "pydantic"}
heavy |= {"headrace.clients.consumer.core", "headrace.clients.producer.core", "headrace.clients.admin.core"}
heavy |= {
    "headrace.clients.network.pool", "headrace.server.hub", "headrace.embedded.listening", "headrace.storage.os_files"
}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["True", "[]"], done.stderr
