"""A `context` for a handler's unit test, without a broker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import headrace
from headrace.errors import ConfigError
from headrace.testing import context


async def bill(order: dict[str, Any], context: headrace.Context) -> str:
    sent = await context.publish("audit", order, key=context.key, tags=["new"])
    return f"{sent.topic} {sent.offset} {context.attempt} {context.valid()}"


def bill_in_thread(order: dict[str, Any], context: headrace.Context) -> str:
    sent: Any = context.publish("audit", order)
    return f"{sent.topic} {sent.offset}"


def test_a_coroutine_handler_runs_with_a_test_context() -> None:
    told = context("orders", key=b"k", attempt=2)
    assert asyncio.run(bill({"id": 1}, told)) == "audit 0 2 True"
    assert asyncio.run(bill({"id": 2}, told)) == "audit 1 2 True"
    assert [(each.topic, each.value, each.key) for each in told.published] == [
        ("audit", {"id": 1}, b"k"),
        ("audit", {"id": 2}, b"k"),
    ]
    assert dict(told.published[0].headers)


def test_a_plain_handler_runs_with_a_test_context() -> None:
    assert bill_in_thread({}, context()) == "audit 0"


def test_a_context_describes_its_record() -> None:
    told = context("orders", partition=3, offset=7, headers=(("h", b"1"),), timestamp_ms=5, epoch=9)
    assert (told.topic, told.partition, told.offset, told.timestamp_ms) == ("orders", 3, 7, 5)
    assert (told.headers, told.epoch, told.record.value) == ((("h", b"1"),), 9, None)


def test_a_partition_can_be_lost() -> None:
    told = context()
    told.lose()
    assert not told.valid()


def test_publish_refuses_records_that_a_broker_would_refuse() -> None:
    with pytest.raises(ConfigError):
        _ = context().publish("out", 1, tags=["a,b"], delay_ms=-1)
