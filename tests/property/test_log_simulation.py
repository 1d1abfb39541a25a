"""Runs of a log against its model, and runs that must find a missing defence. `make simulate` does ten thousand."""

from __future__ import annotations

import pytest

from tests.simulation.log.defences import DEFENCES, without
from tests.simulation.log.knobs import STEPS
from tests.simulation.log.log_simulation import LogSimulation
from tests.simulation.log.shrinking import failure_of, run_seed, shortest

SEEDS = range(36)
TRIED = 25
"""The number of seeds, from the given first one, within which a missing defence must be found."""
FIRST = {
    "the clean offset is lowered before a truncation": 213,
    "the leader epochs are cut before the batches": 8623,
    "removed segments are removed durably": 25,
    "a truncation keeps producers whose batches are deleted": 45,
}
SHORTENED = 4
"""A seed that fails without the defence of a sync in flight."""


@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_equals_its_model(seed: int) -> None:
    LogSimulation(seed).run()


def test_a_seed_determines_its_run_of_a_log() -> None:
    simulations = [LogSimulation(7, trace=True) for _ in range(2)]
    for simulation in simulations:
        simulation.run()
    assert simulations[0].lines == simulations[1].lines


@pytest.mark.slow
def test_the_runs_have_every_step_and_every_fault() -> None:
    happened = sum((run_seed(seed)[2] for seed in SEEDS), start=run_seed(0)[2])
    faults = {
        "power cut",
        "recovery interrupted",
        "operation refused",
        "batches lost above the synced offset",
        "batches truncated",
        "rounds of cleaning",
    }
    assert happened.keys() >= {*STEPS, *faults}


@pytest.mark.parametrize("defence", DEFENCES)
def test_a_missing_defence_of_a_log_is_noticed(defence: str) -> None:
    first = FIRST.get(defence, 0)
    with without(defence):
        problems = (run_seed(seed)[1] for seed in range(first, first + TRIED))
        noticed = next((problem for problem in problems if problem), "")
    assert noticed, f"no check failed in {TRIED} runs without the defence: {defence}"


def test_the_program_of_a_failing_seed_is_shortened() -> None:
    with without("a sync in flight counts up to the new end only"):
        whole = LogSimulation(SHORTENED)
        failure = failure_of(whole)
        program = shortest(SHORTENED)
        assert len(program) < len(whole.program) // 2
        assert failure_of(LogSimulation(SHORTENED, program))[:30] == failure[:30]
    assert not failure_of(LogSimulation(SHORTENED, program))
