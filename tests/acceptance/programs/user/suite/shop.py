"""The program under test: it reads orders with confluent-kafka, and cancels those that are not paid in time."""

import json

from confluent_kafka import Consumer, Producer


def place(bootstrap: str, topic: str, *orders: dict[str, object]) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "linger.ms": 0, "enable.idempotence": True}
    )
    for order in orders:
        producer.produce(topic, json.dumps(order).encode(), key=str(order["id"]))
    left = producer.flush(10)
    if left:
        raise TimeoutError(f"{left} orders were not written")


def total(bootstrap: str, topic: str, count: int, group: str = "shop") -> float:
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    found: list[float] = []
    while len(found) < count:
        message = consumer.poll(10)
        if message is None:
            raise TimeoutError(f"{len(found)} of {count} orders came")
        if message.error():
            raise RuntimeError(message.error())
        found.append(json.loads(message.value())["total"])
        consumer.commit(message, asynchronous=False)
    consumer.close()
    return sum(found)
