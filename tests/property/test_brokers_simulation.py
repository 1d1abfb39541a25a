"""Simulation runs of three brokers with real clients: a few seeds. `make simulate` runs ten thousand."""

from __future__ import annotations

import pytest

from tests.simulation.brokers.brokers_simulation import BrokersSimulation

pytestmark = pytest.mark.slow

SEEDS = range(8)


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
