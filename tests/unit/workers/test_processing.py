"""What is waited for between a record and its handler: afterwards the record has to be this member's still."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.clients.consumer.records import ConsumerRecord
from headrace.workers.processing import Processor
from headrace.workers.threads import HandlerThreads

RECORD = ConsumerRecord("orders", 0, 1, 0, None, b"one", (), 0)


class Source:
    def __init__(self) -> None:
        self.is_ours = True

    def valid(self, _name: object) -> bool:
        return self.is_ours


@pytest.mark.parametrize("comes_back", [False, True])
def test_a_record_that_waited_for_a_thread_is_handled_only_if_it_is_this_members_still(
    *, comes_back: bool
) -> None:
    handled: list[bytes] = []
    free = threading.Event()

    async def run() -> None:
        source: Any = Source()
        threads = HandlerThreads(1, "handlers")
        handler = SimpleNamespace(
            call=handled.append, is_async=False, context=None, wants_batches=False
        )
        settings: Any = SimpleNamespace(
            handler=handler,
            retry_topics=dict,
            dedupe=None,
            serde=SimpleNamespace(deserialize=bytes),
            publications=(),
        )
        nobody: Any = None  # is asked
        processor = Processor(settings, nobody, threads, source)
        hung = asyncio.create_task(threads.run(free.wait))
        wanted = True
        job = asyncio.create_task(processor.process([RECORD], 1, nobody, lambda: wanted))
        await asyncio.sleep(0)
        assert threads._busy == 2
        source.is_ours = False
        free.set()
        await hung
        if comes_back:
            source.is_ours = True
        else:
            wanted = False
        async with asyncio.timeout(5):
            await job
        threads.close()

    asyncio.run(run())
    assert handled == ([b"one"] if comes_back else [])
