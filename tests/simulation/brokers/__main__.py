"""Simulation runs: `python -m tests.simulation.brokers` does many; SEED --trace does one and prints its events."""

from __future__ import annotations

import re
import sys
import traceback

from tests.simulation import runner
from tests.simulation.brokers.brokers_simulation import BrokersSimulation, run_seed
from tests.simulation.brokers.defences import DEFENCES, without

ADDRESS = re.compile(r"<memory at 0x[0-9a-f]+>")


def trace(seed: int) -> bool:
    """Run one seed and print its events; return whether the run failed."""
    simulation = BrokersSimulation(seed, trace=True)
    try:
        simulation.run()
    except Exception:  # noqa: BLE001 - any error is printed after the events
        problem = traceback.format_exc()
    else:
        problem = ""
    print(f"knobs: {vars(simulation.knobs)}")
    for line in simulation.machines.lines:
        print(ADDRESS.sub("...", line))
    print(problem or f"seed {seed}: no violation")
    return bool(problem)


SIMULATION = runner.Simulation(
    "tests.simulation.brokers", __doc__, run_seed, trace, DEFENCES, without
)

if __name__ == "__main__":
    sys.exit(runner.main(SIMULATION))
