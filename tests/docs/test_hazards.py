"""docs/reports/hazards.md and docs/reports/fault-classes.md name tests that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reports" / "hazards.md").read_text()
FAULT_CLASSES = (ROOT / "docs" / "reports" / "fault-classes.md").read_text()
TEST = re.compile(r"`(tests/[^`]+::[^`]+)`")
ROW = re.compile(r"^\| ([A-E]\d+) \|(.*)\|$", re.MULTILINE)
ONE_BROKER = {
    *(f"B{number}" for number in range(1, 21)),
    *(f"C{number}" for number in (*range(1, 8), *range(9, 17))),
    *(f"D{number}" for number in range(1, 17)),
    *(f"E{number}" for number in range(1, 7)),
}


def test_every_hazard_of_one_broker_has_tests() -> None:
    rows = {name: TEST.findall(rest) for name, rest in ROW.findall(TEXT)}
    assert {name for name, tests in rows.items() if tests} >= ONE_BROKER


def test_every_test_that_is_named_exists() -> None:
    names = sorted(set(TEST.findall(TEXT)))
    assert len(names) > 50
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    result = subprocess.run(
        [*command, *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def test_every_suite_of_the_fault_classes_exists() -> None:
    named = set(re.findall(r"`(tests/[^`]+)`", FAULT_CLASSES))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
