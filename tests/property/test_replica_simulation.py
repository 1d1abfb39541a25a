"""Simulation runs of a cluster's cores, and runs that must notice a missing defence. `make simulate` does more."""

from __future__ import annotations

import pytest

from tests.simulation.replicas.defences import DEFENCES, without
from tests.simulation.replicas.replica_simulation import (
    BEGIN_MS,
    ReplicaSimulation,
    run_seed,
)

FIRST = {
    "a replica that leaves counts until the change is stored": 7,
    "a replica that joins counts from the proposal on": 0,
    "a change of the ISR checks the state": 73,
    "a replica joins with its newest registration": 78,
    "the high watermark freezes below the minimum": 3,
    "logs are compared": 1,
    "a follower truncates by leader epoch": 17,
    "late divergences are ignored": 112,
    "a follower reports what is synced": 0,
    "a leader counts what is synced": 1,
    "a broker that has lost records leaves": 25,
    "a broker leaves although its start was interrupted": 25,
    "an election checks the registration of the leader": 12,
}
"""A seed for each defence whose run violates an invariant without the defence."""


@pytest.mark.parametrize("seed", [0, 17])
def test_every_invariant_of_replicas_holds(seed: int) -> None:
    ReplicaSimulation(seed).run()


@pytest.mark.slow
def test_every_invariant_of_replicas_holds_in_many_runs() -> None:
    for seed in range(300):
        assert run_seed(seed)[1] == "", seed


def test_a_seed_determines_its_run_of_replicas() -> None:
    simulations = [ReplicaSimulation(3, trace=True) for _ in range(2)]
    for simulation in simulations:
        simulation.begin()
        simulation.run_until(BEGIN_MS + 12_000)
    assert simulations[0].lines == simulations[1].lines
    assert len(simulations[0].lines) > 30


def test_every_defence_has_a_seed() -> None:
    assert FIRST.keys() == DEFENCES.keys()


@pytest.mark.parametrize("defence", DEFENCES)
def test_a_missing_defence_of_replicas_is_noticed(defence: str) -> None:
    seed = FIRST[defence]
    with without(defence):
        problem = run_seed(seed)[1]
    assert problem.startswith("ViolationError"), f"seed {seed} violates nothing"
