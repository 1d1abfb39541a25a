"""The further functions of a hub that run after a tick of the broker."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.unit.server.loops import on_loop
from tests.unit.server.test_end_of_hub import make_hub


@on_loop
async def test_further_ticks_run_after_the_tick_of_the_broker() -> None:
    hub: Any = make_hub()
    done: list[str] = []
    ended = asyncio.Event()
    broker = hub._broker

    def tick(_: int) -> None:
        broker.next_deadline_ms = None
        done.append("broker")

    def also() -> None:
        done.append("also")
        ended.set()

    broker.tick, broker.next_deadline_ms = tick, hub.now_ms
    hub.ticks.append(also)
    hub.start()
    async with asyncio.timeout(10):
        await ended.wait()
    hub.stop()
    assert done == ["broker", "also"]
