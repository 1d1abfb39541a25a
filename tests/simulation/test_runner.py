"""The command line of the simulations: every option has an effect, or is refused."""

from __future__ import annotations

import importlib
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.simulation import runner

_off: list[str] = []


def run_seed(seed: int) -> runner.SeedResult:
    """Fail for seed 1, and for seed 2 when the defence is switched off."""
    wrong = seed == 1 or (seed == 2 and _off)
    return seed, "went wrong" if wrong else "", Counter(told=1)


def trace(seed: int) -> bool:
    print("traced")
    return bool(run_seed(seed)[1])


@contextmanager
def without(defence: str) -> Iterator[None]:
    _off.append(defence)
    yield
    _off.remove(defence)


SIMULATION = runner.Simulation("tests.made_up", "about", run_seed, trace, ["a lock"], without)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "state_of_source", lambda: "now")
    return tmp_path / ".cache" / "simulation" / "tests.made_up-now.txt"


def run(*arguments: str) -> int:
    return runner.main(SIMULATION, list(arguments))


def test_the_runner_remembers_seeds_without_failures(cache: Path) -> None:
    assert run("--seeds", "4", "--processes", "1") == 1
    assert sorted(cache.read_text().split()) == ["0", "2", "3"]


def test_many_seeds_without_a_defence(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("0\n2\n3\n")
    assert run("--seeds", "4", "--processes", "1", "--without", "a lock") == 1
    printed = capsys.readouterr().out
    assert "FAILED seed 2" in printed, "the defence was not switched off, or the seed was skipped"
    assert "2 --trace --without 'a lock'" in printed
    assert cache.read_text() == "0\n2\n3\n", "what is run without a defence proves nothing"


def test_the_runner_runs_one_seed_without_a_defence(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("2") == 0
    assert run("2", "--without", "a lock") == 1
    assert run("2", "--trace", "--without", "a lock") == 1
    assert "traced" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--trace"],
        ["2", "--seeds", "4"],
        ["2", "--first", "1"],
        ["2", "--processes", "1"],
        ["--without", "a key"],
    ],
    ids=" ".join,
)
def test_an_option_that_would_be_ignored_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(*arguments)
    assert ended.value.code == 2


@pytest.mark.parametrize(
    "module",
    [
        "tests.simulation",
        *(
            "tests.simulation." + each
            for each in ("leases", "groups", "log", "replicas", "brokers")
        ),
    ],
)
def test_every_simulation_can_be_run_without_each_of_its_defences(module: str) -> None:
    simulation = importlib.import_module(f"{module}.__main__").SIMULATION
    assert simulation.module == module
    assert list(simulation.defences)


def test_files_that_git_does_not_know_yet_are_part_of_the_state(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.undo()

    git = ["git", "-C", str(tmp_path), "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "init", "-q"], check=True)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "known.py").write_text("1")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "first"], check=True)
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    states = [runner.state_of_source()]
    for name, text in (("known.py", "2"), ("new.py", "1"), ("new.py", "2")):
        (tmp_path / "src" / name).write_text(text)
        states.append(runner.state_of_source())
    assert len(set(states)) == 4, states
