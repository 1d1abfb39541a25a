"""The asyncio clients on uvloop, whose transports and connections differ from those of asyncio."""

from __future__ import annotations

import asyncio

import uvloop

from headrace import aio, testing


def test_the_asyncio_clients_run_on_uvloop() -> None:
    with testing.Broker() as broker:

        async def talk() -> list[object]:
            async with aio.Producer(broker.bootstrap) as producer:
                await (await producer.send("t", b"a"))
            async with aio.Consumer(
                broker.bootstrap, group="g", auto_offset_reset="earliest"
            ) as consumer:
                await consumer.subscribe(["t"])
                return [record.value for record in await consumer.poll(10.0)]

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            assert runner.run(talk()) == [b"a"]
