"""`headrace serve` writes out logs of durability `os` in a thread, and their group commit follows."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from headrace.broker.log_dirs.background_sync import OS_INTERVAL_MS
from headrace.server.service import begin_write_outs
from tests.fixtures.broker_harness import BrokerHarness
from tests.fixtures.crash_files import CrashFileSystem


def test_logs_that_are_due_are_written_out_at_the_next_tick_of_the_hub() -> None:
    harness = BrokerHarness(files=CrashFileSystem(), durability="os")
    ends: list[Any] = []
    hub: Any = SimpleNamespace(ticks=[], end=lambda: ends.append(harness.broker.sync_due))

    async def serve() -> None:
        write_outs = begin_write_outs(
            asyncio.get_running_loop(), hub, harness.broker, lambda: harness.now_ms, ends.append
        )
        harness.create_topic("much")
        harness.produce("much", b"a")
        harness.advance(OS_INTERVAL_MS)
        assert not harness.broker.sync_due, "the process writes out what is due before"
        for tick in hub.ticks:
            tick()
        await write_outs.idle()
        write_outs.close()

    asyncio.run(serve())
    assert ends == [True], (
        "then the hub is notified, and the log takes part in its next group commit"
    )
    assert harness.sync()
    assert harness.broker.services.partitions.require("much", 0).log.synced_offset == 1
