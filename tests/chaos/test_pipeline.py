"""Exactly once under chaos: see docs/reports/chaos.md.

HEADRACE_CHAOS_SECONDS is how long the faults of all runs go on together; without it two runs take 28 seconds.
HEADRACE_CHAOS_SEED repeats a run's faults.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.chaos.pipeline import Pipeline

SHORT = [("confluent", "classic"), ("app", "consumer")]
ALL = [
    *SHORT,
    ("app", "classic"),
    ("confluent", "consumer"),
    *(("headrace", protocol) for protocol in ("classic", "consumer")),
    ("mixed", "either"),
]
LONG = os.environ.get("HEADRACE_CHAOS_SECONDS")
VARIANTS = ALL if LONG else SHORT
SECONDS = float(LONG or 28) / len(VARIANTS)
CACHE = Path(__file__).resolve().parents[2] / ".cache/chaos"


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 200)
@pytest.mark.parametrize(("client", "protocol"), VARIANTS)
def test_the_output_contains_each_input_record_once(client: str, protocol: str) -> None:
    seed = int(os.environ.get("HEADRACE_CHAOS_SEED", random.randrange(1 << 32)))
    directory = CACHE / f"{client}-{protocol}-{seed}"
    pipeline = Pipeline(directory, seed, client, protocol)
    try:
        output_check = pipeline.run(SECONDS)
    except BaseException as error:
        error.add_note(f"HEADRACE_CHAOS_SEED={seed}; history and logs are in {directory}")
        error.add_note(f"faults: {dict(pipeline.counts)}")
        raise
    shutil.rmtree(directory)
    result = {
        "client": client,
        "protocol": protocol,
        "seed": seed,
        "drained in s": round(output_check.drained_in_s, 1),
        **sorted_counts(pipeline, output_check.counts),
    }
    print(result)
    with (CACHE / "results.jsonl").open("a") as results:
        results.write(json.dumps(result) + "\n")


def sorted_counts(pipeline: Pipeline, further: dict[str, int]) -> dict[str, int]:
    return dict(sorted(pipeline.counts.items())) | dict(sorted(further.items()))
