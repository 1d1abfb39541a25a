"""Running a seed, and finding a short program that fails like the program of a seed."""

from __future__ import annotations

from collections import Counter

from tests.simulation.log.knobs import Step
from tests.simulation.log.log_simulation import LogSimulation


def run_seed(seed: int) -> tuple[int, str, Counter[str]]:
    """Run one seed; return the seed, the failure ("" for none), and counts of events."""
    simulation = LogSimulation(seed)
    problem = failure_of(simulation)
    return seed, problem, simulation.counts


def failure_of(simulation: LogSimulation) -> str:
    """Run a simulation, and return its failure, "" for none."""
    try:
        simulation.run()
    except Exception as error:  # noqa: BLE001 - any error of the log is a failure
        return f"{type(error).__name__}: {error}"
    return ""


def shortest(seed: int, *, most: int = 400) -> list[Step]:
    """Return a short program of a failing seed: steps are removed as long as the run still fails in the same way.

    Args:
        seed: The seed.
        most: The largest number of runs.
    """
    program = list(LogSimulation(seed).program)
    failure = failure_of(LogSimulation(seed))[:30]
    size = len(program) // 2
    while size and most:
        first = 0
        while first < len(program) and most:
            most -= 1
            shorter = program[:first] + program[first + size :]
            if failure_of(LogSimulation(seed, shorter))[:30] == failure:
                program = shorter
            else:
                first += size
        size //= 2
    return program
