"""Process each transfer exactly once: both bookings of a transfer are written, or neither, also after a failure.

python examples/exactly_once.py    # in one process, with a broker in memory
"""

from __future__ import annotations

from typing import Any

import headrace
from headrace import Retry

app = headrace.App(group="bank")
attempts: list[int] = []


@app.worker("transfers", delivery="exactly_once", retry=Retry(attempts=3, first=0.01))
async def book(transfer: dict[str, Any], context: headrace.Context) -> None:
    """Write both bookings of a transfer; the bookings and the committed offset are one transaction."""
    attempts.append(transfer["id"])
    await context.publish("bookings", {"account": transfer["from"], "cents": -transfer["cents"]})
    if transfer["id"] == 2 and attempts.count(2) == 1:
        raise ConnectionError("the power went out between the two")
    await context.publish("bookings", {"account": transfer["to"], "cents": transfer["cents"]})


def transfer_by_hand(broker: headrace.Broker) -> None:
    """Do the same without a worker: read, write and commit offsets in a transaction of this program."""
    consumer = headrace.Consumer(
        broker,
        group="audit",
        serde="json",
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    producer = headrace.Producer(broker, serde="json", transactional_id="audit-1")
    with consumer, producer:
        producer.init_transactions()  # fences earlier processes with this transactional id
        consumer.subscribe(["bookings"])
        total = moved = count = 0
        while count < 6:
            records = consumer.poll(1.0)
            if not records:
                continue
            with producer.transaction() as transaction:
                for record in records:
                    total += record.value["cents"]
                    moved += abs(record.value["cents"])
                    count += 1
                producer.send("balances", {"bookings": count, "moved": moved, "sum": total})
                transaction.send_offsets(consumer.positions(), consumer)
    with headrace.Consumer(
        broker, serde="json", auto_offset_reset="earliest", isolation_level="read_committed"
    ) as consumer:
        consumer.assign([headrace.TopicPartition("balances", 0)])
        for record in consumer:
            if record.value["bookings"] == 6:
                print("balance:", record.value)
                break


def main() -> None:
    """Send transfers, let the worker book them, and add up the bookings."""
    with headrace.Broker() as broker, app.test(broker) as t:
        for topic in ("bookings", "balances"):
            broker.create_topic(topic)
        for number, cents in enumerate([500, 700, 900], start=1):
            t.produce("transfers", {"id": number, "from": "anna", "to": "ben", "cents": cents})
        t.wait_idle()
        for message in t.messages("bookings"):
            print("booking:", message.json())
        print("attempts:", attempts)
        transfer_by_hand(broker)


if __name__ == "__main__":
    main()
