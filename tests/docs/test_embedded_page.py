"""docs/guides/embedded.md is right: its code runs in order and prints what the page shows, and so do the examples."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$|^# (.*)$", re.MULTILINE)
EXAMPLES = sorted((ROOT / "examples").glob("embedded_*.py"))


def test_the_code_of_the_page_prints_what_the_page_shows(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / "docs" / "guides" / "embedded.md").read_text())
    assert len(blocks) > 8
    names: dict[str, object] = {"__name__": "embedded"}
    for block in blocks:
        exec(compile(block, "docs/guides/embedded.md", "exec"), names)
        expected = [first or second for first, second in PRINTED.findall(block)]
        assert capsys.readouterr().out.splitlines() == expected, block


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_prints_what_it_shows(path, tmp_path) -> None:
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = (path.read_text().split('"""')[1]).partition("It prints:\n\n")[2]
    assert shown, "the docstring of an example ends with its output"
    assert done.stdout.split() == shown.split()


def test_the_directory_has_examples() -> None:
    assert len(EXAMPLES) >= 3
