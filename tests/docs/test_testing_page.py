"""docs/guides/testing.md is right: its files form a project whose tests pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = "pytester"

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "testing.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
FILES = {block.split("\n", 1)[0].removeprefix("# "): block for block in BLOCKS}


def test_every_block_names_its_own_file() -> None:
    assert len(FILES) == len(BLOCKS)
    assert all(name.endswith(".py") for name in FILES)


def test_the_tests_of_the_page_pass(pytester: pytest.Pytester) -> None:
    for name, text in FILES.items():
        (pytester.path / name).write_text(text)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-n", "2", timeout=200)
    wanted = sum(text.count("\ndef test_") for text in FILES.values())
    result.assert_outcomes(passed=wanted)


def test_the_page_names_the_fixtures_of_the_plugin() -> None:
    plugin = vars(__import__("headrace.testing.plugin", fromlist=["plugin"]))
    assert set(re.findall(r"^\| `(headrace_\w+)`", PAGE, flags=re.MULTILINE)) == {
        name for name in plugin if name.startswith("headrace_")
    }
