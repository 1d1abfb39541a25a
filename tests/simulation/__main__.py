"""Many simulation runs: `python -m tests.simulation`; one of them in full: with SEED --trace."""

from __future__ import annotations

import re
import sys
import traceback

from tests.simulation import runner
from tests.simulation.defences import DEFENCES, without
from tests.simulation.story import Story, tell

ADDRESS = re.compile(r"<memory at 0x[0-9a-f]+>")


def trace(seed: int) -> bool:
    """Run one seed line by line; return whether it went wrong."""
    story = Story(seed, trace=True)
    try:
        story.run()
    except Exception:  # noqa: BLE001 - printed below what led to it
        problem = traceback.format_exc()
    else:
        problem = ""
    print(f"knobs: {vars(story.knobs)}")
    for line in story.machine.lines:
        print(ADDRESS.sub("...", line))
    print(problem or f"seed {seed}: nothing wrong")
    return bool(problem)


SIMULATION = runner.Simulation("tests.simulation", __doc__, tell, trace, DEFENCES, without)

if __name__ == "__main__":
    sys.exit(runner.main(SIMULATION))
