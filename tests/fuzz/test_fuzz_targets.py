"""The short form of `make fuzz`: the first cases of every target, and the harness itself."""

from __future__ import annotations

import subprocess
import sys
from random import Random

import pytest

from tests.fuzz import __main__ as harness
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS, run_case

CASES = {
    "batches": 400,
    "consumer-protocol": 300,
    "messages": 400,
    "primitives": 500,
    "requests": 400,
}
"""The number of cases of the quick targets. The other targets start brokers and have fewer."""


@pytest.mark.parametrize("target", TARGETS)
def test_the_first_cases(target: str) -> None:
    for seed in range(CASES.get(target, 80)):
        try:
            run_case(target, seed)
        except Exception as error:
            raise AssertionError(f"python -m tests.fuzz --replay {target}:{seed}") from error


def test_a_failure_is_found_counted_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fragile(chance: Random) -> None:
        assert mutated(b"abc", chance)[:1] != b"b"

    monkeypatch.setitem(TARGETS, "fragile", fragile)
    cases, failed = harness.fuzz("fragile", first=0, seconds=20)
    assert failed == 3
    printed = capsys.readouterr().out
    seed = int(printed.rpartition("--replay fragile:")[2].split()[0])
    assert seed == cases - 1
    with pytest.raises(AssertionError):
        run_case("fragile", seed)


def test_the_command_repeats_a_case() -> None:
    command = [sys.executable, "-m", "tests.fuzz", "--replay", "requests:7"]
    assert subprocess.run(command, check=False).returncode == 0
