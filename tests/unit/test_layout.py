"""The directories of the tests: `tests/unit` mirrors the source, and `tests/suites.toml` has a row for each package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.suites import SOURCE, TESTS, packages, paths_of, table

WITHOUT_PACKAGE: dict[str, str] = {}
"""Directories of `tests/unit` that are no package of the source, each with the reason."""
SUITES = sorted(
    path.name for path in TESTS.iterdir() if path.is_dir() and not path.name.startswith(("_", "."))
)
README = (TESTS / "README.md").read_text()


def test_the_directories_of_unit_tests_mirror_the_source() -> None:
    unit = TESTS / "unit"
    written = {path.parent.relative_to(unit).as_posix() for path in unit.rglob("*.py")} - {"."}
    strange = {name for name in written if not (SOURCE / "headrace" / name).is_dir()}
    assert strange == set(WITHOUT_PACKAGE)


def test_every_package_has_a_row_in_the_table_of_suites() -> None:
    assert set(table()) == packages()


def test_every_path_in_the_table_of_suites_exists() -> None:
    named = {path for paths in table().values() for path in paths}
    assert [path for path in sorted(named) if not (TESTS / path).exists()] == []


@pytest.mark.parametrize("package", sorted(table()))
def test_every_package_has_tests(package: str) -> None:
    assert paths_of(package)


def test_a_package_includes_the_packages_below_it() -> None:
    paths = paths_of("core")
    assert "tests/unit/core" in paths
    assert {f"tests/{path}" for path in table()["core/lease"]} <= set(paths)


def test_an_unknown_package_is_refused_with_a_list_of_all_packages() -> None:
    command = [sys.executable, "-m", "tests.suites", "no/such"]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "There is no package 'no/such'" in done.stderr
    assert "core/log\n" in done.stderr


@pytest.mark.parametrize("suite", SUITES)
def test_the_readme_describes_every_suite(suite: str) -> None:
    assert f"`{suite}/`" in README
