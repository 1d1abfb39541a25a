"""The consumer of batches: its log message when a shard is transferred while a batch is being processed."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headrace.kinesis import consumer as module
from headrace.kinesis.consumer import Consumer
from headrace.stream_record import StreamRecord
from headrace.types import TopicPartition


def test_a_batch_that_delays_the_transfer_of_its_shard_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Instead of 30 s, which would take too long here.
    monkeypatch.setattr(module, "DRAIN_TIMEOUT_S", 0.05)

    async def scenario() -> None:
        consumer = Consumer("orders", "g", leases="memory:")
        consumer._batch = [StreamRecord("orders", 3, 9 << 24, 7, b"k", b"v", (), 1)]
        await consumer.on_revoked([TopicPartition("orders", 4)])
        assert not caplog.records, "another shard goes"
        await consumer.on_revoked([TopicPartition("orders", 3)])

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    [line] = caplog.messages
    assert "another member takes the shard over" in line
    assert "shard_id=shardId-000000000003" in line
    assert "Make batches smaller" in line
