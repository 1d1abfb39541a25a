"""Many stories of leases: `python -m tests.simulation.leases`; one in full: `python -m tests.simulation.leases SEED`.

What was done is remembered under .cache, for this state of the source: a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter

from tests.simulation.__main__ import ROOT, SHOWN, state_of_source
from tests.simulation.leases.story import Story, tell

CHUNK = 100


def trace(seed: int) -> int:
    """Tell one story line by line."""
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
    return 1 if problem else 0


def run(count: int) -> int:
    """Tell many stories; return how many went wrong."""
    path = ROOT / ".cache" / "simulation" / f"leases-{state_of_source()}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    done, counts = 0, Counter[str]()
    if path.exists():
        kept = json.loads(path.read_text())
        done, counts = kept["done"], Counter(kept["counts"])
    print(f"{min(done, count)} of {count} seeds are done already", flush=True)
    failed = 0
    began = time.monotonic()
    for seed in range(done, count):
        _, problem, happened = tell(seed)
        counts += happened
        if problem:
            failed += 1
            print(f"FAILED seed {seed}: {problem}")
            print(f"  again: .venv/bin/python -m tests.simulation.leases {seed}", flush=True)
            if failed == SHOWN:
                break
        if not failed and (seed + 1) % CHUNK == 0:
            path.write_text(json.dumps({"done": seed + 1, "counts": counts}))
        if (seed + 1) % 1000 == 0:
            print(f"{seed + 1} of {count}, {failed} failed", flush=True)
    most = ", ".join(f"{number} {what}" for what, number in counts.most_common())
    print(f"{failed} failed, {time.monotonic() - began:.0f} s: {most}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.leases", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="tell this one alone, line by line")
    parser.add_argument("--seeds", type=int, default=10_000)
    options = parser.parse_args()
    if options.seed is not None:
        return trace(options.seed)
    return 1 if run(options.seeds) else 0


if __name__ == "__main__":
    sys.exit(main())
