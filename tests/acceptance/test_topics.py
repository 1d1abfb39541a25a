"""A1 to A3: topics, the partitions and the storage of their records, and the serdes of their values."""

from __future__ import annotations

import dataclasses
import uuid
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec
import pydantic
import pytest

import headrace
from headrace import TopicPartition
from headrace.clients.partitioners import RoundRobin, partition_for_key
from headrace.errors import ApiError, SerializationError
from headrace.serdes.avro import AvroSerde
from headrace.storage.segment_files import ArraySegment
from tests.acceptance.place import Place, read_all, until
from tests.fixtures.processes import ServerProcess

PARTITIONS = 4


class VipFirst:
    """A strategy of the user's own."""

    def partition(self, key, value, available, count) -> int:
        return 0 if value.startswith(b"vip") else 1 + len(value) % (count - 1)


def sent(producer: headrace.Producer, topic: str, values, key=None) -> list[int]:
    futures = [producer.send(topic, value, key=key and key(value)) for value in values]
    producer.flush()
    return [future.result().partition for future in futures]


@pytest.mark.parametrize("strategy", ["round_robin", "key_hash", "sticky", "random", "own"])
def test_a1_records_are_distributed_by_the_strategy_that_is_chosen(place, name, strategy) -> None:
    topic = place.topic(name, PARTITIONS)
    chosen = VipFirst if strategy == "own" else strategy
    producer = place.producer(partitioner=chosen, linger_ms=20)
    values = [b"%d" % number for number in range(60)]
    if strategy == "round_robin":
        assert Counter(sent(producer, topic, values)) == dict.fromkeys(range(PARTITIONS), 15)
    elif strategy == "key_hash":
        expected = [partition_for_key(value, PARTITIONS) for value in values]
        assert sent(producer, topic, values, key=lambda value: value) == expected
    elif strategy == "sticky":
        assert len(set(sent(producer, topic, values[:5]))) == 1, "they share a batch"
    elif strategy == "random":
        assert set(sent(producer, topic, values * 4)) == set(range(PARTITIONS))
    else:
        assert sent(producer, topic, [b"vip 1", b"vip 2", b"abc"]) == [0, 0, 1]


def test_a1_there_are_many_topics_each_with_its_partitions(place, name) -> None:
    topics = {f"{name}-{count}": count for count in range(1, 9)}
    admin = place.admin()
    for topic, count in topics.items():
        admin.create_topic(topic, count)
    until(lambda: topics.keys() <= set(admin.topics()))
    assert {topic: len(admin.describe_topic(topic).partitions) for topic in topics} == topics


@pytest.mark.parametrize("storage", ["array", "linked", "files"])
def test_a2_storage_is_chosen_per_topic(headrace_place, name, tmp_path, storage) -> None:
    place = headrace_place
    if storage == "files" and place.name == "in process":  # files need a directory
        with headrace.Broker(tmp_path) as broker, closing(Place(place.name, broker)) as here:
            check_storage(here, name, storage)
        return
    if storage == "files" and place.name == "cluster":
        pytest.skip("the brokers of a test cluster keep their records in memory")
    check_storage(place, name, storage)


def check_storage(place: Place, name: str, storage: str) -> None:
    topic = place.topic(name, 2, storage=storage)
    place.fill(topic, range(50))
    consumer = place.consumer()
    consumer.assign(consumer.partitions_for(topic))
    assert {int(record.value) for record in read_all(consumer, 50)} == set(range(50))
    assert place.admin().configs(topic)["headrace.storage"].value == storage


def test_a2_a_topic_uses_a_storage_of_the_program(name) -> None:
    opened: list[ArraySegment] = []

    class Watched(ArraySegment):
        def __init__(self) -> None:
            super().__init__()
            opened.append(self)

    headrace.register_storage("watched", Watched)
    with headrace.Broker() as broker:
        broker.create_topic(name, storage="watched")
        broker.publish(name, b"x")
        assert [record.value for record in broker.read(name, 0, 0)] == [b"x"]
    assert opened


@dataclasses.dataclass
class Order:
    number: int
    who: str


class OrderStruct(msgspec.Struct):
    number: int
    who: str


class OrderModel(pydantic.BaseModel):
    number: int
    who: str


