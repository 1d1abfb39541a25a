"""The end of a hub: no connection begins after the last one was closed."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.clock import SteadyClock
from headrace.config.broker import parse_broker_config
from headrace.server.hub import BrokerHub
from headrace.server.limits import ServerLimits
from headrace.server.log import RateLimited
from tests.unit.server.fakes import Client, RecordingJournal, serving
from tests.unit.server.loops import on_loop


def make_hub() -> BrokerHub:
    broker: Any = SimpleNamespace(
        config=parse_broker_config({}),
        quotas=SimpleNamespace(active=False, connection_rate=lambda _address: None),
        next_deadline_ms=None,
        sync_due=False,
        compaction_due=False,
    )
    clock = SteadyClock()
    return BrokerHub(
        asyncio.get_running_loop(),
        broker,
        clock=clock,
        limits=ServerLimits(),
        journal=RateLimited(RecordingJournal(), clock.now_ms),
        on_failure=lambda _: None,
    )


@on_loop
async def test_connections_are_refused_while_the_server_drains() -> None:
    hub: Any = make_hub()
    hub.accepted = 0
    before = hub.opened

    def opened(connection: Any) -> str | None:
        reason: str | None = before(connection)
        hub.accepted += 1
        came.set()
        return reason

    async def until(condition: Any) -> None:
        async with asyncio.timeout(10):
            while not condition():
                came.clear()
                await came.wait()

    came = asyncio.Event()
    hub.opened, hub.until = opened, until
    async with serving(hub) as connect:
        first: Client = await connect()
        assert len(hub.connections) == 1
        await hub.drain(1)
        late: Client = await connect()
        assert await late.closed()
        await hub.close_connections()
        assert await first.closed()
        assert hub.connections == []
    hub.stop()


@on_loop
async def test_a_connection_that_comes_while_the_others_are_closed_does_not_delay_the_end() -> None:
    hub: Any = make_hub()
    hub.accepted = 0
    async with asyncio.timeout(10):
        hub.until = lambda _: asyncio.sleep(0)
        async with serving(hub) as connect:
            await hub.close_connections()
            late: Client = await connect()
            assert await late.closed()
            await hub.close_connections()
    hub.stop()
