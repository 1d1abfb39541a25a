"""Dead letters that wait for their topic: one task checks for all of them whether the topic exists."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from headrace import ConsumerRecord
from headrace.workers.core.origins import Origins
from headrace.workers.failure import writer
from headrace.workers.failure.writer import FailedRecordWriter

COUNT = 50


class Outlet:
    """An outlet that has every topic. It delivers records when the test sets `delivered`."""

    def __init__(self) -> None:
        self.looked = 0
        self.delivered = asyncio.Event()

    async def partition_counts(self, topics: Collection[str]) -> dict[str, int]:
        self.looked += 1
        return dict.fromkeys(topics, 1)

    async def max_message_bytes(self, _topic: str) -> int:
        return 1_000

    async def create_topics(self, _partitions: Any, **_options: Any) -> None:
        """Do nothing: all topics exist."""

    async def write(self, *_arguments: Any, **_options: Any) -> None:
        await self.delivered.wait()


def test_waiting_dead_letters_share_one_check_of_their_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def looks_and_rounds() -> tuple[int, float]:
        outlet: Any = Outlet()
        writer_of_letters = FailedRecordWriter(
            "handle", outlet, Origins("g"), None, reads_streams=False
        )
        record = ConsumerRecord("orders", 0, 0, 0, None, b"x", (), 0)
        looked = asyncio.Event()
        looks, restore = 0, writer_of_letters.restore

        async def counted(topic: str) -> None:
            nonlocal looks
            looks += 1
            await restore(topic)
            looked.set()

        monkeypatch.setattr(writer_of_letters, "restore", counted)
        loop = asyncio.get_running_loop()
        letters = [
            asyncio.ensure_future(writer_of_letters.write_letter(outlet, "dlq.orders", record, ()))
            for _ in range(COUNT)
        ]
        began_s = loop.time()
        while loop.time() < began_s + 3 * writer.LOOK_S:
            await looked.wait()
            looked.clear()
        found = looks, (loop.time() - began_s) / writer.LOOK_S
        outlet.delivered.set()
        await asyncio.gather(*letters)
        return found

    monkeypatch.setattr(writer, "LOOK_S", 0.05)
    looks, rounds = asyncio.run(looks_and_rounds())
    assert 1 < looks <= rounds + 1
