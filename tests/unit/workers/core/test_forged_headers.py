"""Records with forged headers of workers: their producers can choose neither topics nor pauses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace import App, Retry
from headrace.dead_letters import letter_headers
from headrace.dead_letters.letter_headers import Headers, RecordOrigin
from headrace.testing import Broker

PAYMENTS = RecordOrigin("payments", 0, 1, 1)
NEVER_MS = (1 << 63) - 1


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(configs={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


def failing_app(*topics: str, **options: Any) -> tuple[App, list[tuple[str, int, int]]]:
    """Return an app whose handler always fails, and the topic, the offset and the attempt of each call."""
    app, seen = App(group="g", commit_interval_s=0.05), []

    @app.worker(list(topics or ("orders",)), dead_letter=True, **options)
    async def handle(value: bytes, context: Any) -> None:
        seen.append((context.topic, context.offset, context.attempt))
        raise ValueError("bad record")

    return app, seen


def forged(group: str, attempt: int = 1, due_ms: int = 0) -> Headers:
    stranger = headrace.ConsumerRecord("payments", 0, 1, 1, None, None, (), 0)
    return letter_headers.retry_headers(stranger, PAYMENTS, group, attempt, due_ms)


def user_topics(broker: Broker) -> set[str]:
    return {name for name in broker.topics() if not name.startswith("__")}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
@pytest.mark.parametrize("topics", [False, True], ids=["in place", "retry topics"])
def test_forged_headers_do_not_choose_the_dead_letter_topic(
    broker: Broker, delivery: str, *, topics: bool
) -> None:
    retry = Retry(attempts=2, first=0.001, topics=topics)
    app, seen = failing_app(retry=retry, delivery=delivery)
    with app.test(broker) as t:
        t.produce("orders", b"pay mallory", headers=forged("g"))
        t.wait_idle()
        [letter] = t.messages("dlq.orders")
    waited = {"retry.0.001.orders"} if topics else set()
    assert user_topics(broker) == {"orders", "dlq.orders"} | waited
    assert letter.header("kafka_dlt-original-topic") == "orders"
    assert seen == [("orders", 0, 1), ("orders", 0, 2)]


def test_forged_headers_in_a_retry_topic_choose_no_topic_pause_or_attempt(
    broker: Broker,
) -> None:
    app, seen = failing_app(retry=Retry(attempts=2, first=0.001, topics=True))
    with app.test(broker) as t:
        t.produce("retry.0.001.orders", b"pay mallory", headers=forged("g", -1000, NEVER_MS))
        t.wait_idle()
        [letter] = t.messages("dlq.orders")
    assert user_topics(broker) == {"orders", "retry.0.001.orders", "dlq.orders"}
    assert letter.header("kafka_dlt-original-topic") == "retry.0.001.orders"
    assert seen == [("retry.0.001.orders", 0, 1), ("retry.0.001.orders", 0, 2)]


def test_numbers_of_any_length_end_no_worker(broker: Broker) -> None:
    app, seen = failing_app(retry=Retry(attempts=2, first=0.001, topics=True))
    long = b"9" * 5_000  # more digits than Python reads
    headers = tuple((name, long) for name, _ in forged("g") if name != "headrace-only-group")
    with app.test(broker) as t:
        for topic in ("orders", "retry.0.001.orders"):
            t.produce(topic, b"x", headers=(*headers, ("headrace-only-group", b"g")))
        t.wait_idle()
        assert len(t.messages("dlq.orders")) == 2
    assert len(seen) == 4
