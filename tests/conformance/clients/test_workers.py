"""One app on a server: order, results, retries, dead letters, and a broker that restarts.

`--target kafka` runs the same program against Apache Kafka.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import headrace
from headrace import App, Retry
from tests.fixtures.targets import Target

WAIT_S = 60.0
PARTITIONS = 4


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.02)


def create(target: Target, *topics: str) -> None:
    with headrace.Admin(target.bootstrap, **target.admin_properties) as admin:
        for topic in topics:
            admin.create_topic(topic, PARTITIONS)


def committed(target: Target, group: str, topic: str) -> int:
    with headrace.Admin(target.bootstrap, **target.admin_properties) as admin:
        offsets = admin.offsets(group).items()
    return sum(at.offset for name, at in offsets if name.topic == topic)


def test_order_results_retries_and_dead_letters(target: Target) -> None:
    create(target, "orders")
    app = App(group="billing", **target.client_properties)
    seen: dict[str, list[int]] = {}
    failures: Counter[int] = Counter()

    @app.worker("orders", ordering="key", retry=Retry(attempts=2, first=0.01), dead_letter=True)
    @app.publishes("invoices")
    def bill(order: dict, context) -> dict:
        number = order["id"]
        if number % 10 == 0:
            failures[number] += 1
            if number % 20 == 0 or failures[number] == 1:
                raise ValueError(number)
        seen.setdefault(context.key.decode(), []).append(number)
        return {"order": number}

    with app.test(target.bootstrap) as t:
        with headrace.Producer(
            target.bootstrap, **target.client_properties, serde="json", key_serde="str"
        ) as producer:
            for number in range(200):
                producer.send("orders", {"id": number}, key=f"k{number % 7}")
        t.wait_idle(WAIT_S)
        invoices, letters = t.messages("invoices"), t.messages("dlq.orders")
    good = [number for number in range(200) if number % 20]
    assert sorted(message.json()["order"] for message in invoices) == good
    assert sorted(message.json()["id"] for message in letters) == list(range(0, 200, 20))
    assert {message.header("kafka_dlt-original-topic") for message in letters} == {"orders"}
    assert all(numbers == sorted(numbers) for numbers in seen.values())
    assert committed(target, "billing", "orders") == 200


def test_a_failing_record_passes_through_retry_topics_and_becomes_a_dead_letter(
    target: Target,
) -> None:
    create(target, "payments")
    app = App(group="payments", **target.client_properties)
    attempts: list[tuple[str, int, int]] = []

    @app.worker("payments", retry=Retry(attempts=3, first=0.1, topics=True), dead_letter=True)
    async def pay(value: str, context) -> None:
        attempts.append((value, context.attempt, context.offset))
        if value == "bad":
            raise ValueError

    with app.test(target.bootstrap) as t:
        t.produce("payments", "bad", key="k")
        t.produce("payments", "good", key="k")
        t.wait_idle(WAIT_S)
        assert len(t.messages("dlq.payments")) == 1
    assert sorted(attempts) == [("bad", 1, 0), ("bad", 2, 0), ("bad", 3, 0), ("good", 1, 1)]


def test_a_broker_that_restarts_costs_no_record(target: Target) -> None:
    create(target, "flights")
    app = App(group="flights", commit_interval_s=0.05, **target.client_properties)
    handled: Counter[int] = Counter()

    @app.worker("flights", concurrency=2)
    async def fly(number: int) -> None:
        handled[number] += 1

    with app.test(target.bootstrap) as t:
        with headrace.Producer(
            target.bootstrap, **target.client_properties, serde="json"
        ) as producer:
            for number in range(300):
                producer.send("flights", number)
            producer.flush()
            until(lambda: len(handled) > 20)
            target.restart()
            for number in range(300, 500):
                producer.send("flights", number)
        until(lambda: len(handled) == 500)
        t.wait_idle(WAIT_S)
    assert committed(target, "flights", "flights") == 500
    assert max(handled.values()) <= 2


def test_exactly_once_results_are_there_once_though_a_broker_restarts(target: Target) -> None:
    create(target, "trades", "bookings")
    app = App(group="trades", commit_interval_s=0.2, **target.admin_properties)

    @app.worker(
        "trades",
        ordering="key",
        delivery="exactly_once",
        retry=Retry(attempts=2, first=0.01),
        dead_letter=True,
    )
    @app.publishes("bookings")
    async def book(number: int, context) -> int:
        await context.publish("bookings", -number, key=context.key)
        if number % 50 == 7:
            raise ValueError(number)
        return number

    with app.test(target.bootstrap) as t:
        with headrace.Producer(
            target.bootstrap, **target.admin_properties, serde="json", key_serde="str"
        ) as producer:
            for number in range(1, 300):
                producer.send("trades", number, key=f"k{number % 9}")
            producer.flush()
            until(lambda: committed(target, "trades", "trades") > 20)
            target.restart()
            for number in range(300, 500):
                producer.send("trades", number, key=f"k{number % 9}")
        until(lambda: committed(target, "trades", "trades") == 499)
        t.wait_idle(WAIT_S)
        bookings = t.messages("bookings")
        letters = t.messages("dlq.trades")
    good = [number for number in range(1, 500) if number % 50 != 7]
    assert sorted(message.json() for message in bookings) == sorted(
        [*good, *map(int.__neg__, good)]
    )
    assert sorted(message.json() for message in letters) == list(range(7, 500, 50))
    by_key: dict[bytes, list[int]] = {}
    for message in bookings:
        by_key.setdefault(message.record.key, []).append(message.json())
    for numbers in by_key.values():
        assert numbers == [each for one in numbers[1::2] for each in (-one, one)], "in their order"
        assert numbers[1::2] == sorted(numbers[1::2])
