"""Settings for every test: Hypothesis' profile, garbage collection, rewritten assertions, and parts of the tests."""

from __future__ import annotations

import gc
import signal
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.effort import configure, examples

pytest.register_assert_rewrite("tests.conformance.clients", "tests.fixtures")


def pytest_configure(config: pytest.Config) -> None:
    configure(config)
    settings.register_profile(
        "deterministic",
        derandomize=True,
        max_examples=examples(60),
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    settings.load_profile("deterministic")


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs with SIGINT ignored. Processes that tests start would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part", help="run one part of the test files, as 2/3: so that processes share them"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the test files of other parts. A process imports only the files of its part, unlike a worker of xdist."""
    part = config.getoption("part")
    if not part or collection_path.suffix != ".py":
        return None
    number, _, count = part.partition("/")
    chosen = _parts(tuple(config.args), int(count))[int(number) - 1]
    return None if collection_path in chosen else True


@cache
def _parts(directories: tuple[str, ...], count: int) -> list[set[Path]]:
    """Divide the test files of each directory into equal parts, the largest files first."""
    parts: list[set[Path]] = [set() for _ in range(count)]
    turn = 0
    for directory in directories:
        files = Path(directory).resolve().rglob("test_*.py")
        for file in sorted(files, key=lambda file: (-file.stat().st_size, file)):
            parts[turn % count].add(file)
            turn += 1
    return parts


def pytest_collection() -> None:
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Freeze the half a million objects of the collected tests, so that collections of garbage do not look at them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(700, 10, 100)
    gc.enable()
