"""Records in retry topics wait in a broker that schedules records, or else in the worker."""

from __future__ import annotations

import pytest

import headrace
from headrace.workers.failure.outcomes import Retry
from headrace.workers.output import outlet

DELAYS = ("headrace.deliver-at-ms", "headrace.delay-ms")


def make_broker(clock: headrace.ManualClock) -> headrace.Broker:
    broker = headrace.Broker(clock=clock, configs={"group.initial.rebalance.delay.ms": "0"})
    broker.create_topic("orders", configs={"headrace.delay.enable": "true"})
    return broker


def run(broker: headrace.Broker) -> tuple[list[int], list[str]]:
    """Have a record fail once that was delayed itself; return when it was tried, and its headers in the retry topic."""
    app = headrace.App(group="g")
    times: list[int] = []

    @app.worker("orders", retry=Retry(attempts=2, first=600, max=600, topics=True))
    async def handle(value: str, context: headrace.Context) -> None:
        times.append(broker.now_ms())
        if context.attempt == 1:
            raise ValueError(value)

    with app.test(broker) as trial:
        broker.publish("orders", b"x", delay_ms=0)
        trial.wait_idle()
        (message,) = trial.messages("retry.600.orders")
    return times, [name for name, _ in message.record.headers]


def test_the_broker_keeps_a_scheduled_retry_until_it_is_due() -> None:
    with make_broker(headrace.ManualClock()) as broker:
        (first, second), headers = run(broker)
        assert broker.configs("retry.600.orders")["headrace.delay.enable"].value == "true"
    assert 600_000 <= second - first < 602_000
    assert [name for name in headers if name in DELAYS] == ["headrace.deliver-at-ms"]


def test_a_broker_without_scheduled_records_has_retry_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlet, "DELAYED", {"nobody.knows.this": "true"})
    with make_broker(headrace.ManualClock()) as broker:
        (first, second), _ = run(broker)
    assert 600_000 <= second - first < 602_000
