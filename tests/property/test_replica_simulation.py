"""Simulation runs of a cluster's cores, and runs that must notice a missing defence. `make simulate` does more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.replicas.defences import DEFENCES, without
from tests.simulation.replicas.replica_simulation import (
    BEGIN_MS,
    ReplicaSimulation,
    run_seed,
)

ROOT = Path(__file__).resolve().parents[2]
FIRST = {
    "a replica that leaves counts until the change is stored": 2,
    "a replica that joins counts from the proposal on": 0,
    "a change of the ISR checks the state": 26,
    "a replica joins with its newest registration": 5,
    "the high watermark freezes below the minimum": 2,
    "logs are compared": 9,
    "a follower truncates by leader epoch": 1,
    "late divergences are ignored": 245,
    "a follower reports what is synced": 0,
    "a leader counts what is synced": 0,
    "a broker that has lost records leaves": 5,
    "a broker leaves although its start was interrupted": 46,
    "an election checks the registration of the leader": 19,
    "a replica joins when it has the start of the leader epoch": 148,
    "the next proposal waits for an unknown outcome": 8,
    "the newest log leads after power cuts of all replicas": 7,
    "the last replica leaves with the end of its log": 25,
    "a replica with lost records begins anew": 9,
}
"""A seed for each defence whose run violates an invariant without the defence."""


@pytest.mark.parametrize("seed", range(60))
def test_every_invariant_of_replicas_holds(seed: int) -> None:
    ReplicaSimulation(seed).run()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(60, 140, 40))
def test_every_invariant_of_replicas_holds_in_many_runs(first: int) -> None:
    for seed in range(first, first + 40):
        assert run_seed(seed)[1] == "", seed


def test_a_seed_determines_its_run_of_replicas() -> None:
    simulations = [ReplicaSimulation(3, trace=True) for _ in range(2)]
    for simulation in simulations:
        simulation.begin()
        simulation.run_until(BEGIN_MS + 12_000)
    assert simulations[0].lines == simulations[1].lines
    assert len(simulations[0].lines) > 30


@pytest.mark.slow
def test_a_run_of_replicas_does_not_depend_on_the_hashes_of_the_process() -> None:
    """The order of elections depended on them in this run, while the controller had a set of keys."""
    command = [sys.executable, "-m", "tests.simulation.replicas", "2003", "--trace"]
    traces = [
        subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert traces[0] == traces[1]


def test_every_defence_has_a_seed() -> None:
    assert FIRST.keys() == DEFENCES.keys()


@pytest.mark.parametrize("defence", DEFENCES)
def test_a_missing_defence_of_replicas_is_noticed(defence: str) -> None:
    seed = FIRST[defence]
    with without(defence):
        problem = run_seed(seed)[1]
    assert problem.startswith("ViolationError"), f"seed {seed} violates nothing"
