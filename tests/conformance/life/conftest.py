"""One broker in memory for each module, and programs that use it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fixtures.processes import ServerProcess, running_server

ROOT = Path(__file__).parents[3]
PROGRAMS = Path(__file__).parent / "programs"


class Ended(NamedTuple):
    """A program that has ended."""

    code: int
    output: str
    errors: str


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running_server(tmp_path_factory.mktemp("life"), memory=True) as server:
        yield server


def run_program(name: str, *arguments: str, timeout_s: float = 60, **environment: str) -> Ended:
    """Run a program of `programs/` to its end; one that does not end in time fails the test."""
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / f"{name}.py"), *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)
