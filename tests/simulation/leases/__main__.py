"""Many simulation runs of leases: `python -m tests.simulation.leases`; one in full: with SEED --trace."""

from __future__ import annotations

import sys
import traceback

from tests.simulation import runner
from tests.simulation.leases.mutants import MUTANTS, broken
from tests.simulation.leases.story import Story, tell


def trace(seed: int) -> bool:
    """Run one seed line by line; return whether it went wrong."""
    story = Story(seed, trace=True)
    try:
        story.run()
    except Exception:  # noqa: BLE001 - printed below what led to it
        problem = traceback.format_exc()
    else:
        problem = ""
    print(story.knobs)
    print("\n".join(story.lines))
    print(problem or f"seed {seed}: nothing wrong: {dict(story.counts)}")
    return bool(problem)


SIMULATION = runner.Simulation("tests.simulation.leases", __doc__, tell, trace, MUTANTS, broken)

if __name__ == "__main__":
    sys.exit(runner.main(SIMULATION))
