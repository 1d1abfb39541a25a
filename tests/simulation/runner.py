"""The command line of a simulation: it runs many seeds, or one seed with its events, with all defences or without one.

The runner stores the seeds without failures below .cache, for the current state of the source. An interrupted run
continues with the other seeds. A run without a defence neither stores nor skips seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("src", "accel", "tests/simulation", "tests/fixtures")
SHOWN = 5
"""The number of failures after which a run ends."""

SeedResult = tuple[int, str, Counter[str]]
"""A seed, the failure ("" for none), and counts of events."""


@dataclass(frozen=True)
class Simulation:
    """A simulation that the command line can run.

    The functions are module-level functions, so that the processes of the pool can import them.

    Attributes:
        module: The module for `python -m`.
        about: The description for `--help`.
        run_seed: Runs a seed, and returns its result.
        trace: Runs a seed and prints its events; returns whether it failed.
        defences: The names of the defences that can be switched off.
        without: Returns a context manager that switches a defence off.
    """

    module: str
    about: str
    run_seed: Callable[[int], SeedResult]
    trace: Callable[[int], bool]
    defences: Iterable[str]
    without: Callable[[str], AbstractContextManager[object]]


def main(simulation: Simulation, arguments: list[str] | None = None) -> int:
    """Run the command line, and return the exit code; 1 if a seed failed."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {simulation.module}", description=simulation.about
    )
    parser.add_argument("seed", type=int, nargs="?", help="the only seed to run")
    parser.add_argument("--trace", action="store_true", help="print the events of the seed")
    parser.add_argument("--first", type=int, help="the first of many seeds (default: 0)")
    parser.add_argument("--seeds", type=int, help="the number of seeds (default: 10000)")
    parser.add_argument("--processes", type=int, help="the number of processes (default: 2)")
    parser.add_argument(
        "--without", choices=list(simulation.defences), help="the defence to switch off"
    )
    options = parser.parse_args(arguments)
    if options.seed is None:
        if options.trace:
            parser.error("--trace prints one seed: name the seed")
        return 1 if _run(simulation, options) else 0
    for name in ("first", "seeds", "processes"):
        if getattr(options, name) is not None:
            parser.error(f"--{name} is for many seeds, and seed {options.seed} was named")
    with simulation.without(options.without) if options.without else nullcontext():
        if options.trace:
            return 1 if simulation.trace(options.seed) else 0
        _, problem, counts = simulation.run_seed(options.seed)
    print(problem or f"no violation: {dict(counts)}")
    return 1 if problem else 0


def _run(simulation: Simulation, options: Any) -> int:
    """Run many seeds, and return the number of failed seeds."""
    first, count = options.first or 0, 10_000 if options.seeds is None else options.seeds
    done = None if options.without else Done(simulation.module)
    seeds = [seed for seed in range(first, first + count) if done is None or seed not in done.seeds]
    if done is None:
        print(f"without the defence {options.without!r}; no result is stored", flush=True)
    else:
        print(f"{count - len(seeds)} of {count} seeds are done already", flush=True)
    counts: Counter[str] = Counter()
    failed = number = 0
    began = time.monotonic()
    again = f".venv/bin/python -m {simulation.module}"
    off = f" --without {options.without!r}" if options.without else ""
    with multiprocessing.get_context("spawn").Pool(options.processes or 2) as pool:
        run_seed = partial(_run_seed, simulation.run_seed, simulation.without, options.without)
        for seed, problem, happened in pool.imap_unordered(run_seed, seeds, chunksize=4):
            number += 1
            counts += happened
            if problem:
                failed += 1
                print(
                    f"FAILED seed {seed}: {problem}\n  again: {again} {seed} --trace{off}",
                    flush=True,
                )
                if failed == SHOWN:
                    break
            elif done is not None:
                done.add(seed)
            if number % 500 == 0:
                print(f"{number} of {len(seeds)}, {failed} failed", flush=True)
    took = time.monotonic() - began
    most = ", ".join(f"{times} {what}" for what, times in counts.most_common())
    print(f"{number} seeds run, {failed} failed, {took:.0f} s: {most}")
    return failed


def _run_seed(
    run_seed: Callable[[int], SeedResult],
    without: Callable[[str], AbstractContextManager[object]],
    defence: str | None,
    seed: int,
) -> SeedResult:
    """Run one seed in a process of the pool. A defence is switched off in each process by itself."""
    with without(defence) if defence else nullcontext():
        return run_seed(seed)


class Done:
    """The file of the seeds that have run without a failure."""

    def __init__(self, module: str) -> None:
        self._path = ROOT / ".cache" / "simulation" / f"{module}-{state_of_source()}.txt"
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.seeds = (
            {int(line) for line in self._path.read_text().split()} if self._path.exists() else set()
        )

    def add(self, seed: int) -> None:
        """Add a seed to the file."""
        self.seeds.add(seed)
        with self._path.open("a") as file:
            file.write(f"{seed}\n")


def state_of_source() -> str:
    """Return a name for the state of the source, including uncommitted changes and untracked files.

    Commits of other files, such as documentation, do not change the name.
    """

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=True).stdout

    trees = git("ls-tree", "HEAD", *SOURCES)
    head = hashlib.sha256(trees).hexdigest()[:12]
    changes = git("diff", "HEAD", "--", *SOURCES)
    unknown = git("ls-files", "--others", "--exclude-standard", "-z", "--", *SOURCES)
    for name in filter(None, unknown.decode().split("\0")):
        changes += name.encode() + b"\0" + (ROOT / name).read_bytes()
    return f"{head}-{hashlib.sha256(changes).hexdigest()[:8]}" if changes else head
