"""A consumer that stores the values that it processes, and a function that reads the leases of its group."""

from __future__ import annotations

from typing import Any

from headrace.core.lease.lease import Lease
from headrace.kinesis.consumer import Consumer, Message
from headrace.kinesis.leases.memory import MemoryLeaseStore
from headrace.testing.kinesis import FakeAws
from tests.integration.kinesis.group.apps import settings_of


class Collector(Consumer):
    """A consumer that stores the values that it processes."""

    def __init__(self, aws: FakeAws, store: str | MemoryLeaseStore, **options: Any) -> None:
        given = {
            "initial_checkpoint": "TRIM_HORIZON",
            "lock_duration": 1_500,
            "wait_time_acquire": 300,
            "poll_ms": 200,
            **options,
        }
        super().__init__("orders", "billing", aws=settings_of(aws), leases=store, **given)
        self.processed: list[str] = []

    async def process_batch(self, batch: list[Message]) -> None:
        self.processed += [message.payload.decode() for message in batch]


async def stored(store: MemoryLeaseStore) -> list[Lease]:
    [(group, stream)] = await store.streams()
    return await store.leases(group, stream)
