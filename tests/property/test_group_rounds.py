"""Random runs of a group in virtual time: a few here, a thousand with HEADRACE_GROUP_ROUNDS=1000."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any
from unittest.mock import patch

import pytest

from headrace.clients.consumer.group_membership import GroupMembership
from headrace.clients.consumer.rebalancing import Rebalancing
from headrace.core.coordinator.any_group import offsets as coordinator_offsets
from headrace.core.coordinator.any_group.kinds import Kind, kind_of
from headrace.core.coordinator.consumer.turn import Turn
from headrace.core.coordinator.state.shard import GroupShard
from headrace.errors import ErrorCode
from tests.fixtures.group_rounds import SERVER_SIDE, Round

pytestmark = pytest.mark.slow  # not in `make check`

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
def test_no_record_is_lost_and_no_partition_has_two_owners_in_random_runs(assignors) -> None:
    counts: Counter[str] = Counter()
    for seed in range(ASSIGNORS.index(assignors), ROUNDS, len(ASSIGNORS)):
        simulation = Round(seed, assignors)
        try:
            simulation.run()
        except AssertionError as error:
            raise AssertionError(f"round {seed} of {assignors}: {error}") from error
        counts += simulation.counts
    # Runs without rebalances and failures would prove nothing.
    happened = {"kills", "freezes", "leaves", "crashes", "restarts", "commits"}
    assert happened <= set(counts), counts


def first_failure(seeds: range, assignors: list[str]) -> str:
    for seed in seeds:
        try:
            Round(seed, assignors).run()
        except (AssertionError, KeyError) as error:
            return str(error)
    return ""


def from_anybody(shard: GroupShard, group_id: str) -> Kind:
    return kind_of(shard, group_id)._replace(check_commit=lambda *_: ErrorCode.NONE)


TRUSTS = "a member that wakes up trusts what it has in hand"
ANYBODY = "the coordinator accepts commits of any client"
KEPT = "members do not release partitions"
FREE = "the coordinator assigns partitions before their revocation"
FAULTS: dict[str, Any] = {
    TRUSTS: patch.object(GroupMembership, "may_hand_out", lambda self: True),
    ANYBODY: patch.object(coordinator_offsets, "kind_of", from_anybody),
    KEPT: patch.object(Rebalancing, "_drop", lambda self, names: None),
    FREE: patch.object(Turn, "_is_free", lambda self, partition: True),
}


@pytest.mark.slow  # not in `make check`
@pytest.mark.parametrize(
    ("fault", "assignors", "seed"),
    [
        (TRUSTS, ["equal"], 0),
        (ANYBODY, ["equal"], 0),
        (KEPT, ["equal"], 0),
        (TRUSTS, [SERVER_SIDE], 21),
        (ANYBODY, [SERVER_SIDE], 33),
        (FREE, [SERVER_SIDE], 0),
    ],
)
def test_the_rounds_find_a_fault(fault: str, assignors: list[str], seed: int) -> None:
    """Search from a seed on. Members of the KIP-848 protocol miss fewer rebalances, so the search takes longer."""
    with FAULTS[fault]:
        assert first_failure(range(seed, seed + 40), assignors), (
            f"no round found the fault: {fault}"
        )


@pytest.mark.parametrize("assignors", [["equal"], [SERVER_SIDE]], ids="+".join)
def test_a_seed_determines_its_run(assignors: list[str]) -> None:
    simulations = []
    for _ in range(2):
        simulation = Round(3, assignors)
        simulation.run()
        simulations.append((simulation.counts, simulation.owners, simulation.world.now_ms()))
    assert simulations[0] == simulations[1]
