"""The objects that a full garbage collection examines."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from headrace.server.garbage import FullCollections


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.itself = self


def cycles() -> int:
    return sum(isinstance(each, Cycle) for each in gc.get_objects())


@pytest.fixture
def collections() -> Iterator[FullCollections]:
    gc.collect()
    collections = FullCollections(much_garbage=1_000)
    collections.start()
    try:
        yield collections
    finally:
        collections.stop()


def test_a_collection_frees_the_garbage_since_the_previous_one(
    collections: FullCollections,
) -> None:
    for _ in range(3):
        Cycle()
    assert cycles() == 3
    gc.collect()
    assert cycles() == 0


@pytest.mark.slow
def test_surviving_objects_are_not_examined_again(collections: FullCollections) -> None:
    kept = [Cycle()]
    gc.collect()
    kept.clear()
    gc.collect()
    assert gc.get_freeze_count()
    gc.unfreeze()
    assert cycles() == 1
    gc.collect()
    assert cycles() == 0


@pytest.mark.slow
def test_all_objects_are_examined_after_much_garbage(
    collections: FullCollections,
) -> None:
    kept = [Cycle()]
    gc.collect()
    kept.clear()
    for _ in range(1_001):
        Cycle()
    gc.collect()  # finds more garbage than expected
    gc.collect()
    gc.unfreeze()
    assert cycles() == 0
