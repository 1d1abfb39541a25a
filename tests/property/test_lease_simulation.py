"""A few simulation runs of leases, and runs that must find a broken rule. `make simulate` does ten thousand runs."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from tests.simulation.leases.defences import DEFENCES, broken
from tests.simulation.leases.knobs import draw
from tests.simulation.leases.lease_simulation import LeaseSimulation, run_seed

SEEDS = range(23)
"""The seeds of the runs. They include every fault, and groups without faults."""
TRIED = 12
"""The number of seeds, from the given first one, within which a broken rule must be found."""
FIRST = {
    "the deadline is looked at before each record": 33,
    "the deadline counts from before the request": 529,
    "a request without an answer proves nothing": 119,
    "a lease is taken only if its beat is as it was seen": 105,
    "a lease is free when it did not change for long enough by one's own clock": 11,
    "both parents are finished before a child is read": 19,
    "LATEST is decided once": 24,
    "reading begins where the lease is when it is taken": 41,
}


@pytest.mark.parametrize("seed", SEEDS)
def test_every_invariant_of_leases_holds(seed: int) -> None:
    LeaseSimulation(seed).run()


def test_a_seed_determines_its_run_of_leases() -> None:
    simulations = [LeaseSimulation(11, trace=True) for _ in range(2)]
    for simulation in simulations:
        simulation.run()
    assert simulations[0].lines == simulations[1].lines


def test_members_that_begin_together_have_their_shares_within_a_few_scans() -> None:
    """The members create the leases together, so that a member may have seen only some of the leases at first."""
    knobs = replace(
        draw(0),
        is_clean=True,
        has_rates=False,
        drift=0.0,
        streams=1,
        shards=4,
        has_bounds=False,
        busy_ms=10**9,
        late=0.0,
        lost_requests=0.0,
        lost_replies=0.0,
        twice=0.0,
        stalls=0.0,
    )
    for seed in (1, 7, 8, 10, 12, 30):
        with patch("tests.simulation.leases.lease_simulation.draw", lambda _: knobs):
            told = LeaseSimulation(seed)
        for wait_ms in (seed, 3 * knobs.settings.scan_ms):
            told._join()
            told._run_until(told.now_ms + wait_ms)
        assert [len(list(member.core.held)) for member in told.processes] == [2, 2], seed


@pytest.mark.parametrize("rule", DEFENCES)
def test_a_broken_rule_of_leases_is_noticed(rule: str) -> None:
    first = FIRST.get(rule, 0)
    with broken(rule):
        problems = (run_seed(seed)[1] for seed in range(first, first + TRIED))
        noticed = next((problem for problem in problems if problem), "")
    assert "ViolationError" in noticed, f"no check failed in {TRIED} runs without the rule: {rule}"
