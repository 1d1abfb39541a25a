"""Processes of pipelines: lost processes are restarted; processes with a final exit code are not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.pipelines.running.backoff import RestartBackoff
from headrace.pipelines.running.isolated import Child, IsolatedRunner
from headrace.pipelines.running.runner import Signals
from headrace.pipelines.status.state import StateDirectory


class FakeProcess:
    def __init__(self) -> None:
        self.code: int | None = None
        self.signals: list[int] = []

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


class Harness:
    def __init__(self) -> None:
        self.now = 0.0
        self.processes: list[FakeProcess] = []
        self.child = Child("delays", self.spawn, RestartBackoff(attempts=2), clock=lambda: self.now)

    def spawn(self, name: str) -> Any:
        self.processes.append(FakeProcess())
        return self.processes[-1]

    def end(self, code: int) -> str | None:
        self.processes[-1].code = code
        return self.child.poll()

    def poll(self, seconds: float) -> None:
        self.now += seconds
        self.child.poll()


@pytest.fixture
def harness() -> Harness:
    made = Harness()
    made.poll(0)
    return made


def test_a_killed_process_is_restarted_after_a_delay(harness: Harness) -> None:
    assert harness.end(-9) == "delays: its process ended with -9; it is restarted in 1 s"
    harness.poll(0.9)
    assert len(harness.processes) == 1
    harness.poll(0.2)
    assert len(harness.processes) == 2


def test_a_process_that_is_killed_too_often_is_not_restarted(harness: Harness) -> None:
    for wait in (1, 2):
        harness.end(-9)
        harness.poll(wait)
    assert harness.end(-9) == "delays: its process ended with -9, and is not restarted any more"
    assert (harness.child.ended, harness.child.code) == (True, -9)


def test_a_healthy_process_resets_the_count_of_failures(harness: Harness) -> None:
    for _ in range(5):
        harness.now += 61
        assert "restarted in 1 s" in str(harness.end(-9))
        harness.poll(1)


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_process_with_a_final_exit_code_is_not_restarted(harness: Harness, code: int) -> None:
    assert harness.end(code) is None
    assert harness.child.code == code


def test_the_parent_passes_stop_signals_to_its_children(harness: Harness) -> None:
    harness.child.stop()
    harness.child.stop()
    assert harness.processes[-1].signals == [signal.SIGTERM] * 2
    harness.end(-15)
    assert harness.child.ended

    waiting = Harness()
    waiting.child.stop()
    waiting.poll(0)
    assert waiting.child.ended
    assert not waiting.processes


def test_the_parent_runs_until_all_have_ended(tmp_path: Path) -> None:
    class Silent:
        def changed(self, status: Any) -> None:
            pass

        def tick(self, statuses: Any) -> None:
            pass

    def spawn(name: str) -> subprocess.Popen[Any]:
        return subprocess.Popen([sys.executable, "-c", f"raise SystemExit({name == 'bad':d})"])

    def run(*names: str) -> bool:
        signals = Signals()
        signals.came.set()
        runner = IsolatedRunner(spawn, StateDirectory(tmp_path), Silent(), signals, print)
        return runner.run(names)

    assert run("good", "fine")
    assert not run("good", "bad")


CHILD = """
import os, signal, sys, threading
from headrace.cli.parent_process import end_with_parent

stopped = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stopped.set())
end_with_parent()
os.write(1, b"ready\\n")  # a line at once: there are two children
os.write(1, b"%s\\n" % str(stopped.wait(60)).encode())
"""
PARENT = """
import os, signal, subprocess, sys
from pathlib import Path
from headrace.cli.commands import pipeline

start = subprocess.Popen
subprocess.Popen = lambda _, **given: start([sys.executable, "-c", sys.argv[1]], **{**given, "stdout": None})
pipeline._spawn(Path("flow.py"), [], os.pipe()[0], "one")
second = pipeline._spawn(Path("flow.py"), [], os.pipe()[0], "two")
sys.stdin.read(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_children_are_asked_to_stop_when_their_parent_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert [parent.stdout.readline() for _ in range(2)] == ["ready\n"] * 2

        parent.stdin.close()

        assert parent.stdout.read() == "True\nTrue\n"
