"""Runs programs as a user does, as processes in a directory of their own, and the commands beside them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fixtures.command_line import run_command

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs/user"
TIMEOUT_S = 60


class Shell:
    """A terminal: commands end, programs run until they are stopped."""

    def __init__(self, directory: Path, **environment: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        path = {"PYTHONPATH": f"{ROOT / 'src'}:{PROGRAMS}", "PYTHONUNBUFFERED": "1"}
        self.directory = directory
        self.environment = {**kept, **path, **environment}

    def run(self, *command: str, lines: str = "", code: int = 0) -> str:
        """Run a command of `headrace` in this process, where it starts fast, and return its output."""
        done = run_command(*command, data=lines.encode(), environment=self.environment)
        assert done.code == code, (command, done)
        return done.out.decode()

    def python(self, *arguments: str) -> str:
        """Run a program to its end, and return its output."""
        done = subprocess.run(
            [sys.executable, *arguments],
            env=self.environment,
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def json(self, *command: str) -> Any:
        """Run a command, and return its JSON output."""
        return json.loads(self.run(*command, "--format", "json"))

    @contextmanager
    def started(self, *arguments: str, **environment: str) -> Iterator[Program]:
        """Start a program for the length of a block."""
        log = self.directory / "errors.log"
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env={**self.environment, **environment},
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            yield Program(process, log)
        finally:
            process.kill()
            process.communicate()


class Program:
    """A program that runs."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log

    def lines(self, count: int) -> list[str]:
        """Return the next lines of the program's output. Fail if the program ends before."""
        assert self.process.stdout is not None
        found = [self.process.stdout.readline().rstrip("\n") for _ in range(count)]
        assert all(found), (found, self.log)
        return found

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that the program does."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self.process.poll() is None, (what, self.log)
            assert time.monotonic() < deadline, (what, self.log)
            time.sleep(0.05)

    def stop(self) -> str:
        """Stop the program with SIGTERM, and return the rest of its output."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> str:
        """Wait until the program has ended with success, and return the rest of its output."""
        output, _ = self.process.communicate(timeout=TIMEOUT_S)
        assert self.process.returncode == 0, (self.process.returncode, self.log)
        return output

    @property
    def log(self) -> str:
        """Return the text that the process wrote to standard error."""
        return self._log.read_text()
