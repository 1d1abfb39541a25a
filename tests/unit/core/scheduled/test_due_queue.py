"""The queue of due records: it has the order of a sorted list, and a bounded number of entries in memory."""

from __future__ import annotations

import random

import pytest

from headrace.core.scheduled import due_queue
from headrace.core.scheduled.due_queue import DueQueue
from headrace.core.scheduled.schedule_batch import ENTRY
from headrace.storage.memory_files import MemoryFileSystem


def entry(due_ms: int, offset: int) -> bytes:
    return ENTRY.pack(due_ms, offset, 0, 10, 0)


@pytest.fixture
def files() -> MemoryFileSystem:
    return MemoryFileSystem()


@pytest.mark.parametrize("seed", range(20))
def test_records_are_delivered_unchanged_and_in_order(
    files: MemoryFileSystem, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_queue, "PAGE_ENTRIES", 3)
    monkeypatch.setattr(due_queue, "FILE_BYTES", 2000)
    chance = random.Random(seed)
    queue, offset = DueQueue(files, "d", limit=chance.choice([1, 2, 7, 50])), 0
    model: list[bytes] = []
    for _ in range(300):
        if chance.random() < 0.55:
            added = [
                entry(chance.randrange(1000), offset + number)
                for number in range(chance.randrange(6))
            ]
            offset += len(added)
            queue.add(added)
            model = sorted(model + added)
        else:
            for _ in range(min(len(model), chance.randrange(8))):
                assert queue.peek() == model[0]
                assert queue.pop() == model.pop(0)
        assert len(queue) == len(model)
        assert queue.peek() == (model[0] if model else None)
    while model:
        assert queue.pop() == model.pop(0)
    assert len(files.list("d")) <= 1, "files whose runs are used up are gone"


def test_memory_is_bounded_however_many_wait(files: MemoryFileSystem) -> None:
    queue = DueQueue(files, "d", limit=1000)
    chance = random.Random(1)
    for start in range(0, 100_000, 500):
        queue.add([entry(chance.randrange(1 << 40), start + each) for each in range(500)])
    assert len(queue) == 100_000
    assert queue.in_memory <= 1500 + 2 * 100_000 / 1000
    before = queue.pop()
    for _ in range(20_000):
        now = queue.pop()
        assert now > before
        before = now


def test_without_space_for_runs_all_stays_in_memory(
    files: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, *, create: bool = False) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MemoryFileSystem, "open", lambda _, path, **options: full(path, **options))
    queue = DueQueue(files, "d", limit=4)
    queue.add([entry(100 - each, each) for each in range(50)])
    assert [ENTRY.unpack(queue.pop())[0] for _ in range(50)] == list(range(51, 101))
