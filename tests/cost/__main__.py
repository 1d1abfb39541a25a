"""Drive a broker with expensive requests and say what each costs: `python -m tests.cost`.

`--short` takes the small broker of `make check`, `--api NAME` one API, `--worst N` shows the N worst of each kind.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.cost.broker import Cost, WatchedBroker
from tests.cost.driving import drive
from tests.cost.scenarios import SCENARIOS
from tests.cost.shapes import request_schemas
from tests.cost.world import LONG, SHORT, World


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cost", description=__doc__)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--no-accel", action="store_true")
    parser.add_argument("--admin", action="store_true")
    parser.add_argument("--api", action="append")
    parser.add_argument("--thorough", action="store_true")
    parser.add_argument("--scenario", action="append")
    parser.add_argument("--scenarios-only", action="store_true")
    parser.add_argument("--loop-ms", type=float, default=50)
    parser.add_argument("--memory-mb", type=float, default=64)
    parser.add_argument("--answer-mb", type=float, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        broker = WatchedBroker(Path(directory), {}, accel=not options.no_accel)
        broker.start()
        try:
            began = time.monotonic()
            world = World(broker, SHORT if options.short else LONG)
            values = world.make()
            print(
                f"prepared in {time.monotonic() - began:.1f} s, RSS {broker.resident_mb:.0f} MB",
                flush=True,
            )
            print("planted:", sum(map(len, world.planted.values())), flush=True)
            if not options.api:
                for scenario in SCENARIOS:
                    if options.scenario and scenario.__name__ not in options.scenario:
                        continue
                    print("--", scenario.__name__, flush=True)
                    for name, size, cost in scenario(world, values):
                        print(shown(name, size, cost), flush=True)
            count = 0
            if options.scenarios_only:
                options.api = ["none"]
            names = [
                name
                for name in request_schemas()
                if not options.api or name.removesuffix("Request") in options.api
            ]
            for case, cost in drive(
                broker, values, names, as_admin=options.admin, thorough=options.thorough
            ):
                count += 1
                mb = cost.answer_bytes / 1e6
                if (
                    cost.loop_ms > options.loop_ms
                    or cost.memory_mb > options.memory_mb
                    or mb > options.answer_mb
                ):
                    print(shown(case.name, len(case.frame), cost), flush=True)
            print(
                f"{count} requests in {time.monotonic() - began:.1f} s, RSS {broker.resident_mb:.0f} MB"
            )
            print("\n".join(broker.bugs()[:10]))
        finally:
            broker.stop()
    return 0


def shown(name: str, size: int, cost: Cost) -> str:
    return (
        f"{'!!' if cost.loop_ms > 50 or cost.memory_mb > 64 else '  '} {name}: {size} bytes -> "
        f"loop {cost.loop_ms:.0f} ms (gc {cost.garbage_ms:.0f}), {cost.steps} steps, "
        f"+{cost.memory_mb:.0f} MB, answer {cost.answer_bytes / 1e6:.1f} MB, {cost.outcome}"
    )


if __name__ == "__main__":
    sys.exit(main())
