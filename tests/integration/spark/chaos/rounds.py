"""The number of runs, and the order in which the victims are killed: one run in `make test`, thirty in `make chaos-
spark`."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.spark.chaos.kills import KillRun, Subject

ROUNDS = int(os.environ.get("HEADRACE_SPARK_ROUNDS", "1"))
SEED = os.environ.get("HEADRACE_SPARK_SEED")
TIMEOUT_S = 800 * ROUNDS
MANY_ROUNDS = pytest.mark.skipif(
    ROUNDS < 2, reason="part of make chaos-spark; another test of make test has the short form"
)
VICTIMS = ("worker", "broker", "driver")


def run_all(directory: Path, subject: Callable[[], Subject]) -> None:
    """Do all runs of a subject. Each run kills every victim once, in an order of its own."""
    for number in range(ROUNDS):
        seed = int(SEED) if SEED else random.randrange(1 << 32)
        victims = list(VICTIMS)
        random.Random(seed).shuffle(victims)
        place = directory / str(number)
        place.mkdir()
        run = KillRun(place, subject(), seed)
        try:
            run.run(victims)
        except BaseException as error:
            error.add_note(f"HEADRACE_SPARK_SEED={seed}: {victims}; logs are in {place}")
            raise
        print({"subject": directory.name, "seed": seed, "victims": victims, **run.counts})
        shutil.rmtree(place)
