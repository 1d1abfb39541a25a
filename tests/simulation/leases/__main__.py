"""Simulation runs of leases: `python -m tests.simulation.leases` does many; SEED --trace does one, with its events."""

from __future__ import annotations

import sys
import traceback

from tests.simulation import runner
from tests.simulation.leases.defences import DEFENCES, broken
from tests.simulation.leases.lease_simulation import LeaseSimulation, run_seed


def trace(seed: int) -> bool:
    """Run one seed and print its events; return whether the run failed."""
    simulation = LeaseSimulation(seed, trace=True)
    try:
        simulation.run()
    except Exception:  # noqa: BLE001 - any error is printed after the events
        problem = traceback.format_exc()
    else:
        problem = ""
    print(simulation.knobs)
    print("\n".join(simulation.lines))
    print(problem or f"seed {seed}: no violation: {dict(simulation.counts)}")
    return bool(problem)


SIMULATION = runner.Simulation(
    "tests.simulation.leases", __doc__, run_seed, trace, DEFENCES, broken
)

if __name__ == "__main__":
    sys.exit(runner.main(SIMULATION))
