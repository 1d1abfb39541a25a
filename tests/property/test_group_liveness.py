"""Random histories of groups, then well-behaved members: each partition gets one owner. `make simulate` runs more."""

from __future__ import annotations

import pytest

from tests.simulation.groups.defences import DEFENCES, without
from tests.simulation.groups.liveness import Liveness, run_seed

pytestmark = pytest.mark.slow  # not in `make check`

SEEDS = range(20)
"""The seeds of the runs. They include groups of every kind, and members that change their protocol back and forth."""
TRIED = 12
"""The number of seeds, from the given first one, within which a missing defence must be found."""
FIRST = {
    "a regular expression is forgotten with its last member": 30,
    "an upgrade computes a target": 85,
}


@pytest.mark.parametrize("seed", SEEDS)
def test_any_history_ends_with_every_partition_owned_once(seed: int) -> None:
    Liveness(seed).run()


def test_random_histories_contain_every_kind_of_event() -> None:
    run = Liveness(3)
    run.run()
    events = {event for _, event, _ in run.history.harness.journal.lines}
    assert {"group_rebalance_began", "consumer_group_member_expired"} <= events
    assert {"join 0", "consumer heartbeat 0", "falls"} <= set(run.history.counts)


def test_a_seed_determines_its_history() -> None:
    runs = [Liveness(5) for _ in range(2)]
    for run in runs:
        run.run()
    assert runs[0].history.lines == runs[1].history.lines
    assert runs[0].history.counts == runs[1].history.counts


@pytest.mark.parametrize("defence", DEFENCES)
def test_a_missing_defence_is_found(defence: str) -> None:
    first = FIRST.get(defence, 0)
    with without(defence):
        problems = (run_seed(seed)[1] for seed in range(first, first + TRIED))
        assert any(problems), f"no history notices that this is missing: {defence}"
