"""What a full collection looks at."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from headrace.server.garbage import FullCollections


class Cycle:
    """An object that only the collector frees."""

    def __init__(self) -> None:
        self.itself = self


def cycles() -> int:
    return sum(isinstance(each, Cycle) for each in gc.get_objects())


@pytest.fixture
def collections() -> Iterator[FullCollections]:
    gc.collect()
    collections = FullCollections(at_least=0)
    collections.start()
    try:
        yield collections
    finally:
        collections.stop()


def test_a_collection_frees_what_has_become_garbage_since_the_one_before(
    collections: FullCollections,
) -> None:
    for _ in range(3):
        Cycle()
    assert cycles() == 3
    gc.collect()
    assert cycles() == 0


def test_what_survives_is_not_looked_at_again(collections: FullCollections) -> None:
    kept = [Cycle()]
    gc.collect()
    kept.clear()
    gc.collect()
    assert gc.get_freeze_count()
    gc.unfreeze()
    assert cycles() == 1
    gc.collect()
    assert cycles() == 0


def test_all_objects_are_looked_at_when_their_number_has_doubled(
    collections: FullCollections,
) -> None:
    kept = [Cycle()]
    gc.collect()
    kept.clear()
    many = [[number] for number in range(2 * gc.get_freeze_count())]
    gc.collect()  # sees that there are twice as many
    gc.collect()
    gc.unfreeze()
    assert cycles() == 0
    assert many
