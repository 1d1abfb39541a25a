"""Fuzz for a time: `python -m tests.fuzz`. The targets share FUZZ_SECONDS (300).

`--seed` is the first seed (random by default). `--replay TARGET:SEED` repeats one case. `--target` selects one target.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
import traceback

from tests.fuzz.targets import TARGETS, run_case

_SHOWN = 3


def fuzz(target: str, first: int, seconds: float) -> tuple[int, int]:
    """Run cases of one target for a time. Return their number, and the number of failures."""
    end, seed, failed = time.monotonic() + seconds, first, 0
    while time.monotonic() < end and failed < _SHOWN:
        try:
            run_case(target, seed)
        except Exception:  # noqa: BLE001 - any exception of a case is a finding
            failed += 1
            traceback.print_exc()
            print(
                f"FAILED {target} with seed {seed}; again: "
                f".venv/bin/python -m tests.fuzz --replay {target}:{seed}"
            )
        seed += 1
    return seed - first, failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--target", choices=list(TARGETS), action="append")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--replay", metavar="TARGET:SEED")
    options = parser.parse_args()
    if options.replay is not None:
        for name in ("seconds", "target", "seed"):
            if getattr(options, name) is not None:
                parser.error(f"--{name} is for many cases, and --replay names one")
        target, _, seed = options.replay.partition(":")
        run_case(target, int(seed))
        return 0
    targets = options.target or list(TARGETS)
    first = random.randrange(1 << 40) if options.seed is None else options.seed
    seconds = options.seconds or float(os.environ.get("FUZZ_SECONDS", "300"))
    total = 0
    for target in targets:
        cases, failed = fuzz(target, first, seconds / len(targets))
        total += failed
        print(f"{target}: {cases} cases from seed {first} on, {failed} failed", flush=True)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
