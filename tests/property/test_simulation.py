"""A few stories of the simulated world, whether they notice a missing defence; `make simulate` tells ten thousand."""

from __future__ import annotations

import pytest

from tests.simulation.defences import DEFENCES, without
from tests.simulation.story import Story

STORIES = [7, 12, 27, 34]
"""Short ones, which have among them every fault and both generations of every protocol."""
TRIED = 80
"""Within so many seeds from the first that is given a missing defence must show."""
FIRST = {
    "producers are known after a restart (B2)": 39,
    "markers of old epochs end nothing (B6)": 2,
    "what is prepared is completed after a restart (B7)": 6,
    "transactions have a time (B10)": 5,
    "old epochs are fenced (B11)": 6,
    "members of old generations commit nothing (C3)": 31,
    "partitions wait for their owner (C6)": 5,
}


@pytest.mark.parametrize("seed", STORIES)
def test_every_promise_is_kept(seed: int) -> None:
    Story(seed).run()


def test_one_seed_tells_one_story() -> None:
    stories = [Story(STORIES[0]) for _ in range(2)]
    for story in stories:
        story.run()
    assert stories[0].counts == stories[1].counts
    assert stories[0].machine.schedule.events == stories[1].machine.schedule.events


@pytest.mark.parametrize("defence", DEFENCES)
def test_a_missing_defence_is_noticed(defence: str) -> None:
    first = FIRST.get(defence, 0)
    with without(defence):
        for seed in range(first, first + TRIED):
            try:
                Story(seed).run()
            except AssertionError:
                return
    pytest.fail(f"nobody noticed in {TRIED} stories that it was not so that {defence}")
