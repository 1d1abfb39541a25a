"""The round-robin turn of a topic is one state for all producers, over restarts, crashes and processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from headrace import aio
from headrace.clients.partitioners import register_partitioner
from headrace.clients.producer.blocking import Producer
from headrace.embedded.broker import Broker
from headrace.embedded.shared_partitioners import PARTITIONERS
from headrace.types import TopicPartition
from tests.fixtures.metadata_stores import stored


class Alternating:
    """A strategy of the user's own, with a state that cannot be counted."""

    def __init__(self, choose=None) -> None:
        self.last = 2

    def partition(self, key, value, available, count) -> int:
        self.last = 0 if self.last else 2
        return self.last

    def dump(self) -> bytes:
        return b"%d" % self.last

    def load(self, state: bytes) -> None:
        self.last = int(state)


@pytest.fixture(autouse=True)
def registered() -> None:
    register_partitioner("alternating", Alternating)


def send(target, count: int, **options) -> list[int]:
    with Producer(target, **options) as producer:
        return [producer.send("t", b"x").result().partition for _ in range(count)]


def test_producers_of_one_process_share_the_position() -> None:
    with Broker() as broker:
        broker.create_topic("t", 3, partitioner="round_robin")
        with Producer(broker) as one, Producer(broker) as other:
            sent = [each.send("t", b"x").result().partition for each in (one, other, one, other)]
        assert sent == [0, 1, 2, 0]
        assert broker.publish("t", b"x").partition == 1

        async def main() -> int:
            async with aio.Producer(broker) as producer:
                return (await (await producer.send("t", b"x"))).partition

        assert asyncio.run(main()) == 2
        assert send(broker, 2, partitioner="round_robin") == [0, 1], "its own option has precedence"
        assert broker.publish("t", b"x").partition == 0


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [("round_robin", [1, 2, 0, 1], [2, 0]), ("alternating", [0, 2, 0], [2, 0])],
)
def test_the_position_survives_a_restart(tmp_path, name, first, second) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t", 3, partitioner=name)
        if name == "round_robin":
            with Producer(broker, partitioner="random") as other:
                other.send("t", b"counts too").result()
            broker.truncate("t")
        assert send(broker, 1) == first[:1]
    with Broker(tmp_path) as broker:
        assert send(broker, len(first) - 1) == first[1:]
    with Broker(tmp_path) as broker:
        assert send(broker, 2) == second


def test_a_partitioner_counts_the_written_records_after_a_crash(tmp_path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t", 3, partitioner="round_robin")
        assert send(broker, 1) == [0]
    script = """
import os, sys, headrace
broker = headrace.Broker(sys.argv[1])
print([broker.publish("t", b"x").partition for _ in range(4)], flush=True)
os._exit(1)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[1, 2, 0, 1]\n", done.stderr
    with Broker(tmp_path) as broker:
        assert send(broker, 2) == [2, 0]


def test_a_producer_elsewhere_begins_where_the_topic_is() -> None:
    with Broker() as broker:
        broker.create_topic("t", 3, partitioner="round_robin")
        address = broker.listen()
        assert send(broker, 2) == [0, 1]
        assert send(address, 1) == [2]
        assert send(address, 2) == [0, 1]
        assert send(address, 1, partitioner="round_robin") == [2]


@pytest.mark.slow
def test_the_states_of_more_topics_than_fit_into_a_commit_are_stored(tmp_path) -> None:
    topics = [f"t{number}" for number in range(101)]
    with Broker(tmp_path) as broker:
        for topic in topics:
            broker.create_topic(topic, 3, partitioner="alternating")
        with Producer(broker) as producer:
            sent = [producer.send(topic, b"x") for topic in topics]
            assert {each.result().partition for each in sent} == {0}
    with Broker(tmp_path) as broker:
        assert len(stored(broker._stores.metadata, PARTITIONERS)) == len(topics)


def test_the_stored_state_is_deleted_with_its_topic_and_its_partitioner(tmp_path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t", 3, partitioner="alternating")
        assert send(broker, 1) == [0]
    with Broker(tmp_path) as broker:
        assert len(stored(broker._stores.metadata, PARTITIONERS)) == 1
        broker.alter_configs("t", {"headrace.partitioner": "round_robin"})
        assert send(broker, 2) == [1, 2]
        broker.delete_topic("t")
        broker.create_topic("t", 3, partitioner="round_robin")
        with Producer(broker) as producer:
            assert producer.send("t", b"x").result().partition == 0
    with Broker(tmp_path) as broker:
        assert len(stored(broker._stores.metadata, PARTITIONERS)) == 1
        broker.delete_topic("t")
        broker.create_topic("other", partitioner="round_robin")
        broker.publish("other", b"x")
        broker.delete_topic("other")
    with Broker(tmp_path) as broker:
        assert not stored(broker._stores.metadata, PARTITIONERS)


def test_a_strategy_that_cannot_be_dumped_does_not_keep_a_broker_from_closing(
    tmp_path, caplog
) -> None:
    class Broken(Alternating):
        def dump(self) -> bytes:
            raise KeyError("mine")

    register_partitioner("broken", Broken)
    with Broker(tmp_path) as broker:
        broker.create_topic("t", 3, partitioner="broken")
        assert send(broker, 1) == [0]
    assert "partitioners_not_kept" in caplog.text
    assert (tmp_path / "clean_shutdown").exists()


def test_topics_grow_and_are_described(tmp_path) -> None:
    with Broker(tmp_path) as broker:
        broker.create_topic("t", 1, configs={"retention.ms": "1000"})
        broker.add_partitions("t", 3)
        assert len(broker.describe_topic("t").partitions) == 3
        assert broker.publish("t", b"x", partition=2).partition == 2
        assert broker.configs("t")["retention.ms"].value == "1000"
        broker.alter_configs("t", {"retention.ms": None})
        assert broker.configs("t")["retention.ms"].value == "1209600000"
        assert broker.truncate("t")[TopicPartition("t", 2)] == 1


def test_a_broker_that_could_not_be_opened_can_be_opened_again(tmp_path) -> None:
    with pytest.raises(Exception, match=r"no\.such"):
        Broker(tmp_path, configs={"no.such": "1"})
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=other\nnode.id=1\n")
    with pytest.raises(Exception, match="another"):
        Broker(tmp_path)
    (tmp_path / "meta.properties").unlink()
    Broker(tmp_path).close()
