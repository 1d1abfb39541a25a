"""`headrace run`: how an app is named, and what is shown of one that cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.command_line import run_command

pytestmark = pytest.mark.slow  # not in `make check`

BROKEN = {
    "raises": ("def f():\n    return 1 / 0\n\n\nf()\n", "ZeroDivisionError: division by zero"),
    "imports nothing": ("import no_such_thing_anywhere\n", "No module named 'no_such_thing"),
    "is no Python": ("def f(:\n", "SyntaxError: invalid syntax"),
}


@pytest.mark.parametrize("name", ["shop/app.py", "./shop/app", "{}/shop/app.py"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_program_that_cannot_be_imported_shows_its_own_lines_alone(
    tmp_path: Path, broken: str, name: str
) -> None:
    source, error = BROKEN[broken]
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "app.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "run", f"{name.format(tmp_path)}:app"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    files = [line.split('"')[1] for line in done.stderr.splitlines() if 'File "' in line]
    assert files
    assert {Path(each).resolve() for each in files} == {(tmp_path / "shop" / "app.py").resolve()}
    assert error in done.stderr
    assert done.stderr.startswith("Error: the app cannot be imported\n")


@pytest.mark.parametrize("target", ["app", "app:", ":app", "a-b:app", "..a:app", "a..b:app"])
def test_an_invalid_app_reference_is_refused_with_a_message(target: str) -> None:
    done = run_command("run", target, environment={})
    assert done.code == 2
    assert "expected MODULE:APP or FILE:APP" in done.err


def test_a_missing_module_is_named_in_the_error() -> None:
    done = run_command("run", "nowhere/at_all.py:app", environment={})
    assert done.code == 2
    assert "no module 'at_all' below" in done.err


def test_each_problem_at_the_start_of_an_app_has_a_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but a file with text in it")
    (tmp_path / "shop.py").write_text(
        "import headrace\n"
        "app = headrace.App(headrace.Broker(), group='g')\n"
        "app.worker('or/ders', name='a')(lambda value: None)\n"
        "app.worker('orders', name='b', dedupe=str, seen=headrace.SeenFile('text'))(lambda value: None)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "run", "shop:app", "--log-level", "error"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    _running, first, *lines = done.stderr.strip().splitlines()
    assert first == "Error: the app cannot start, for 2 reasons:"
    assert "'a' cannot read 'or/ders': this is not a valid topic name" in lines[0]
    assert "text is no file for seen=" in lines[1]
