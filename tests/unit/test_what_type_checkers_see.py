"""What mypy says of programs.

Each `type: ignore` stands at a mistake that mypy has to find: mypy reports one that is not needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_type

import pytest

import headrace
from headrace.errors import ConfigError
from headrace.testing import context

if TYPE_CHECKING:

    def plain(order: str, context: headrace.SyncContext) -> int:
        sent = context.publish("audit", order)
        assert_type(sent, headrace.RecordMetadata)
        return sent.offset

    async def coroutine(order: str, context: headrace.Context) -> int:
        sent = await context.publish("audit", order)
        assert_type(sent, headrace.RecordMetadata)
        context.publish("audit", order)  # type: ignore[unused-awaitable]  # it is to be awaited
        _ = context.publish("audit", order).offset  # type: ignore[attr-defined]  # likewise
        return sent.offset

    async def tried() -> None:
        plain("one", context())
        await coroutine("one", context())


def test_the_context_of_a_plain_function_returns_where_a_record_went() -> None:
    app = headrace.App(group="g")
    places: list[tuple[str, int]] = []

    @app.worker("orders")
    def handle(order: str, context: headrace.SyncContext) -> None:
        sent = context.publish("audit", order)
        places.append((sent.topic, sent.offset))

    with app.test() as t:
        t.produce("orders", "one")
        t.wait_idle()
    told = context("orders")
    handle("two", told)
    assert places == [("audit", 0), ("audit", 0)]


def test_a_coroutine_function_with_the_context_of_a_plain_one_is_refused() -> None:
    app = headrace.App(group="g")
    with pytest.raises(ConfigError, match=r"whose context is a headrace\.Context"):

        @app.worker("orders")
        async def handle(order: str, context: headrace.SyncContext) -> None: ...
