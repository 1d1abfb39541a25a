"""Clients with default settings, and workers, survive the death of the broker that leads everything they use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

import aiokafka
import confluent_kafka
import pytest

import headrace
from headrace.testing.cluster.cluster import Cluster

pytestmark = pytest.mark.slow

TOPIC = "orders"
FIRST = [b"%d" % number for number in range(10)]
SECOND = [b"%d" % number for number in range(10, 20)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as running:
        running.create_topic(TOPIC)
        yield running


def kill_leader(cluster: Cluster) -> None:
    """Kill the leader of the topic, and the coordinator of groups if another broker is the coordinator."""
    cluster.kill(cluster.leader(TOPIC))


def check(cluster: Cluster) -> None:
    """Check that the log has each record once, and that the restarted broker gets all of them."""
    assert [record.value for record in cluster.messages(TOPIC)] == FIRST + SECOND
    for broker in {1, 2, 3} - set(cluster.running):
        cluster.restart(broker)
    cluster.wait_in_sync()


def test_confluent_kafka(cluster: Cluster) -> None:
    errors: list[object] = []

    def delivered(error: object, _: object) -> None:
        errors.extend([error] if error is not None else [])

    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap})
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "billing",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([TOPIC])

    def send(values: list[bytes]) -> None:
        for value in values:
            producer.produce(TOPIC, value, on_delivery=delivered)
        assert producer.flush(60) == 0
        assert not errors

    def read() -> bytes:
        while (message := consumer.poll(1.0)) is None or message.error():
            pass
        return message.value() or b""

    send(FIRST)
    assert [read() for _ in FIRST] == FIRST
    kill_leader(cluster)
    send(SECOND)
    assert [read() for _ in SECOND] == SECOND
    consumer.close()
    cluster.wait_caught_up("billing", TOPIC)
    check(cluster)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_kafka_python(cluster: Cluster) -> None:
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=cluster.bootstrap)
    consumer = kafka.KafkaConsumer(
        TOPIC,
        bootstrap_servers=cluster.bootstrap,
        group_id="billing",
        auto_offset_reset="earliest",
    )

    def send(values: list[bytes]) -> None:
        for sent in [producer.send(TOPIC, value) for value in values]:
            sent.get(60)

    send(FIRST)
    assert [next(consumer).value for _ in FIRST] == FIRST
    kill_leader(cluster)
    send(SECOND)
    assert [next(consumer).value for _ in SECOND] == SECOND
    consumer.close()
    producer.close()
    cluster.wait_caught_up("billing", TOPIC)
    check(cluster)


# aiokafka does not retrieve the exceptions of connections that fail in the background.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_aiokafka(cluster: Cluster) -> None:
    async def main() -> None:
        async with (
            aiokafka.AIOKafkaProducer(
                bootstrap_servers=cluster.bootstrap, enable_idempotence=True
            ) as producer,
            aiokafka.AIOKafkaConsumer(
                TOPIC,
                bootstrap_servers=cluster.bootstrap,
                group_id="billing",
                auto_offset_reset="earliest",
            ) as consumer,
        ):
            for values in (FIRST, SECOND):
                if values is SECOND:
                    await asyncio.to_thread(kill_leader, cluster)
                for value in values:
                    await producer.send_and_wait(TOPIC, value)
                assert [(await consumer.getone()).value for _ in values] == values
            # aiokafka that stops before it has found the new coordinator looks for none and commits for ever.
            await asyncio.to_thread(cluster.wait_caught_up, "billing", TOPIC)

    asyncio.run(main())
    check(cluster)


def test_blocking_clients_of_headrace(cluster: Cluster) -> None:
    with (
        headrace.Producer(cluster.bootstrap) as producer,
        headrace.Consumer(
            cluster.bootstrap, group="billing", auto_offset_reset="earliest"
        ) as consumer,
    ):
        consumer.subscribe([TOPIC])
        for values in (FIRST, SECOND):
            if values is SECOND:
                kill_leader(cluster)
            for sent in [producer.send(TOPIC, value) for value in values]:
                sent.result(60)
            found: list[bytes] = []
            while len(found) < len(values):
                found += [record.value for record in consumer.poll(1.0)]
            assert found == values
    cluster.wait_caught_up("billing", TOPIC)
    check(cluster)


def test_asyncio_clients_of_headrace(cluster: Cluster) -> None:
    async def main() -> None:
        async with (
            headrace.aio.Producer(cluster.bootstrap) as producer,
            headrace.aio.Consumer(
                cluster.bootstrap, group="billing", auto_offset_reset="earliest"
            ) as consumer,
        ):
            await consumer.subscribe([TOPIC])
            for values in (FIRST, SECOND):
                if values is SECOND:
                    await asyncio.to_thread(kill_leader, cluster)
                for value in values:
                    await (await producer.send(TOPIC, value))
                found: list[bytes] = []
                while len(found) < len(values):
                    found += [record.value for record in await consumer.poll(1.0)]
                assert found == values
        await asyncio.to_thread(cluster.wait_caught_up, "billing", TOPIC)

    asyncio.run(main())
    check(cluster)


def test_workers(cluster: Cluster) -> None:
    handled: list[bytes] = []
    app = headrace.App(cluster.bootstrap)

    @app.worker(TOPIC, group="billing", serde="bytes")
    def bill(order: bytes) -> None:
        handled.append(order)

    run(app, lambda: live_through(cluster, handled))
    assert sorted(set(handled), key=int) == FIRST + SECOND
    cluster.wait_caught_up("billing", TOPIC)
    check(cluster)


def live_through(cluster: Cluster, handled: list[bytes]) -> None:
    for values in (FIRST, SECOND):
        if values is SECOND:
            kill_leader(cluster)
        for value in values:
            cluster.publish(TOPIC, value)
        wanted = set(values)
        cluster.wait_until(partial(wanted.issubset, handled), timeout_s=60)


def run(app: headrace.App, test: Callable[[], object]) -> None:
    async def main() -> None:
        running = asyncio.create_task(app.serve())
        try:
            await asyncio.to_thread(test)
        finally:
            app.stop()
            await running

    asyncio.run(main())
