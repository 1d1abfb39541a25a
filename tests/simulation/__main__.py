"""Many stories: `python -m tests.simulation`; one of them, told in full: `python -m tests.simulation SEED --trace`.

What was done is remembered under .cache, for this state of the source: a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import re
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from tests.simulation.defences import DEFENCES, without
from tests.simulation.story import Story, tell

ROOT = Path(__file__).resolve().parents[2]
SHOWN = 5
ADDRESS = re.compile(r"<memory at 0x[0-9a-f]+>")


def trace(seed: int) -> int:
    """Tell one story line by line."""
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
    return 1 if problem else 0


def state_of_source() -> str:
    """Return a name for the source as it is, with what was not committed."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout

    head = git("rev-parse", "--short", "HEAD").decode().strip()
    changes = git("diff", "HEAD", "--", "src", "tests/simulation", "tests/fixtures")
    return f"{head}-{hashlib.sha256(changes).hexdigest()[:8]}" if changes else head


class Done:
    """The seeds that were told before, in a file."""

    def __init__(self) -> None:
        self._path = ROOT / ".cache" / "simulation" / f"{state_of_source()}.txt"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.seeds = (
            {int(line) for line in self._path.read_text().split()} if self._path.exists() else set()
        )

    def add(self, seed: int) -> None:
        self.seeds.add(seed)
        with self._path.open("a") as file:
            file.write(f"{seed}\n")


def run(first: int, count: int, processes: int) -> int:
    """Tell many stories; return how many went wrong."""
    done = Done()
    seeds = [seed for seed in range(first, first + count) if seed not in done.seeds]
    print(f"{count - len(seeds)} of {count} seeds are done already", flush=True)
    counts: Counter[str] = Counter()
    failed = 0
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        results: Any = pool.imap_unordered(tell, seeds, chunksize=4)
        for number, (seed, problem, happened) in enumerate(results, 1):
            counts += happened
            if problem:
                failed += 1
                print(f"FAILED seed {seed}: {problem}")
                print(f"  again: .venv/bin/python -m tests.simulation {seed} --trace", flush=True)
                if failed == SHOWN:
                    break
                continue
            done.add(seed)
            if number % 500 == 0:
                print(f"{number} of {len(seeds)}, {failed} failed", flush=True)
    took = time.monotonic() - began
    happened_most = ", ".join(f"{number} {what}" for what, number in counts.most_common())
    print(f"{len(done.seeds)} seeds, {failed} failed, {took:.0f} s: {happened_most}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="tell this one alone")
    parser.add_argument("--trace", action="store_true", help="line by line")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--without", choices=list(DEFENCES), help="with a defence switched off")
    options = parser.parse_args()
    if options.seed is None:
        return 1 if run(options.first, options.seeds, options.processes) else 0
    if options.without is not None:
        with without(options.without):
            return trace(options.seed)
    if options.trace:
        return trace(options.seed)
    _, problem, counts = tell(options.seed)
    print(problem or f"nothing wrong: {dict(counts)}")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
