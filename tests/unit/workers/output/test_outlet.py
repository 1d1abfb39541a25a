"""The serdes and limits of topics that an outlet remembers, and how long it remembers them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import headrace
from headrace.errors import MessageTooLargeError
from headrace.workers.output.outlet import LIMIT_HOLDS_S, Outlet

LARGE = (None, b"x" * 5_000, (), 0)


def with_outlet(broker: headrace.Broker, use: Callable[[Outlet], Awaitable[None]]) -> None:
    async def run() -> None:
        # The default of metadata.max.age.ms is 5 minutes of real time.
        outlet = Outlet(broker, "app", {}, {"metadata_max_age_ms": 50})
        try:
            await use(outlet)
        finally:
            await outlet.close()

    asyncio.run(run())


def test_a_topic_that_was_created_again_is_written_by_its_own_serde() -> None:
    with headrace.Broker() as broker:
        broker.create_topic("t", serde="json")

        async def use(outlet: Outlet) -> None:
            await outlet.publish("t", "x")
            assert [each.value for each in broker.read("t", 0, 0, serde="bytes")] == [b'"x"']
            broker.delete_topic("t")
            broker.create_topic("t", serde="str")
            await asyncio.sleep(0.06)
            await outlet.publish("t", "y")
            assert [each.value for each in broker.read("t", 0, 0, serde="bytes")] == [b"y"]

        with_outlet(broker, use)


def test_a_raised_record_limit_is_used_soon() -> None:
    with headrace.Broker() as broker, headrace.Admin(broker) as admin:
        broker.create_topic("t", configs={"max.message.bytes": "1000"})

        async def use(outlet: Outlet) -> None:
            with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes=1000"):
                await outlet.check_record("t", LARGE, 5_000)
            admin.alter_configs("t", {"max.message.bytes": "10000"})
            with pytest.raises(MessageTooLargeError):
                # Smaller dead letters would be measured differently.
                await outlet.check_record("t", LARGE, 5_000)
            await asyncio.sleep(LIMIT_HOLDS_S + 0.1)
            await outlet.check_record("t", LARGE, 5_000)

        with_outlet(broker, use)
