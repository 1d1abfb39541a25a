"""Three clients of other projects with one interface, in a separate process: write values, or read values.

    python drivers_of_clients.py CLIENT produce BOOTSTRAP TOPIC VALUE...
    python drivers_of_clients.py CLIENT consume BOOTSTRAP TOPIC GROUP COUNT

A consumer prints the values that it reads, one a line, commits, and stays until its standard input ends.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable

PATIENCE_S = 40
SESSION = {"session_timeout_ms": 10_000, "heartbeat_interval_ms": 200}


def tell(value: bytes) -> None:
    print(value.decode(), flush=True)


def until_the_end_of_input() -> threading.Event:
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    return ended


def confluent_produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    from confluent_kafka import Producer

    problems: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            problems.append(error)

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for value in values:
        producer.produce(topic, value, on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    assert not problems, problems


def confluent_consume(bootstrap: str, topic: str, group: str) -> None:
    from confluent_kafka import Consumer

    ended = until_the_end_of_input()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": SESSION["session_timeout_ms"],
            "heartbeat.interval.ms": SESSION["heartbeat_interval_ms"],
        }
    )
    consumer.subscribe([topic])
    while not ended.is_set():
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            tell(message.value())
            retry(lambda: consumer.commit(asynchronous=False))
    consumer.close()


def kafka_python_produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
    for sent in [producer.send(topic, value) for value in values]:
        sent.get(PATIENCE_S)
    producer.close()


def kafka_python_consume(bootstrap: str, topic: str, group: str) -> None:
    from kafka import KafkaConsumer

    ended = until_the_end_of_input()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **SESSION,
    )
    while not ended.is_set():
        # This client sometimes stops for ever if a poll ends before its group is stable.
        for records in consumer.poll(1000).values():
            for record in records:
                tell(record.value)
            retry(consumer.commit)
    consumer.close()


def aiokafka_produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    from aiokafka import AIOKafkaProducer

    async def main() -> None:
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True
        ) as producer:
            for value in values:
                await asyncio.wait_for(producer.send_and_wait(topic, value), PATIENCE_S)

    asyncio.run(main())


def aiokafka_consume(bootstrap: str, topic: str, group: str) -> None:
    from aiokafka import AIOKafkaConsumer

    async def main() -> None:
        ended = until_the_end_of_input()
        async with AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            **SESSION,
        ) as consumer:
            while not ended.is_set():
                for records in (await consumer.getmany(timeout_ms=100)).values():
                    for record in records:
                        tell(record.value)
                    try:
                        await consumer.commit()
                    except Exception as error:  # noqa: BLE001 - each client has its own
                        print(f"not committed: {error!r}", file=sys.stderr)

    asyncio.run(main())


def retry(commit: Callable[[], object]) -> None:
    """Commit. A failure is ignored, because the records of a lost member are delivered again."""
    try:
        commit()
    except Exception as error:  # noqa: BLE001 - each client has its own
        print(f"not committed: {error!r}", file=sys.stderr)


if __name__ == "__main__":
    client, action, bootstrap, topic, *rest = sys.argv[1:]
    run = globals()[f"{client.replace('-', '_')}_{action}"]
    if action == "produce":
        run(bootstrap, topic, [value.encode() for value in rest])
    else:
        run(bootstrap, topic, *rest)
