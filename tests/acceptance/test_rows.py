"""Each requirement in the lists A and B has tests, in process and over TCP."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROWS = {f"a{number}" for number in range(1, 18)} | {f"b{number}" for number in range(1, 8)}
ROW = re.compile(r"test_([ab]\d+)_")
IN_VIRTUAL_TIME = {
    "b5"
}  # a broker that dies at an exact moment; with processes: conformance/group_rounds
PLACES = {"place", "headrace_place", "peer", "two_places"}


def by_row() -> dict[str, list[ast.FunctionDef]]:
    found: dict[str, list[ast.FunctionDef]] = {}
    for path in sorted(HERE.glob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and (match := ROW.match(node.name)):
                found.setdefault(match[1], []).append(node)
    return found


def test_every_row_has_a_test() -> None:
    assert set(by_row()) == ROWS


def test_every_row_is_tried_in_process_and_over_tcp() -> None:
    for row, tests in by_row().items():
        arguments = {argument.arg for test in tests for argument in test.args.args}
        assert row in IN_VIRTUAL_TIME or arguments & PLACES, row


def test_no_two_tests_have_one_name() -> None:
    names = [test.name for tests in by_row().values() for test in tests]
    assert len(names) == len(set(names))
