"""`context.publish` refuses wrong arguments in the handler, before it sends a request."""

from __future__ import annotations

from typing import Any

import pytest

import headrace
from headrace import App
from headrace.errors import ConfigError
from headrace.testing import Broker

WRONG: list[dict[str, Any]] = [
    {"topic": 7},
    {"topic": ["o"]},
    {"topic": None},
    {"headers": 7},
    {"headers": {"a": b"b"}},
    {"headers": [("a", "text")]},
    {"headers": ["a"]},
    {"tags": 7},
    {"tags": [7]},
    {"ttl_ms": "soon"},
    {"delay_ms": 1.5},
    {"deliver_at_ms": 2**70},
]


@pytest.mark.parametrize("in_a_thread", [False, True], ids=["coroutine", "thread"])
@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_wrong_argument_raises_in_the_handler(delivery: Any, in_a_thread: Any) -> None:
    told: list[Exception] = []
    app = App(commit_interval_s=0.02)

    def arguments(wrong: dict[str, Any]) -> dict[str, Any]:
        return {"topic": "o", "value": b"x", **wrong}

    async def handle(order: bytes, context: headrace.Context) -> None:
        for wrong in WRONG:
            with pytest.raises(ConfigError) as caught:
                await context.publish(**arguments(wrong))
            told.append(caught.value)
        await context.publish("o", b"x")

    def handle_in_a_thread(order: bytes, context: Any) -> None:
        for wrong in WRONG:
            with pytest.raises(ConfigError) as caught:
                context.publish(**arguments(wrong))
            told.append(caught.value)
        context.publish("o", b"x")

    handler: Any = handle_in_a_thread if in_a_thread else handle
    app.worker("orders", group="g", delivery=delivery)(handler)
    with Broker() as broker:
        broker.create_topic("orders")
        broker.create_topic("o")
        with app.test(broker) as t:
            broker.publish("orders", b"1")
            t.wait_idle()
        assert [message.value for message in broker.messages("o")] == [b"x"]
    assert len(told) == len(WRONG)
