"""Several pipelines in one process, with fakes of Spark's sessions and frames."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError
from headrace.pipelines import frames, pipeline, table, topic
from headrace.pipelines.checks import sinks as sink_checks
from headrace.pipelines.checks.declarations import check
from headrace.pipelines.plan import DefaultCluster, Plan, PlanError
from headrace.pipelines.running.runner import Runner, Signals
from headrace.pipelines.status.state import StateDirectory, Status


class FakeSessions:
    alive = True
    closed = False

    def get(self) -> Any:
        return self

    def close(self) -> None:
        self.closed = True


class FakeFrame:
    dtypes = (("value", "string"),)


class FakeQuery:
    """A fake query between two batches that has finished none."""

    def __init__(self) -> None:
        self.isActive = True
        self.lastProgress = None
        self.status = {"isTriggerActive": False}

    def stop(self) -> None:
        self.isActive = False


class StatusRecorder:
    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []
        self.ticks = 0
        self.at_tick: Any = None

    def changed(self, status: Status) -> None:
        self.states.append((status.name, status.state))

    def tick(self, statuses: Sequence[Status]) -> None:
        self.ticks += 1
        if self.at_tick is not None:
            self.at_tick()


class Harness:
    """A runner of two pipelines."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        declared = [
            pipeline(
                source=topic("in", format="text"), sink=table(f"{tmp_path}/{name}"), name=name
            )(lambda records: records)
            for name in ("one", "two")
        ]
        self.plans = check(declared, DefaultCluster("127.0.0.1:1"), str(tmp_path / "checkpoints"))
        kind: Any = FakeSessions
        self.sessions = kind()
        self.state = StateDirectory(tmp_path / "state")
        self.told = StatusRecorder()
        self.signals = Signals()
        self.signals.came.set()  # the first look is at once
        self.wrong: dict[str, list[str]] = {}
        self.runner = Runner(self.sessions, self.state, self.told, self.signals)
        monkeypatch.setattr(frames, "session_of", lambda spark, plan: spark)
        monkeypatch.setattr(frames, "result", lambda spark, plan: FakeFrame())
        monkeypatch.setattr(frames, "start", lambda spark, plan: FakeQuery())
        monkeypatch.setattr(sink_checks, "unsupported", lambda frame, plan: [])
        monkeypatch.setattr(sink_checks, "problems", self._problems)

    def _problems(self, spark: Any, frame: Any, plan: Plan) -> list[str]:
        return self.wrong.get(plan.name, [])

    def states(self) -> dict[str, str]:
        return {each.name: each.state for each in self.state.statuses()}


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    return Harness(tmp_path, monkeypatch)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_in_order(harness: Harness, number: int) -> None:
    def at_tick() -> None:
        if harness.told.ticks == 1:
            assert harness.states() == {"one": "running", "two": "running"}
            os.kill(os.getpid(), number)

    harness.told.at_tick = at_tick
    before = signal.getsignal(number)
    with harness.signals.caught():
        assert harness.runner.run(harness.plans)

    assert harness.states() == {"one": "stopped", "two": "stopped"}
    assert harness.sessions.closed
    assert signal.getsignal(number) is before


def test_stopping_one_pipeline_leaves_the_others_running(harness: Harness) -> None:
    def at_tick() -> None:
        if harness.told.ticks == 1:
            harness.state.ask_to_stop("one")
        if harness.told.ticks == 2:
            assert harness.states() == {"one": "stopped", "two": "running"}
            harness.state.ask_to_stop("two")
        harness.signals.came.set()

    harness.told.at_tick = at_tick
    assert harness.runner.run(harness.plans)
    assert harness.told.states[-1] == ("two", "stopped")


def test_no_pipeline_starts_if_a_frame_does_not_fit(harness: Harness) -> None:
    harness.wrong["two"] = ["the frame has no column key"]
    with pytest.raises(PlanError, match="two: the frame has no column key"):
        harness.runner.run(harness.plans)

    errors = {each.name: each.error for each in harness.state.statuses()}
    assert errors == {
        "one": "another pipeline of the same run has problems",
        "two": "the frame has no column key",
    }
    assert harness.told.states == []
    assert harness.sessions.closed


def test_a_running_pipeline_prevents_the_start_of_all(harness: Harness) -> None:
    taken = harness.state.claim("two")
    with pytest.raises(ConfigError, match="pipeline two is running"):
        harness.runner.run(harness.plans)
    taken.release()

    harness.state.claim("one").release()  # it was given back
