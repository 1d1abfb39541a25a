"""The client commands run as processes, against Headrace and against Apache Kafka."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.fixtures.targets import Target, make_target
from tools.fetch_java import JavaUnavailableError

TIMEOUT_S = 60


class Commands:
    """A runner of `headrace ...` commands against one server."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "headrace.cli", *arguments]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "HEADRACE_BOOTSTRAP": self.target.bootstrap, "PYTHONUNBUFFERED": "1"}

    def run(
        self, *arguments: str, data: bytes = b"", code: int = 0
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            self.command(*arguments),
            input=data,
            capture_output=True,
            env=self.environment,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == code, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
        return done

    def lines(self, *arguments: str, data: bytes = b"") -> list[str]:
        return self.run(*arguments, data=data).stdout.decode().splitlines()

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--format", "json").stdout)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )


@pytest.fixture(scope="package", params=["headrace", pytest.param("kafka", marks=pytest.mark.java)])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Target]:
    target = make_target(request.param, tmp_path_factory.mktemp("server") / request.param)
    try:
        target.start()
    except JavaUnavailableError as error:
        pytest.skip(str(error))
    try:
        yield target
    finally:
        target.stop()


@pytest.fixture
def headrace(server: Target) -> Commands:
    return Commands(server)


_NUMBERS = itertools.count()


@pytest.fixture
def new_topic(headrace: Commands) -> Callable[..., str]:
    def create(*arguments: str) -> str:
        name = f"topic-{os.getpid()}-{next(_NUMBERS)}"
        headrace.run("topic", "create", name, *arguments)
        return name

    return create


def sequence(lines: Sequence[str]) -> list[int]:
    """Return numbers, one in each line, for comparison."""
    return [int(line) for line in lines]
