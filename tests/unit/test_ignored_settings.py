"""Settings of the tests must be read by a test, and documented where a user can find them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.macro.report import Results
from tests.fuzz.__main__ import main as fuzz

ROOT = Path(__file__).resolve().parents[2]
VARIABLE = re.compile(r"\b(?:HEADRACE|CONFORMANCE|FUZZ)_[A-Z_]+\b")
READ = re.compile(
    r"""(?:environ(?:\.get)?|getenv)[\[(]\s*["'](\w+)["']|["'](\w+)["'] (?:not )?in os\.environ"""
)


def readers() -> dict[str, list[Path]]:
    """Return the files below tests that read each environment variable."""
    found: dict[str, list[Path]] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for names in READ.findall(path.read_text()):
            found.setdefault(names[0] or names[1], []).append(path)
    return found


def test_every_variable_that_the_makefile_sets_is_read() -> None:
    product = "".join(
        path.read_text() for part in ("src", "accel") for path in (ROOT / part).rglob("*.py")
    )
    known = readers()
    makefile = (ROOT / "Makefile").read_text()
    unread = {
        name
        for name in re.findall(r"\b([A-Z]+_[A-Z_]+)=", makefile)
        if name not in known and f'"{name}"' not in product
    }
    assert not unread


def test_every_variable_that_a_test_reads_is_explained() -> None:
    """In the Makefile, in docs/, or where it is read, besides the line that reads it."""
    explained = (ROOT / "Makefile").read_text()
    explained += "".join(path.read_text() for path in (ROOT / "docs").rglob("*.md"))
    silent = []
    for name, paths in readers().items():
        if not VARIABLE.fullmatch(name) or name in explained:
            continue
        if not any(len(re.findall(rf"\b{name}\b", path.read_text())) > 1 for path in paths):
            silent.append(f"{name}, read by {paths[0].relative_to(ROOT)}")
    assert not silent


@pytest.mark.parametrize("option", ["--seconds", "--seed"])
def test_the_fuzzer_refuses_options_that_a_replay_would_ignore(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["fuzz", "--replay", "frames:1", option, "3"])
    with pytest.raises(SystemExit) as ended:
        fuzz()
    assert ended.value.code == 2


def test_a_benchmark_that_has_measured_nothing_writes_nothing() -> None:
    with pytest.raises(ValueError, match="--rows"):
        Results().as_json()
