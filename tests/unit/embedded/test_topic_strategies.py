"""Partitioners and serdes in a topic's metadata, with parameters: names, classes and objects, in every process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import headrace
from headrace import aio
from headrace.clients.blocking import BlockingClient, NewTopic
from headrace.clients.partitioners import PARTITIONERS
from headrace.errors import ApiError, ConfigError, ErrorCode, HeadraceError
from headrace.registers import PARAMETERS_LIMIT, Register
from headrace.serdes.avro import AvroSerde, RegistryAvroSerde, SchemaRegistry
from headrace.serdes.serde import SERDES, resolve_serde

SCHEMA = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
LONGER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}


class Modulo:
    """A partitioner with a parameter and a state."""

    def __init__(self, modulus: int, first: int = 0) -> None:
        self.parameters = {"modulus": modulus, "first": first}
        self.sent = 0

    def partition(self, key: object, value: object, available: object, count: int) -> int:
        self.sent += 1
        return (self.parameters["first"] + self.sent) % self.parameters["modulus"] % count

    def dump(self) -> bytes:
        return b"%d" % self.sent

    def load(self, state: bytes) -> None:
        self.sent = int(state)


class Shifted:
    """A serde with a parameter."""

    def __init__(self, by: int = 1) -> None:
        self.by = by

    def serialize(self, value: str) -> bytes:
        return bytes(each + self.by for each in value.encode())

    def deserialize(self, data: bytes) -> str:
        return bytes(each - self.by for each in data).decode()


@pytest.fixture(autouse=True)
def registered(monkeypatch) -> None:
    for register in (PARTITIONERS, SERDES):
        monkeypatch.setattr(register, "_factories", dict(register._factories))


def know() -> None:
    """Register the classes by name, as other processes do."""
    headrace.register_partitioner("modulo", Modulo)
    headrace.register_serde("shifted", Shifted)


def with_producer(target: Any, values: list[Any]) -> list[int]:
    with headrace.Producer(target) as producer:
        return [producer.send("t", value).result().partition for value in values]


def with_aio(target: Any, values: list[Any]) -> list[int]:
    async def run() -> list[int]:
        async with aio.Producer(target) as producer:
            return [(await (await producer.send("t", value))).partition for value in values]

    return asyncio.run(run())


def read_by_consumer(target: Any, count: int) -> list[Any]:
    with headrace.Consumer(target, group="g", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["t"])
        found: list[Any] = []
        while len(found) < count:
            found += [record.value for record in consumer.poll(5)]
    return found


def read_by_aio(target: Any, count: int) -> list[Any]:
    async def run() -> list[Any]:
        found: list[Any] = []
        async with aio.Consumer(target, group="h", auto_offset_reset="earliest") as consumer:
            await consumer.subscribe(["t"])
            while len(found) < count:
                found += [record.value for record in await consumer.poll(5)]
        return found

    return asyncio.run(run())


def read_by_worker(target: Any, count: int) -> list[Any]:
    found: list[Any] = []
    app = headrace.App(target, group="w")

    @app.worker("t", auto_offset_reset="earliest")
    async def take(value) -> None:
        found.append(value)
        if len(found) == count:
            app.stop()

    asyncio.run(app.serve())
    return found


@pytest.mark.parametrize("send", [with_producer, with_aio])
@pytest.mark.parametrize("read", [read_by_consumer, read_by_aio, read_by_worker])
@pytest.mark.parametrize("near", [True, False])
def test_every_client_obeys_the_parameters(send, read, near) -> None:
    know()
    with headrace.Broker() as broker:
        broker.create_topic(
            "t",
            4,
            partitioner="modulo",
            partitioner_parameters={"modulus": 3},
            serde="avro",
            serde_parameters={"schema": SCHEMA},
            key_serde="shifted",
            key_serde_parameters={"by": 2},
        )
        target = broker if near else broker.listen()
        assert send(target, [{"id": 1}, {"id": 2}, {"id": 3}]) == [1, 2, 0]
        assert sorted(value["id"] for value in read(target, 3)) == [1, 2, 3]
        broker.publish("t", {"id": 4}, key="abc", partition=3)
        (record,) = broker.read("t", 3, 0)
        (raw,) = broker.read("t", 3, 0, serde="bytes", key_serde="bytes")
        assert (record.key, raw.key, raw.value) == ("abc", b"cde", b"\x08")


def test_a_worker_writes_by_the_parameters() -> None:
    know()
    with headrace.Broker() as broker:
        broker.create_topic("in", serde="str")
        broker.create_topic("out", serde="shifted", serde_parameters={"by": 3})
        app = headrace.App(broker, group="w")

        @app.worker("in", auto_offset_reset="earliest")
        @app.publishes("out")
        async def copy(value: str) -> str:
            app.stop()
            return value

        broker.publish("in", "abc")
        asyncio.run(app.serve())
        assert [each.value for each in broker.read("out", 0, 0, serde="bytes")] == [b"def"]


def test_parameters_are_changed_and_shown() -> None:
    know()
    with headrace.Broker() as broker, headrace.Admin(broker.listen()) as admin:
        admin.create_topic("t", serde="shifted", serde_parameters={"by": 1})
        admin.alter_configs("t", {"headrace.serde.parameters": '{"by": 2}'})
        assert admin.configs("t")["headrace.serde.parameters"].value == '{"by": 2}'
        broker.publish("t", "a")
        assert [each.value for each in broker.read("t", 0, 0, serde="bytes")] == [b"c"]
        with pytest.raises(ApiError, match="unexpected keyword argument 'to'; it takes by") as no:
            admin.alter_configs("t", {"headrace.serde.parameters": '{"to": 2}'})
        assert no.value.code is ErrorCode.INVALID_CONFIG
        with pytest.raises(ApiError, match=r"'json' do not fit.*takes no parameters"):
            admin.alter_configs("t", {"headrace.serde": "json"})
        broker.alter_configs("t", {"headrace.serde": "json", "headrace.serde.parameters": None})
        assert broker.publish("t", [1]).offset == 1


@pytest.mark.parametrize(
    ("configs", "text"),
    [
        ({"headrace.serde": "json", "headrace.serde.parameters": "[1]"}, "JSON object"),
        ({"headrace.serde": "json", "headrace.serde.parameters": "{"}, "JSON object"),
        ({"headrace.serde": "x", "headrace.serde.parameters": '{"a": NaN}'}, "NaN"),
        ({"headrace.serde": "x", "headrace.serde.parameters": '{"a":' * 9000}, "longer than 32767"),
        ({"headrace.serde": "x", "headrace.serde.parameters": '{"a":' * 6000}, "nested too deep"),
        (
            {
                "headrace.serde": "x",
                "headrace.serde.parameters": json.dumps({"a": "ä" * 20_000}, ensure_ascii=False),
            },
            "32767 bytes",
        ),
        ({"headrace.key.serde.parameters": "{}"}, "needs headrace.key.serde"),
        ({"headrace.serde": "n" * 256}, "1 to 255"),
        ({"headrace.partitioner": "a\nb"}, "printable"),
        (
            {
                "headrace.partitioner": "modulo",
                "headrace.partitioner.parameters": '{"choose": 1, "modulus": 2}',
            },
            "choose",
        ),
    ],
)
def test_a_broker_refuses_invalid_strategies(configs, text) -> None:
    know()
    with headrace.Broker() as broker, BlockingClient(broker) as client:
        error = client.create_topics([NewTopic("t", configs=configs)])["t"]
        assert error is not None
        assert error.code is ErrorCode.INVALID_CONFIG
        assert re.search(text, str(error))
        with pytest.raises(HeadraceError, match=text):
            broker.create_topic("t", configs=configs)


def test_a_broker_keeps_unknown_strategies_up_to_the_limit() -> None:
    text = json.dumps({"schema": "x" * (PARAMETERS_LIMIT - 14)})
    assert len(text) == PARAMETERS_LIMIT
    with headrace.Broker() as broker:
        broker.create_topic(
            "t", configs={"headrace.serde": "theirs", "headrace.serde.parameters": text}
        )
        assert broker.configs("t")["headrace.serde.parameters"].value == text
        with pytest.raises(ConfigError, match="'theirs'"):
            broker.publish("t", b"x")


def test_create_topic_suggests_near_names() -> None:
    wrong: Any = 7
    with headrace.Broker() as broker, headrace.Admin(broker.listen()) as far:
        for target in (broker, far):
            with pytest.raises(ConfigError, match=r"^serde: .*'jsn'.*did you mean 'json'\?"):
                target.create_topic("t", serde="jsn")
            with pytest.raises(ConfigError, match=r"^key_serde: .*did you mean 'str'\?"):
                target.create_topic("t", key_serde="strr")
            with pytest.raises(ConfigError, match=r"^partitioner: .*did you mean 'round_robin'\?"):
                target.create_topic("t", partitioner="roundrobin")
            with pytest.raises(ConfigError, match="is not a partitioner"):
                target.create_topic("t", partitioner=wrong)
            with pytest.raises(ConfigError, match="serde_parameters are given without serde"):
                target.create_topic("t", serde_parameters={"a": 1})
            with pytest.raises(ConfigError, match=r"'avro' cannot be made: .*Avro schema"):
                target.create_topic("t", serde="avro", serde_parameters={"schema": {"type": "no"}})
            with pytest.raises(ConfigError, match="values of JSON"):
                target.create_topic("t", serde="avro", serde_parameters={"schema": b"x"})
        assert broker.topics() == []


# Classes and objects


class Order(msgspec.Struct):
    id: int


@dataclass
class Point:
    x: int


def test_a_class_or_object_serves_the_clients_of_this_process_and_names_itself_to_others() -> None:
    with headrace.Broker() as broker:
        broker.create_topic(
            "t",
            4,
            partitioner=Modulo,
            partitioner_parameters={"modulus": 2, "first": 1},
            serde=Shifted(5),
            key_serde=Shifted,
        )
        configs = {name: entry.value for name, entry in broker.configs("t").items()}
        assert configs["headrace.partitioner"] == f"{__name__}.Modulo"
        assert configs["headrace.partitioner.parameters"] == '{"modulus":2,"first":1}'
        assert configs["headrace.serde"] == configs["headrace.key.serde"] == f"{__name__}.Shifted"
        assert configs["headrace.serde.parameters"] == ""
        assert with_producer(broker, ["a", "a"]) == [0, 1]
        assert with_aio(broker, ["a"]) == [0], "they share it"
        assert read_by_consumer(broker, 3) == read_by_worker(broker, 3) == ["a"] * 3
        assert {each.value for each in broker.read("t", 0, 0, serde="bytes")} == {b"f"}

        address = broker.listen()
        with pytest.raises(ConfigError, match=f"no serde is called '{__name__}.Shifted'"):
            with_producer(address, ["a"])
        with headrace.Consumer(address, auto_offset_reset="earliest") as consumer:
            consumer.assign([headrace.TopicPartition("t", 0)])
            with pytest.raises(ConfigError, match=r"topic 't' names.*Shifted.*serde='bytes'"):
                poll_for_ever(consumer)


def poll_for_ever(consumer: headrace.Consumer) -> None:
    while True:
        consumer.poll(5)


def test_two_topics_have_two_objects_of_one_class() -> None:
    with headrace.Broker() as broker:
        for topic, by in (("one", 1), ("two", 2)):
            broker.create_topic(topic, serde=Shifted(by))
            broker.publish(topic, "a")
        assert broker.read("one", 0, 0, serde="bytes")[0].value == b"b"
        assert broker.read("two", 0, 0, serde="bytes")[0].value == b"c"
        broker.delete_topic("two")
        with headrace.Admin(broker) as admin:
            admin.create_topic("two", serde=Shifted(3))
        broker.publish("two", "a")
        assert broker.read("two", 0, 0, serde="bytes")[0].value == b"d"
        with pytest.raises(ApiError):
            broker.create_topic("one", serde=Shifted(9))
        broker.publish("one", "a")
        assert broker.read("one", 0, 1, serde="bytes")[0].value == b"b"


@pytest.mark.parametrize(
    ("given", "name", "parameters"),
    [
        (AvroSerde(SCHEMA), "avro", {"schema": SCHEMA}),
        (AvroSerde(json.dumps(SCHEMA)), "avro", {"schema": SCHEMA}),
        (
            RegistryAvroSerde(SchemaRegistry("http://localhost:1/"), SCHEMA, subject="t-value"),
            "avro-registry",
            {"url": "http://localhost:1", "schema": SCHEMA, "subject": "t-value"},
        ),
        (Order, "json", None),
        (Point, "json", None),
        (dict[str, int], "json", None),
        (str, "str", None),
        (bytes, "bytes", None),
        (Modulo(3), f"{__name__}.Modulo", {"modulus": 3, "first": 0}),
    ],
)
def test_objects_name_the_parameters_for_other_processes(
    given, name, parameters, monkeypatch
) -> None:
    monkeypatch.setenv("HEADRACE_SCHEMA_REGISTRIES", "http://other:1, http://localhost:1/")
    register: Register[Any] = PARTITIONERS if isinstance(given, Modulo) else SERDES
    value = given if isinstance(given, Modulo) else resolve_serde(given)
    named = register.describe(value)
    assert named.name == name
    assert (json.loads(named.parameters) if named.parameters else None) == parameters
    if register is SERDES:
        resolve_serde(named._replace(given=None))


@pytest.mark.parametrize("allowed", ["", "http://localhost:2", "http://localhost:1.evil"])
def test_a_topic_does_not_choose_which_address_its_clients_ask(allowed, monkeypatch) -> None:
    monkeypatch.setenv("HEADRACE_SCHEMA_REGISTRIES", allowed)
    described = SERDES.describe(
        RegistryAvroSerde(SchemaRegistry("http://localhost:1"), SCHEMA, subject="t")
    )
    with pytest.raises(ConfigError, match="HEADRACE_SCHEMA_REGISTRIES"):
        resolve_serde(described._replace(given=None))


def test_other_processes_read_a_type_as_json() -> None:
    with headrace.Broker() as broker:
        broker.create_topic("t", serde=Order)
        broker.publish("t", Order(7))
        assert broker.read("t", 0, 0)[0].value == Order(7)
        assert read_by_consumer(broker.listen(), 1) == [{"id": 7}]


def test_a_remote_admin_accepts_names_only() -> None:
    with headrace.Broker() as broker, headrace.Admin(broker.listen()) as admin:
        admin.create_topic("t", serde=AvroSerde(SCHEMA))
        assert broker.publish("t", {"id": 1}).offset == 0
        with pytest.raises(ConfigError, match=r"register '.*Shifted' first"):
            admin.create_topic("u", serde=Shifted)
        headrace.register_serde("shifted", Shifted)
        admin.create_topic("u", serde=Shifted, serde_parameters={"by": 4})
        assert admin.configs("u")["headrace.serde"].value == "shifted"
        broker.publish("u", "a")
        assert broker.read("u", 0, 0, serde="bytes")[0].value == b"e"
        with pytest.raises(ConfigError, match="storage"):
            admin.create_topic("v", storage=dict)
        assert broker.topics() == ["t", "u"]


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ({"partitioner": Modulo}, "missing a required argument: 'modulus'"),
        ({"partitioner": Modulo(3), "partitioner_parameters": {"modulus": 2}}, "is an object"),
        ({"partitioner": Shifted}, "is not a partitioner"),
        ({"serde": Modulo(3)}, "is not a serde"),
        ({"serde": lambda: 1}, "serde"),
        ({"storage": 7}, "storage is"),
    ],
)
def test_the_error_names_the_invalid_strategy(argument: dict[str, Any], text: str) -> None:
    with headrace.Broker() as broker, pytest.raises(ConfigError, match=text):
        broker.create_topic("t", **argument)


# Restarts


def test_after_a_restart_the_name_decides(tmp_path) -> None:
    with headrace.Broker(tmp_path) as broker:
        broker.create_topic("t", 4, partitioner=Modulo(3), serde=Shifted(2))
        assert [broker.publish("t", "a").partition for _ in range(2)] == [1, 2]
    with headrace.Broker(tmp_path) as broker:
        with pytest.raises(ConfigError, match="no serde is called"):
            broker.publish("t", "a")
        headrace.register_partitioner(f"{__name__}.Modulo", Modulo)
        headrace.register_serde(f"{__name__}.Shifted", lambda: Shifted(2))
        assert broker.publish("t", "a").partition == 0, "the state goes on, with the parameters"
        assert broker.read("t", 1, 0)[0].value == "a"


def test_the_state_belongs_to_the_parameters(tmp_path) -> None:
    know()

    def publish(broker: headrace.Broker) -> int:
        return broker.publish("t", b"").partition

    with headrace.Broker(tmp_path) as broker:
        broker.create_topic("t", 9, partitioner="modulo", partitioner_parameters={"modulus": 9})
        assert [publish(broker), publish(broker)] == [1, 2]
    with headrace.Broker(tmp_path) as broker:
        assert publish(broker) == 3
    with headrace.Broker(tmp_path) as broker:
        broker.alter_configs("t", {"headrace.partitioner.parameters": '{"modulus": 2}'})
        assert [publish(broker), publish(broker)] == [1, 0], "it begins anew"
    with headrace.Broker(tmp_path) as broker:
        assert publish(broker) == 1


# Partitioners that are not known here


@pytest.mark.parametrize("near", [True, False])
def test_a_record_with_a_partition_needs_no_partitioner(near) -> None:
    with headrace.Broker() as broker:
        broker.create_topic("t", 2, configs={"headrace.partitioner": "theirs"})
        target = broker if near else broker.listen()
        with headrace.Producer(target) as producer:
            assert producer.send("t", b"x", partition=1).result().partition == 1
            producer.send_many("t", [b"y", b"z"], partition=1)
            with pytest.raises(ConfigError, match=r"theirs.*partitioner=.*--partition N") as told:
                producer.send("t", b"x")
            assert "register_partitioner" in str(told.value)
            assert "headrace.partitioners" in str(told.value)
            headrace.register_partitioner("theirs", lambda: Modulo(2))
            assert producer.send("t", b"x").result().partition == 1
        assert with_producer_of(target, partitioner="round_robin") == 0


def with_producer_of(target: Any, **options: Any) -> int:
    with headrace.Producer(target, **options) as producer:
        return producer.send("t", b"x").result().partition


def test_a_factory_may_take_the_source_of_randomness() -> None:
    class Loaded:
        def __init__(self, first: int, choose: Callable[[int], int]) -> None:
            assert 0 <= choose(2) < 2
            self.first = first

        def partition(self, key, value, available, count) -> int:
            return self.first

    headrace.register_partitioner("loaded", Loaded)
    with headrace.Broker() as broker:
        broker.create_topic("t", 3, partitioner="loaded", partitioner_parameters={"first": 2})
        assert broker.publish("t", b"x").partition == 2
