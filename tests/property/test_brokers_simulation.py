"""Simulation runs of three brokers with real clients: a few seeds. `make simulate` runs ten thousand."""

from __future__ import annotations

import pytest

from tests.simulation.brokers.brokers_simulation import BrokersSimulation, run_seed
from tests.simulation.brokers.defences import DEFENCES, without

pytestmark = pytest.mark.slow

SEEDS = range(8)
FINDS = {
    "batches repeated are recognised (B1)": 0,
    "producers are known after a restart (B2)": 3,
    "coordinators answer when it is durable (B7)": 9,
    "what is prepared is completed after a restart (B7)": 3,
    "batches are verified (B9)": 1,
    "transactions have a time (B10)": 5,
    "old epochs are fenced (B11)": 8,
    "readers stop where a transaction is open (B16)": 0,
    "offsets wait for their marker (B17)": 1,
    "a new leader reports its log end as the end of an epoch": 3,
}
"""The seed of a run that finds each missing defence."""
TRIED = 12
"""The number of seeds that are tried if the named one finds nothing."""


@pytest.mark.parametrize("seed", SEEDS)
def test_every_invariant_of_a_cluster_holds(seed: int) -> None:
    BrokersSimulation(seed).run()


def test_the_runs_have_every_fault_of_a_broker() -> None:
    planned = {
        name
        for seed in SEEDS
        for name, rate in BrokersSimulation(seed).knobs.broker_faults.items()
        if rate
    }
    assert planned == set(BrokersSimulation(0).faults.all)


def test_a_seed_determines_its_run() -> None:
    simulations = [BrokersSimulation(SEEDS[2], trace=True) for _ in range(2)]
    for simulation in simulations:
        simulation.run()
    assert simulations[0].machines.lines == simulations[1].machines.lines


@pytest.mark.parametrize("defence", DEFENCES)
def test_without_a_defence_a_violation_is_found(defence: str) -> None:
    """The named seed finds it. A change of the product may move it to another of the first seeds."""
    with without(defence):
        assert any(run_seed(seed)[1] for seed in (FINDS[defence], *range(TRIED)))
