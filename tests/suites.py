"""Print the tests that concern a package of the source: `python -m tests.suites core/log`.

`make test PACKAGE=core/log` runs them. The table is `suites.toml`. An unknown package ends the program with a list of
all packages.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).resolve().parent
SOURCE: Final = TESTS.parent / "src"
TOP: Final = "headrace"
"""The row of the modules that are directly below `src/headrace`."""


def table() -> dict[str, list[str]]:
    """Return the suites of each package, as paths below `tests/`, without the unit tests."""
    with (TESTS / "suites.toml").open("rb") as file:
        suites: dict[str, list[str]] = tomllib.load(file)["suites"]
    return suites


def packages() -> set[str]:
    """Return every package of the source, by its path below `src/headrace`."""
    found = {path.parent.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("__init__.py")}
    return {name.removeprefix(f"{TOP}/") for name in found}


def paths_of(package: str) -> list[str]:
    """Return the paths of all tests that concern a package and the packages below it, relative to the project."""
    suites = table()
    rows = [name for name in suites if name == package or name.startswith(f"{package}/")]
    found = dict.fromkeys(f"tests/{path}" for name in rows for path in suites[name])
    unit = TESTS / "unit" / package
    if package == TOP:
        found |= dict.fromkeys(f"tests/unit/{path.name}" for path in unit.parent.glob("test_*.py"))
    elif unit.is_dir():
        found |= {f"tests/unit/{package}": None}
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found)]


def main() -> None:
    """Print the paths for the package that the command line names."""
    package = "/".join(sys.argv[1:]).strip("/")
    if package not in table():
        names = "\n  ".join(sorted(table()))
        sys.exit(f"There is no package {package!r}. Name one of these with PACKAGE=...:\n  {names}")
    print(*paths_of(package))


if __name__ == "__main__":
    main()
