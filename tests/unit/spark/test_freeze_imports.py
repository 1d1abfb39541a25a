"""`headrace.spark.worker`: garbage is looked for among less, in Spark's workers and nowhere else."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import gc, sys
from importlib.machinery import ModuleSpec
from headrace.spark.worker import freeze_imports

sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
freeze_imports()
frozen = gc.get_freeze_count()
more = [[] for _ in range(1000)]
freeze_imports()
print(frozen, gc.get_freeze_count(), len(gc.get_objects()))
"""


def counts(main: str) -> tuple[int, int, int]:
    """What is frozen after the first call and after the second, and what is still looked at."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, main], capture_output=True, text=True, check=True
    )
    first, second, left = map(int, done.stdout.split())
    return first, second, left


def test_a_worker_s_imports_are_frozen_and_what_comes_after_them_is_not() -> None:
    first, second, left = counts("pyspark.daemon")
    assert first > 1000 <= left < 2000
    assert second == pytest.approx(first, abs=10)  # those that were freed meanwhile


def test_other_programs_are_left_alone() -> None:
    assert counts("a_program")[:2] == (0, 0)
