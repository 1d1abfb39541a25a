"""Deduplication decides which records are new while other records with their keys are being handled."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

import pytest

from headrace.types import TopicPartition
from headrace.workers.deduplication.deduplication import Deduplication
from headrace.workers.deduplication.program_keys import ProgramKeys
from headrace.workers.deduplication.recent_keys import RecentKeys
from headrace.workers.output.outbox import HandledKey

ORDERS = TopicPartition("orders", 0)


def marks(*keys: str) -> list[HandledKey]:
    return [HandledKey(ORDERS, offset, key) for offset, key in enumerate(keys)]


def test_the_oldest_keys_are_forgotten() -> None:
    keys = RecentKeys(2)
    for key in ("a", "b", "a", "c"):
        keys.add(key)
    assert [key in keys for key in "abc"] == [True, False, True]


@pytest.mark.parametrize(("handled", "second"), [(True, [False]), (False, [True])])
def test_a_record_waits_while_its_key_is_being_handled(handled, second) -> None:
    async def main() -> None:
        deduplication = Deduplication(RecentKeys())
        assert await deduplication.begin(ORDERS, ["a", "a", "b"]) == [True, False, True]
        waiting = asyncio.create_task(deduplication.begin(ORDERS, ["a"]))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        await deduplication.end(marks("a", "b"), handled=handled)
        assert await waiting == second

    asyncio.run(main())


def test_an_object_of_the_program_can_keep_keys() -> None:
    async def main() -> None:
        kept: set[Hashable] = {"old"}
        deduplication = Deduplication(ProgramKeys(kept, "w"))
        assert await deduplication.begin(ORDERS, ["old", "new"]) == [False, True]
        await deduplication.end(marks("new"), handled=True)
        assert kept == {"old", "new"}

    asyncio.run(main())
