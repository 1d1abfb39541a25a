"""The model of replication: `python -m tests.model` visits all states within bounds, takes random walks, and searches
for a violation without each rule. `--without RULE` prints the steps to such a violation.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

from tests.model.model import Model
from tests.model.necessary import CASES, MOST, NOT_SHOWN, find
from tests.model.printing import lines
from tests.model.rules import Bounds
from tests.model.search import Result, exhaust, walk

EXHAUSTED = {
    "two brokers": Bounds(),
    "two brokers, late requests, repeated responses": Bounds(late_requests=True, repeats=True),
    "two brokers, a power cut, three leader epochs": Bounds(epochs=3, versions=4, power_cuts=1),
    "two brokers, records are synced first, a power cut": Bounds(syncs=True, power_cuts=1),
    "two brokers, records are synced first, two power cuts": Bounds(
        syncs=True, power_cuts=2, broker_epochs=3
    ),
    "two brokers, records are synced first, a power cut, min.insync.replicas=2": Bounds(
        syncs=True, power_cuts=1, min_isr=2
    ),
    "two brokers, min.insync.replicas=2": Bounds(epochs=3, versions=4, min_isr=2),
    "two brokers, two controllers": Bounds(controllers=2),
    "two brokers, deleted records": Bounds(deletes=True),
}
"""The bounds within which all states are visited."""
_THREE = Bounds(
    brokers=3,
    assigned=3,
    end=3,
    epochs=6,
    broker_epochs=4,
    versions=12,
    controllers=2,
    in_flight=2,
    late_requests=True,
    repeats=True,
    power_cuts=1,
)
WALKED = {
    "three brokers": _THREE,
    "three brokers, min.insync.replicas=2": replace(_THREE, min_isr=2),
    "three brokers, records are synced first": replace(_THREE, syncs=True),
    "three brokers, records are synced first from a moment on, or up to one": replace(
        _THREE, syncs=True, switches=2, power_cuts=2
    ),
    "three brokers, reassignments, deleted records": replace(
        _THREE, assigned=2, reassigns=True, deletes=True, late_requests=False
    ),
}
"""The bounds of random walks."""
LENGTH = 80
"""The number of steps of a random walk."""


def main() -> int:
    """Run the command line, and return the exit code; 1 if something was not as expected."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--without", choices=[*CASES, *NOT_SHOWN], help="the rule to switch off")
    parser.add_argument("--states", type=int, default=5_000_000, help="the most states of a search")
    parser.add_argument("--walks", type=int, default=2000, help="random walks of each kind")
    options = parser.parse_args()
    if options.without:
        result = find(options.without)
        print("\n".join(lines(result.trace)))
        print(result.problem or f"no violation in {result.states} states")
        return 0
    failed = _searched(options.states)
    failed += _walked(options.walks)
    for rule in CASES:
        result = find(rule)
        print(f"without {rule}: {result.problem or f'NOT FOUND in {MOST} states'}", flush=True)
        failed += not result.problem
    return 1 if failed else 0


def _searched(most: int) -> int:
    failed = 0
    for name, bounds in EXHAUSTED.items():
        result = exhaust(Model(bounds), most)
        extent = "all states" if result.complete else "not all states"
        print(
            f"{name}: {extent}, {result.states}, depth {result.depth}, {result.seconds:.0f} s",
            flush=True,
        )
        failed += _reported(result)
    return failed


def _walked(walks: int) -> int:
    failed = 0
    for name, bounds in WALKED.items():
        model, taken, began = Model(bounds), 0, time.monotonic()
        for seed in range(walks):
            result = walk(model, seed, LENGTH)
            taken += result.states
            if _reported(result):
                print(f"seed {seed}")
                failed += 1
                break
        print(f"{name}: {taken} steps of walks, {time.monotonic() - began:.0f} s", flush=True)
    return failed


def _reported(result: Result) -> int:
    if result.problem:
        print("\n".join(lines(result.trace)))
        print(f"VIOLATION: {result.problem}")
    return bool(result.problem)


if __name__ == "__main__":
    sys.exit(main())
