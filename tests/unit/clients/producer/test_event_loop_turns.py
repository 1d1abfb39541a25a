"""The event loop sends batches also while an asyncio program only calls `send`."""

from __future__ import annotations

import asyncio

from headrace.clients.producer.aio import Producer
from headrace.clients.producer.aio_delivery import DeliveryFuture
from headrace.embedded.broker import Broker


def test_the_loop_has_its_turn_after_each_batch_that_was_closed() -> None:
    async def program(address: str) -> list[int]:
        turns: list[int] = []
        sent: list[DeliveryFuture] = []
        async with Producer(address, batch_size=1000) as producer:
            await (await producer.send("t", b"first"))
            await producer.flush()
            loop = asyncio.get_running_loop()
            loop.call_soon(turns.append, 1)
            sent += [await producer.send("t", b"x" * 100) for _ in range(30)]  # three batches
            return list(turns)

    with Broker() as broker:
        broker.create_topic("t", partitions=1)
        assert asyncio.run(program(broker.listen())) == [1]
