"""Group commit: one sync at a time, later appends share the next one, and a failure is final."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

import pytest

from headrace.server.threads.syncer import Batch, Syncer, Task
from tests.unit.server.loops import on_loop


class FakeBatch:
    disks = 1

    def __init__(self, items: list[str], error: BaseException | None) -> None:
        self.items = items
        self.error = error
        self.gate = threading.Event()
        self.thread = ""

    @property
    def tasks(self) -> Sequence[Task]:
        return [self]

    def run(self) -> None:
        self.thread = threading.current_thread().name
        assert self.gate.wait(10)
        if self.error is not None:
            raise self.error


class FakeBroker:
    def __init__(self) -> None:
        self.dirty: list[str] = []
        self.batches: list[FakeBatch] = []
        self.finished: list[tuple[list[str], OSError | None]] = []
        self.error: BaseException | None = None
        self.make_batch: Callable[[list[str]], FakeBatch] = lambda items: FakeBatch(
            items, self.error
        )

    @property
    def sync_due(self) -> bool:
        return bool(self.dirty)

    def start_sync(self) -> FakeBatch | None:
        if not self.dirty:
            return None
        items, self.dirty = self.dirty, []
        self.batches.append(self.make_batch(items))
        return self.batches[-1]

    def finish_sync(self, batch: Batch, error: OSError | None, now_ms: int) -> None:
        assert isinstance(batch, FakeBatch)
        self.finished.append((batch.items, error))


class Setup:
    def __init__(self) -> None:
        self.broker = FakeBroker()
        self.after = 0
        self.failures: list[BaseException] = []
        self.changed = asyncio.Event()
        self.syncer = Syncer(
            asyncio.get_running_loop(),
            self.broker,
            lambda: 0,
            after=self._after,
            on_failure=self.failures.append,
        )

    def _after(self) -> None:
        self.after += 1
        self.changed.set()

    async def finish(self, batch: FakeBatch) -> None:
        self.changed.clear()
        batch.gate.set()
        async with asyncio.timeout(10):
            await self.changed.wait()


@on_loop
async def test_appends_during_a_sync_share_the_next_sync() -> None:
    setup = Setup()
    broker, syncer = setup.broker, setup.syncer
    broker.dirty.append("a")
    syncer.kick()
    broker.dirty.append("b")  # the same iteration of the event loop: shares the first sync
    await asyncio.sleep(0)
    for item in "cde":
        broker.dirty.append(item)
        syncer.kick()
        await asyncio.sleep(0)
    assert [batch.items for batch in broker.batches] == [["a", "b"]]
    await setup.finish(broker.batches[0])
    assert [batch.items for batch in broker.batches] == [["a", "b"], ["c", "d", "e"]]
    await setup.finish(broker.batches[1])
    assert broker.finished == [(["a", "b"], None), (["c", "d", "e"], None)]
    assert setup.after == 2
    assert broker.batches[0].thread == "headrace-sync"
    syncer.close()


@on_loop
async def test_no_thread_starts_without_unsynced_logs() -> None:
    setup = Setup()
    setup.syncer.kick()
    await setup.syncer.idle()
    assert setup.syncer._thread is None


@on_loop
async def test_idle_waits_for_everything() -> None:
    setup = Setup()
    setup.broker.dirty.append("a")
    setup.syncer.kick()
    await asyncio.sleep(0)
    idle = asyncio.ensure_future(setup.syncer.idle())
    setup.broker.dirty.append("b")
    await setup.finish(setup.broker.batches[0])
    assert not idle.done()
    await setup.finish(setup.broker.batches[1])
    await idle
    assert [items for items, _ in setup.broker.finished] == [["a"], ["b"]]
    setup.syncer.close()


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), RuntimeError("a bug")])
@on_loop
async def test_a_failed_sync_is_reported_and_stops_all_later_syncs(error: BaseException) -> None:
    setup = Setup()
    broker = setup.broker
    broker.error = error
    broker.dirty.append("a")
    setup.syncer.kick()
    await asyncio.sleep(0)
    await setup.finish(broker.batches[0])
    assert isinstance(broker.finished[0][1], OSError)
    assert setup.failures == [error]
    broker.dirty.append("b")
    setup.syncer.kick()
    await setup.syncer.idle()
    assert len(broker.batches) == 1
    setup.syncer.close()


@on_loop
async def test_a_bug_in_the_broker_ends_the_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("start_sync", "finish_sync"):
        setup = Setup()

        def broken(*_: object) -> None:
            raise LookupError("bug")

        setup.broker.dirty.append("a")
        with monkeypatch.context() as patch:
            patch.setattr(setup.broker, method, broken)
            setup.syncer.kick()
            await asyncio.sleep(0)
            for batch in setup.broker.batches:
                await setup.finish(batch)
        assert setup.syncer.failed
        assert isinstance(setup.failures[0], LookupError)
        setup.syncer.close()


class ManyFiles(FakeBatch):
    """Files that wait for each other: one by one they would never end."""

    def __init__(self, count: int, error: BaseException | None) -> None:
        super().__init__([], None)
        barrier = threading.Barrier(min(count, 8))
        self.files = [self.File(barrier, error if number == 2 else None) for number in range(count)]

    class File:
        def __init__(self, barrier: threading.Barrier, error: BaseException | None) -> None:
            self.barrier = barrier
            self.error = error
            self.done = False

        def run(self) -> None:
            self.barrier.wait(10)
            self.done = True
            if self.error is not None:
                raise self.error

    @property
    def tasks(self) -> Sequence[Task]:
        return self.files


@pytest.mark.parametrize("error", [None, OSError(5, "Input/output error")])
@pytest.mark.parametrize(("files", "disks"), [(8, 1), (3, 2)])
@on_loop
async def test_many_files_and_many_disks_are_synced_in_parallel(
    error: OSError | None, files: int, disks: int
) -> None:
    setup = Setup()
    batch = ManyFiles(files, error)
    batch.disks = disks
    setup.broker.dirty.append("a")
    setup.broker.make_batch = lambda items: batch
    setup.syncer.kick()
    async with asyncio.timeout(10):
        await setup.changed.wait()
    assert all(file.done for file in batch.files)
    assert setup.broker.finished == [([], error)]
    assert setup.failures == ([] if error is None else [error])
    setup.syncer.close()
