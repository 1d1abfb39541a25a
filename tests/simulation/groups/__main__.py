"""Histories of groups: `python -m tests.simulation.groups` runs many; SEED --trace runs one and prints its events."""

from __future__ import annotations

import sys

from tests.simulation import runner
from tests.simulation.groups.defences import DEFENCES, without
from tests.simulation.groups.liveness import Liveness, LivenessError, run_seed


def trace(seed: int) -> bool:
    """Run one seed and print its events; return whether the run failed."""
    run = Liveness(seed)
    problem = ""
    try:
        run.run()
    except LivenessError as error:
        problem = str(error)
    finally:
        print("\n".join(run.history.lines))
        for member in run.members:
            print(member.group, type(member).__name__, sorted(member.owned), member.answers[-10:])
    print(problem or f"seed {seed}: no violation: {dict(run.history.counts)}")
    return bool(problem)


SIMULATION = runner.Simulation(
    "tests.simulation.groups", __doc__, run_seed, trace, DEFENCES, without
)

if __name__ == "__main__":
    sys.exit(runner.main(SIMULATION))
