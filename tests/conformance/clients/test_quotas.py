"""Client quotas: set with Kafka's tool and with our client, felt by confluent-kafka's producer and consumer."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import count

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.clients.blocking import BlockingClient, FetchPosition
from headrace.clients.blocking import NewTopic as BlockingNewTopic
from headrace.clients.flows.quotas import alter_quotas, describe_quotas
from headrace.records.builder import build_batch
from headrace.spark.options.reader import ClientOptions
from headrace.spark.source.cluster_client import ClusterClient
from headrace.types import TopicPartition as Place
from tests.conformance.clients.java import JavaClient
from tests.conformance.clients.observer import FAST_RECONNECT, wait_until
from tests.fixtures.targets import Target, make_target, running_target
from tools.fetch_java import JavaUnavailableError

PRODUCER, CONSUMER = "producer_byte_rate", "consumer_byte_rate"
BYTES_PER_S = 200_000
VALUE = b"x" * 10_000
SECONDS = 7
RECORDS = SECONDS * BYTES_PER_S // len(VALUE)
WINDOWS = {"quota.window.num": "2"}
"""The number of windows of a quota. With Kafka's default of eleven, the first ten seconds pass at once."""
numbers = count()


def connecting(target: Target) -> dict[str, object]:
    return {**FAST_RECONNECT, **target.admin_properties}


@pytest.fixture(scope="module")
def target(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    name = request.config.getoption("--target", default=None) or os.environ.get(
        "CONFORMANCE_TARGET", "headrace"
    )
    directory = tmp_path_factory.mktemp("target") / name
    server = make_target(name, directory, further=WINDOWS)
    with running_target(server):
        yield server


@pytest.fixture
def client(target: Target) -> Iterator[BlockingClient]:
    with BlockingClient(target.bootstrap, **target.admin_properties) as client:
        yield client


@pytest.fixture
def topic(target: Target) -> str:
    name = f"limited-{next(numbers)}"
    admin = AdminClient({"bootstrap.servers": target.bootstrap, **connecting(target)})
    admin.create_topics([NewTopic(name, 1)])[name].result(20)
    return name


@pytest.fixture
def client_id(client: BlockingClient) -> Iterator[str]:
    """A client id for one test. Its quotas are removed at the end of the test."""
    name = f"client-{next(numbers)}"
    yield name
    assert client.run(alter_quotas({"client-id": name}, {PRODUCER: None, CONSUMER: None})) is None


def limit(client: BlockingClient, client_id: str, quota: str, value: float) -> None:
    entity = {"client-id": client_id}
    assert client.run(alter_quotas(entity, {quota: value})) is None

    def known() -> bool:
        found = client.run(describe_quotas(entity, strict=True))
        return [each.quotas.get(quota) for each in found] == [value]

    wait_until("the quota", known)


def producer_of(target: Target, client_id: str, **settings: object) -> Producer:
    return Producer(
        {
            "bootstrap.servers": target.bootstrap,
            "client.id": client_id,
            "linger.ms": 0,
            "batch.size": len(VALUE) + 100,  # one record a request: the shape of the load is known
            **connecting(target),
            **settings,
        }
    )


def test_a_producer_comes_to_its_quota(
    target: Target, client: BlockingClient, topic: str, client_id: str
) -> None:
    limit(client, client_id, PRODUCER, BYTES_PER_S)
    throttled: list[float] = []
    limited = producer_of(
        target, client_id, throttle_cb=lambda event: throttled.append(event.throttle_time)
    )
    other = producer_of(target, "unlimited")
    began = time.monotonic()
    for producer in (limited, other):
        for _ in range(RECORDS):
            producer.produce(topic, VALUE, partition=0)
    assert other.flush(10) == 0
    # Others are not held up, however long one has to wait.
    assert time.monotonic() - began < SECONDS / 2
    assert len(limited) > 0
    assert limited.flush(20) == 0
    assert 0.6 * SECONDS < time.monotonic() - began < 1.4 * SECONDS
    assert throttled


def test_a_consumer_comes_to_its_quota(
    target: Target, client: BlockingClient, topic: str, client_id: str
) -> None:
    producer = producer_of(target, "unlimited")
    for _ in range(RECORDS):
        producer.produce(topic, VALUE, partition=0)
    assert producer.flush(20) == 0
    limit(client, client_id, CONSUMER, BYTES_PER_S)
    consumer = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "client.id": client_id,
            "group.id": client_id,
            "fetch.message.max.bytes": 4 * len(VALUE),
            **connecting(target),
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    began = time.monotonic()
    received = 0
    while received < RECORDS:
        assert time.monotonic() - began < 2 * SECONDS
        received += len(consumer.consume(RECORDS - received, 0.2))
    took_s = time.monotonic() - began
    consumer.close()
    assert took_s > 0.6 * SECONDS


@pytest.mark.java
def test_configs_tool_sets_and_reads_quotas(target: Target, tmp_path_factory) -> None:
    try:
        java = JavaClient(
            target.bootstrap, tmp_path_factory.mktemp("java"), target.admin_properties
        )
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    one = ("--entity-type", "clients", "--entity-name", "from-java")
    java.run("configs", "--alter", *one, "--add-config", f"{PRODUCER}=1024,request_percentage=12.5")
    described = java.run("configs", "--describe", *one)
    assert f"{PRODUCER}=1024.0" in described
    assert "request_percentage=12.5" in described
    both = ("--entity-type", "users", "--entity-default", *one)
    java.run("configs", "--alter", *both, "--add-config", f"{CONSUMER}=2048")
    assert f"{CONSUMER}=2048.0" in java.run("configs", "--describe", *both)
    java.run("configs", "--alter", *both, "--delete-config", CONSUMER)
    java.run("configs", "--alter", *one, "--delete-config", f"{PRODUCER},request_percentage")
    assert PRODUCER not in java.run("configs", "--describe", *one)
    refused = java.run("configs", "--alter", *one, "--add-config", f"{PRODUCER}=0", check=False)
    assert "InvalidRequestException" in refused


def test_a_throttled_fetch_names_every_partition(target: Target, client: BlockingClient) -> None:
    """Apache Kafka answers a Fetch that it throttles without any topic (KIP-219); Spark's source counted on all."""
    topic = f"throttled-{next(numbers)}"
    client.create_topics([BlockingNewTopic(topic, 2)])
    places = [Place(topic, number) for number in range(2)]
    batch = build_batch([(None, VALUE, (), int(time.time() * 1000))] * 50)
    for place in places:
        for _ in range(3):
            client.produce(place, batch)
    assert (
        client.run(alter_quotas({"client-id": "headrace-spark"}, {CONSUMER: BYTES_PER_S})) is None
    )
    given = tuple((name, str(value)) for name, value in target.admin_properties.items())
    source = ClusterClient(ClientOptions(target.bootstrap, given))
    try:
        for offset in (0, 50, 100):
            fetched = source.fetch(
                {each: FetchPosition(offset, max_bytes=1 << 20) for each in places}
            )
            assert set(fetched) == set(places)
            assert set(source.bytes_per_offset(dict.fromkeys(places, offset))) == set(places)
    finally:
        source.close()
        client.run(alter_quotas({"client-id": "headrace-spark"}, {CONSUMER: None}))
