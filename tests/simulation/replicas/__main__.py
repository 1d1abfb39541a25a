"""Simulation runs of the cores of a cluster: `python -m tests.simulation.replicas`; SEED --trace prints one run."""

from __future__ import annotations

import sys
import traceback

from tests.simulation import runner
from tests.simulation.replicas.defences import DEFENCES, without
from tests.simulation.replicas.replica_simulation import ReplicaSimulation, run_seed


def trace(seed: int) -> bool:
    """Run one seed and print its events; return whether the run failed."""
    simulation = ReplicaSimulation(seed, trace=True)
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
    "tests.simulation.replicas", __doc__, run_seed, trace, DEFENCES, without
)

if __name__ == "__main__":
    sys.exit(runner.main(SIMULATION))
