"""The lists of hazards, of classes of faults and of invariants in docs/reports name tests that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tools import generate_hazards

ROOT = Path(__file__).resolve().parents[2]
FAULT_CLASSES = (ROOT / "docs" / "reports" / "fault-classes.md").read_text()
INVARIANTS = (ROOT / "docs" / "reports" / "invariants.md").read_text()
HAZARDS = {
    hazard["id"]: hazard for section in generate_hazards.sections() for hazard in section["hazard"]
}
EXPECTED = {
    *(f"A{number}" for number in range(1, 27)),
    *(f"B{number}" for number in range(1, 21)),
    *(f"C{number}" for number in (*range(1, 8), *range(9, 17))),
    *(f"D{number}" for number in range(1, 17)),
    *(f"E{number}" for number in range(1, 7)),
}
"""The hazards of a broker and of a cluster. C8 concerns only the program of a user."""


def test_every_hazard_has_tests() -> None:
    assert {name for name, hazard in HAZARDS.items() if hazard["tests"]} >= EXPECTED


def test_the_page_is_what_the_generator_writes() -> None:
    assert generate_hazards.PAGE.read_text() == generate_hazards.page()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ('id = "B1"', "missing or unknown keys"),
        ('id = "B1"\nhazard = ""\nconsequence = ""\ndefence = ""\ntests = []\nrule = ""', "rule"),
        ('id = "C1"\nhazard = ""\nconsequence = ""\ndefence = ""\ntests = []', "wrong section"),
    ],
)
def test_an_incomplete_hazard_is_refused(tmp_path: Path, wrong: str, words: str) -> None:
    source = tmp_path / "hazards.toml"
    source.write_text(f'[[section]]\nid = "B"\ntitle = ""\n[[section.hazard]]\n{wrong}\n')
    with pytest.raises(ValueError, match=words):
        generate_hazards.sections(source)


def words_of(path: Path) -> set[str]:
    """Return all names and string constants of a test module and of the test modules that it imports."""
    words: set[str] = set()
    for each in (path, *imported(path)):
        for node in ast.walk(parsed(each)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                words.add(node.name)
    return words


def imported(path: Path) -> list[Path]:
    """Return the files below `tests/` that a module imports."""
    modules = [
        node.module
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests.")
    ]
    files = [ROOT / f"{module.replace('.', '/')}.py" for module in modules if module]
    return [file for file in files if file.exists()]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def defined(path: Path) -> set[str]:
    """Return the tests of a module: functions, methods as `Class::method`, Hypothesis' machines as `Name::runTest`."""
    names: set[str] = set()
    for node in parsed(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{each.name}" for each in node.body if hasattr(each, "name")}
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).endswith(".TestCase"):
            names |= {f"{ast.unparse(target)}::runTest" for target in node.targets}
    return names


def exists(test: str) -> bool:
    """Return whether a test exists, given as `path::name` or `path::name[case]`.

    The text of a case must be in the module or in a module that it imports.
    """
    file, _, rest = test.partition("::")
    name, _, case = rest.partition("[")
    path = ROOT / file
    if not path.exists() or name not in defined(path):
        return False
    return not case or case.removesuffix("]") in words_of(path)


def test_every_test_of_a_hazard_exists() -> None:
    names = sorted({test for hazard in HAZARDS.values() for test in hazard["tests"]})
    assert len(names) > 50
    assert [name for name in names if not exists(name)] == []


@pytest.mark.parametrize(
    "wrong",
    [
        "tests/property/test_no_such_file.py::test_anything",
        "tests/property/test_simulation.py::test_no_such_name",
        "tests/property/test_simulation.py::test_a_missing_defence_is_noticed[no such case]",
        "tests/property/test_broker.py::NoSuchMachine::runTest",
    ],
)
def test_a_missing_test_is_noticed(wrong: str) -> None:
    assert not exists(wrong)


def test_every_suite_of_a_fault_class_exists() -> None:
    named = set(re.findall(r"`(tests/[^`]+)`", FAULT_CLASSES))
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_checker_and_test_of_an_invariant_exists() -> None:
    rows = re.findall(r"^\| (\d+) \|", INVARIANTS, re.MULTILINE)
    assert [int(row) for row in rows] == list(range(1, 26))
    named = set(re.findall(r"`(tests/[^`]+)`", INVARIANTS))
    missing = (
        name for name in named if not (exists(name) if "::" in name else (ROOT / name).exists())
    )
    assert sorted(missing) == []
