"""A topic is deleted and created again before each single file operation of work in another thread.

The work uses paths: a compaction, the removal of expired records, a group commit, a write-out of durability `os`. The
work of the old topic must not change the new topic. The new topic has its own records only: while the broker runs,
after a kill at that moment, and after the next start.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.log_dirs.write_out import WriteOuts
from headrace.errors import StorageError
from headrace.records.builder import BatchBuilder
from headrace.records.reader import read_records
from tests.fixtures.broker_harness import BrokerHarness, Pending, produce_request
from tests.fixtures.hooked_files import Before, HookedFileSystem

pytestmark = pytest.mark.slow  # not in `make check`

SMALL = {"segment_bytes": "1000"}
COMPACTED = SMALL | {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.01"}
EXPIRING = SMALL | {"headrace_ttl_enable": "true"}
NEW = [b"new 0", b"new 1", b"new 2"]
AT_ONCE_MS = 5


def put(harness: BrokerHarness, key: bytes, value: bytes, ttl_ms: int | None = None) -> None:
    builder = BatchBuilder()
    headers = () if ttl_ms is None else (("headrace.ttl-ms", b"%d" % ttl_ms),)
    assert builder.append(key, value, headers, harness.now_ms)
    response = harness.call(produce_request("t", 0, bytes(builder.build())))
    assert response.responses[0].partition_responses[0].error_code == 0


def values(harness: BrokerHarness) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        part = harness.fetch("t", offset)
        assert part.error_code == 0
        records = list(read_records(bytes(part.records or b"")))
        if not records:
            return found
        found += [record.value or b"" for record in records]
        offset = records[-1].offset + 1


class Harness:
    """A broker on a disk, with a topic that has pending work, and the new topic of the same name."""

    def __init__(self, root: Path, settings: dict[str, Any]) -> None:
        self.files = HookedFileSystem(root)
        self.harness = BrokerHarness(files=self.files)
        self.settings = settings
        self.replaced = False
        self.unanswered: list[Pending] = []
        self.harness.create_topic("t", **settings)

    def replace_topic(self) -> None:
        hook, self.files.hook = self.files.hook, None
        harness, self.replaced = self.harness, True
        harness.delete_topic("t")
        harness.create_topic("t", **self.settings)
        pending = []
        for value in NEW:
            builder = BatchBuilder()
            assert builder.append(value, value, (), harness.now_ms)
            pending.append(harness.send(produce_request("t", 0, bytes(builder.build()))))
        # A running commit ends first, as in the server.
        self.unanswered = pending
        while not all(each.done for each in pending) and harness.sync():
            pass
        self.files.hook = hook

    def check(self) -> None:
        harness = self.harness
        assert not harness.broker.failed
        while harness.sync():
            assert not harness.broker.failed
        assert all(each.done for each in self.unanswered)
        assert values(harness) == NEW
        names = self.files.list("t-0")
        assert not [name for name in names if name.endswith((".cleaned", ".swap"))]
        assert not [name for name in self.files.list("") if name.endswith("-delete")]


def compaction(world: Harness) -> Any:
    for number in range(40):
        put(world.harness, b"k%d" % (number % 3), b"old %d" % number)
    world.harness.advance(60_000)
    return world.harness.broker.start_compaction()


def expiry(world: Harness) -> Any:
    for number in range(40):
        put(world.harness, b"k", b"old %d" % number, ttl_ms=AT_ONCE_MS)
        put(world.harness, b"k", b"that stays %d" % number)
    world.harness.advance(2 * 3_600_000)
    return world.harness.broker.start_compaction()


def run_rounds(world: Harness, task: Any, *, until_replaced: bool) -> None:
    """Run the steps of a round as the server does. `until_replaced` kills the broker when the topic is replaced."""
    broker, harness, hook = world.harness.broker, world.harness, world.files.hook
    while task is not None:
        error: Exception | None = None
        world.files.hook = hook
        try:
            task.run()
        except (OSError, StorageError) as raised:  # the files were replaced or removed
            error = raised
        world.files.hook = None  # the rest runs in the event loop, which also deletes topics
        if world.replaced and until_replaced:
            return
        broker.finish_compaction(task, error, harness.now_ms)
        task = broker.start_compaction()


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize(
    ("settings", "begin"), [(COMPACTED, compaction), (EXPIRING, expiry)], ids=["compact", "expire"]
)
def test_a_round_never_changes_a_topic_that_was_created_meanwhile(
    tmp_path: Path, settings: dict[str, str], begin: Callable[[Harness], Any], *, killed: bool
) -> None:
    number = 0
    while True:
        world = Harness(tmp_path / str(number), settings)
        task = begin(world)
        assert task is not None
        world.files.hook = Before(number, world.replace_topic)
        run_rounds(world, task, until_replaced=killed)
        world.files.hook = None
        if not world.replaced:
            break
        if not killed:
            world.check()
        world.harness.crash()
        world.check()
        number += 1
    assert number > 20


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_sync_never_fails_for_a_topic_that_was_deleted_meanwhile(
    tmp_path: Path, durability: str
) -> None:
    number = 0
    while True:
        world = Harness(tmp_path / str(number), SMALL | {"headrace_durability": durability})
        harness, broker = world.harness, world.harness.broker
        write_outs = WriteOuts(broker.services.log_store.dirs)
        for value in (b"old 0", b"old 1"):
            builder = BatchBuilder()
            assert builder.append(None, value * 100, (), harness.now_ms)
            harness.send(produce_request("t", 0, bytes(builder.build())))
        harness.advance(31_000)
        hook = Before(number, world.replace_topic)
        sources: list[Any] = [write_outs, broker]
        for source in sources:
            commit = source.start_sync()
            if commit is not None:
                world.files.hook = hook
                commit.run()
                world.files.hook = None
                source.finish_sync(commit, None, harness.now_ms)
        if not world.replaced:
            break
        while harness.sync():
            pass
        world.check()
        harness.crash()
        world.check()
        number += 1
    assert number >= 2