class Reversed:
    """A serde of the user's own."""

    def serialize(self, value: str) -> bytes:
        return value[::-1].encode()

    def deserialize(self, data: bytes) -> str:
        return data.decode()[::-1]


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "number", "type": "int"}, {"name": "who", "type": "string"}],
}
SERDES = {
    "bytes": ("bytes", b"\x00\xff"),
    "str": ("str", "Grüße"),
    "json": ("json", {"number": 1, "who": "alice"}),
    "dataclass": (Order, Order(1, "alice")),
    "msgspec": (OrderStruct, OrderStruct(1, "alice")),
    "pydantic": (OrderModel, OrderModel(number=1, who="alice")),
    "avro": (AvroSerde(SCHEMA), {"number": 1, "who": "alice"}),
    "own": (Reversed(), "alice"),
}


@pytest.mark.parametrize("serde", SERDES)
def test_a2_the_serde_of_the_topic_decodes_values(place, name, serde) -> None:
    topic = place.topic(name)
    given, value = SERDES[serde]
    place.producer(serde=given, key_serde="str").send(topic, value, key="k").result()
    consumer = place.consumer(serde=given, key_serde="str")
    consumer.assign([TopicPartition(topic, 0)])
    (record,) = read_all(consumer, 1)
    assert (record.key, record.value) == ("k", value)


def test_a3_every_client_obeys_strategy_and_serde_of_the_topics_metadata(
    headrace_place, name
) -> None:
    topic = headrace_place.topic(name, 3, partitioner="round_robin", serde="json", key_serde="str")
    producer = headrace_place.producer()
    where = [producer.send(topic, {"n": n}, key="k").result().partition for n in range(6)]
    assert where == [0, 1, 2, 0, 1, 2]
    consumer = headrace_place.consumer()
    consumer.assign(consumer.partitions_for(topic))
    records = read_all(consumer, 6)
    assert sorted(record.value["n"] for record in records) == list(range(6))
    assert {record.key for record in records} == {"k"}


def test_a3_options_of_a_client_take_precedence_over_the_topic(headrace_place, name) -> None:
    topic = headrace_place.topic(name, 3, partitioner="round_robin", serde="json")
    producer = headrace_place.producer(partitioner="key_hash", serde="bytes")
    where = {producer.send(topic, b"raw", key=b"k").result().partition for _ in range(6)}
    assert where == {partition_for_key(b"k", 3)}
    consumer = headrace_place.consumer()
    consumer.assign(consumer.partitions_for(topic))
    with pytest.raises(SerializationError, match=name):
        read_all(consumer, 1)


def test_a3_a_producer_over_tcp_uses_the_topics_partitioner_and_serde(name) -> None:
    with headrace.Broker() as broker:
        broker.create_topic("t", 3, partitioner="round_robin", serde="json")
        address = broker.listen()
        with headrace.Producer(address) as producer:
            assert [producer.send("t", {"n": n}).result().partition for n in range(3)] == [0, 1, 2]
        assert [broker.read("t", number, 0)[0].value for number in range(3)] == [
            {"n": number} for number in range(3)
        ]


def test_a3_the_state_of_a_partitioner_is_serializable(headrace_place, name) -> None:
    topic = headrace_place.topic(name, 3)
    strategy = RoundRobin()
    first = headrace_place.producer(partitioner=strategy)
    assert [first.send(topic, b"x").result().partition for _ in range(4)] == [0, 1, 2, 0]
    kept = strategy.dump()
    again = RoundRobin()
    again.load(kept)
    second = headrace_place.producer(partitioner=again)
    assert second.send(topic, b"x").result().partition == 1


def test_a3_the_state_of_a_partitioner_survives_a_restart(tmp_path: Path) -> None:
    where: list[int] = []
    for _ in range(3):
        with headrace.Broker(tmp_path) as broker:
            if not where:
                broker.create_topic("t", 3, partitioner="round_robin")
            where += [broker.publish("t", b"x").partition for _ in range(2)]
    assert where == [0, 1, 2, 0, 1, 2]


def test_a3_the_metadata_of_topics_survive_a_restart(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", log_path=tmp_path / "log")
    with server:
        with headrace.Admin(server.bootstrap) as admin:
            admin.create_topic("t", 3, partitioner="round_robin", serde="json")
        server.kill()
        server.start()
        with headrace.Producer(server.bootstrap) as producer:
            where = [producer.send("t", {"id": str(uuid.UUID(int=n))}) for n in range(3)]
            assert [future.result().partition for future in where] == [0, 1, 2]


@pytest.mark.java
def test_a3_other_brokers_refuse_metadata_that_they_do_not_know(kafka, name) -> None:
    with headrace.Admin(kafka) as admin, pytest.raises(ApiError, match=r"headrace\.serde"):
        admin.create_topic(name, 1, serde="json")
