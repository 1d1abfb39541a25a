"""`headrace.spark.worker`: garbage collections in Spark's workers, and only there, leave out imported modules."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc, sys
from importlib.machinery import ModuleSpec
from headrace.spark.worker import freeze_imports

sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)
counts = []
for _ in range(3):
    freeze_imports()
    counts.append(gc.get_freeze_count())
    more = [[] for _ in range(1000)]
print(*counts, len(gc.get_objects()))
"""


def counts(main: str) -> list[int]:
    """Return the number of frozen objects after each of three calls, and the number of other objects."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, main], capture_output=True, text=True, check=True
    )
    return list(map(int, done.stdout.split()))


def test_a_worker_s_imports_are_frozen_when_its_second_task_begins() -> None:
    first, second, third, left = counts("pyspark.daemon")
    assert first == 0
    assert second > 2000, "its imports, and what the first task has made"
    assert third <= second, "no garbage of later tasks is kept"
    assert 1000 <= left < 2000


def test_other_programs_are_left_alone() -> None:
    assert counts("a_program")[:3] == [0, 0, 0]
