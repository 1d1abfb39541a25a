"""A thousand stories of a group in virtual time (a few of them here; HEADRACE_GROUP_ROUNDS=1000 tells all)."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest

from headrace.clients.consumer.belonging import Belonging
from headrace.clients.consumer.rebalancing import Rebalancing
from headrace.core.coordinator.group import offsets as coordinator_offsets
from headrace.errors import ErrorCode
from tests.fixtures.group_rounds import SERVER_SIDE, Round

ROUNDS = int(os.environ.get("HEADRACE_GROUP_ROUNDS", "40"))
ASSIGNORS = [
    ["equal"],
    ["range"],
    ["roundrobin"],
    ["sticky"],
    ["cooperative-sticky"],
    ["cooperative-sticky", "range"],
    [SERVER_SIDE],
]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("assignors", ASSIGNORS, ids="+".join)
def test_nothing_is_lost_and_nobody_shares_a_partition_whatever_happens(assignors) -> None:
    counts: Counter[str] = Counter()
    for seed in range(ASSIGNORS.index(assignors), ROUNDS, len(ASSIGNORS)):
        story = Round(seed, assignors)
        try:
            story.run()
        except AssertionError as error:
            raise AssertionError(f"round {seed} of {assignors}: {error}") from error
        counts += story.counts
    # A story in which nothing happened proves nothing.
    happened = {"kills", "freezes", "leaves", "crashes", "restarts", "commits"}
    assert happened <= set(counts), counts


def first_failure(seeds: range) -> str:
    for seed in seeds:
        try:
            Round(seed, ["equal"]).run()
        except (AssertionError, KeyError) as error:
            return str(error)
    return ""


FAULTS: dict[str, Any] = {
    "a member that wakes up trusts what it has in hand": patch.object(
        Belonging, "may_hand_out", lambda self: True
    ),
    "the coordinator takes commits from anybody": patch.object(
        coordinator_offsets, "_commit_error", lambda group, request: ErrorCode.NONE
    ),
    "partitions are not given up": patch.object(Rebalancing, "_drop", lambda self, names: None),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_rounds_find_a_fault(fault: str) -> None:
    with FAULTS[fault]:
        assert first_failure(range(40)), f"nobody noticed that {fault}"


def test_one_seed_tells_one_story() -> None:
    stories = []
    for _ in range(2):
        story = Round(3, ["equal"])
        story.run()
        stories.append((story.counts, story.owners, story.world.now_ms()))
    assert stories[0] == stories[1]
