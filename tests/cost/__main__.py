"""Send expensive requests to a broker, and report those that cost more than their bound: `python -m tests.cost`.

The broker is filled up to its limits, or a little with `--short`. `--all` also shows the requests within their bound.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cost.bounds import LOOP_MS, SCENARIO, Bound
from tests.cost.broker import Cost, WatchedBroker
from tests.cost.contents import LONG, SHORT, Contents
from tests.cost.driving import bound_of, drive, violations
from tests.cost.requests import Values
from tests.cost.scenarios import SCENARIOS
from tests.cost.shapes import request_schemas

Measured = tuple[str, int, Cost, Bound]
"""A request's name, its size in bytes, its cost, and its bound."""


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory() as directory:
        broker = WatchedBroker(Path(directory), {}, accel=not options.no_accel)
        broker.start()
        try:
            over = _run(broker, options)
        finally:
            broker.stop()
    return 1 if over else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.cost", description=__doc__)
    parser.add_argument("--short", action="store_true", help="a small broker")
    parser.add_argument("--thorough", action="store_true", help="all versions, in all ways")
    parser.add_argument("--admin", action="store_true", help="send requests as an administrator")
    parser.add_argument("--no-accel", action="store_true", help="without the accelerator")
    parser.add_argument("--api", action="append", help="one API; repeatable, and without scenarios")
    parser.add_argument("--scenario", action="append", help="one scenario; repeatable")
    parser.add_argument("--scenarios-only", action="store_true")
    parser.add_argument("--requests-only", action="store_true", help="without scenarios")
    parser.add_argument("--all", action="store_true", help="show everything")
    return parser.parse_args()


def _run(broker: WatchedBroker, options: argparse.Namespace) -> int:
    """Send everything, print the requests above their bound, and return their number."""
    began = time.monotonic()
    harness = Contents(broker, SHORT if options.short else LONG)
    values = harness.make()
    print(f"prepared in {time.monotonic() - began:.0f} s", flush=True)
    over = count = 0
    for name, size, cost, bound in _measured(harness, values, options):
        count += 1
        found = violations(cost, bound)
        over += bool(found)
        if found or options.all:
            print(shown(name, size, cost, bad=bool(found)), flush=True)
    bugs = broker.bugs()
    print("\n".join(bugs[:10]))
    print(f"{count} requests in {time.monotonic() - began:.0f} s, {over} over their bounds")
    return over + len(bugs)


def _measured(harness: Contents, values: Values, options: argparse.Namespace) -> Iterator[Measured]:
    for scenario in SCENARIOS:
        wanted = scenario.__name__ in options.scenario if options.scenario else not options.api
        if wanted and not options.requests_only:
            print("--", scenario.__name__, flush=True)
            for name, size, cost in scenario(harness, values):
                yield name, size, cost, SCENARIO
    if options.scenarios_only or (options.scenario and not options.api):
        return
    names = [
        name
        for name in request_schemas()
        if not options.api or name.removesuffix("Request") in options.api
    ]
    found = drive(harness.broker, values, names, as_admin=options.admin, thorough=options.thorough)
    for case, cost in found:
        yield case.name, len(case.frame), cost, bound_of(case.name.split(" ")[0])


def shown(name: str, size: int, cost: Cost, *, bad: bool) -> str:
    """Return a line about a request. `!!` marks a request above its bound."""
    gc = f" (garbage {cost.garbage_ms:.0f})" if cost.garbage_ms > LOOP_MS / 10 else ""
    return (
        f"{'!!' if bad else '  '} {name}: {size} bytes -> loop {cost.loop_ms:.0f} ms{gc}, "
        f"{cost.steps} steps, +{cost.memory_mb:.0f} MiB, answer {cost.answer_bytes / 1e6:.1f} MB, "
        f"{cost.outcome}"
    )


if __name__ == "__main__":
    sys.exit(main())
