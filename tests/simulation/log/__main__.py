"""Simulation runs of a log: `python -m tests.simulation.log` does many; SEED --trace does one, or its shortest form."""

from __future__ import annotations

import sys
import traceback

from tests.simulation import runner
from tests.simulation.log.defences import DEFENCES, without
from tests.simulation.log.log_simulation import LogSimulation
from tests.simulation.log.shrinking import failure_of, run_seed, shortest


def trace(seed: int) -> bool:
    """Run one seed and print its steps; return whether the run failed. Of a failing program only a short one is run."""
    program = shortest(seed) if failure_of(LogSimulation(seed)) else None
    simulation = LogSimulation(seed, program, trace=True)
    try:
        simulation.run()
    except Exception:  # noqa: BLE001 - any error is printed after the steps
        problem = traceback.format_exc()
    else:
        problem = ""
    print(simulation.knobs.config)
    print("\n".join(map(str, simulation.program)))
    print("\n".join(simulation.lines))
    print(problem or f"seed {seed}: no violation: {dict(simulation.counts)}")
    return bool(problem)


SIMULATION = runner.Simulation("tests.simulation.log", __doc__, run_seed, trace, DEFENCES, without)

if __name__ == "__main__":
    sys.exit(runner.main(SIMULATION))
