"""A supervised pipeline with fake queries: starts, batches, failures, stops."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from headrace.pipelines import pipeline, table, topic
from headrace.pipelines.checks.declarations import check
from headrace.pipelines.plan import DefaultCluster, Plan
from headrace.pipelines.running.backoff import RestartBackoff
from headrace.pipelines.running.session import SETTINGS
from headrace.pipelines.running.supervision import Supervised
from headrace.pipelines.status.state import StateDirectory, Status


class FakeQuery:
    """A fake query whose batches the test finishes."""

    def __init__(self) -> None:
        self.isActive = True
        self.reports: list[dict[str, Any]] = []
        self.active = True
        self.error: Exception | None = None
        self.stopped = False

    @property
    def lastProgress(self) -> Any:  # noqa: N802 - Spark's name
        return self.reports[-1] if self.reports else None

    @property
    def recentProgress(self) -> Any:  # noqa: N802 - Spark's name
        return list(self.reports)

    @property
    def status(self) -> Any:
        return {"isTriggerActive": self.active}

    def exception(self) -> Exception | None:
        return self.error

    def stop(self) -> None:
        self.isActive, self.stopped = False, True

    def finish_batch(self, number: int) -> None:
        second = f"{len(self.reports):02}"
        self.reports.append(
            {"timestamp": f"2026-01-01T00:00:{second}Z", "batchId": number, "numInputRows": 5}
        )

    def fail(self, error: Exception) -> None:
        self.isActive, self.error = False, error


class Harness:
    """A supervised pipeline, its clock, and all queries that it started."""

    def __init__(self, tmp_path: Path, *, trigger: str = "1 second", attempts: int = 3) -> None:
        @pipeline(
            source=topic("in", format="binary"), sink=table(str(tmp_path / "out")), trigger=trigger
        )
        def copy(records: Any) -> Any:
            return records

        (self.plan,) = check([copy], DefaultCluster("127.0.0.1:1"), str(tmp_path / "checkpoints"))
        self.now = 1000.0
        self.queries: list[FakeQuery] = []
        self.refuse: Exception | None = None
        self.told: list[Status] = []
        self.state = StateDirectory(tmp_path / "state")
        self.run = Supervised(
            self.plan,
            self._start,
            self.state.claim("copy"),
            self.told.append,
            RestartBackoff(first_s=1, longest_s=60, attempts=attempts),
            clock=lambda: self.now,
            drain_s=30,
        )

    def _start(self, plan: Plan) -> FakeQuery:
        if self.refuse is not None:
            raise self.refuse
        self.queries.append(FakeQuery())
        return self.queries[-1]

    @property
    def query(self) -> FakeQuery:
        return self.queries[-1]

    def poll(self, seconds: float = 0) -> str:
        self.now += seconds
        self.run.poll()
        return self.run.status.state


@pytest.fixture
def world(tmp_path: Path) -> Any:
    made = Harness(tmp_path)
    yield made
    made.run.claim.release()


def test_every_batch_is_reported_once(world: Harness) -> None:
    assert world.poll() == "running"
    world.query.finish_batch(0)
    world.query.finish_batch(1)
    world.poll()
    world.poll()

    batches = [each.progress["batch_id"] for each in world.told if each.progress]
    assert batches == [0, 1]
    found = world.state.status("copy")
    assert found is not None
    assert (found.state, found.progress) == ("running", world.told[-1].progress)


def test_a_failed_pipeline_is_restarted_after_a_delay(world: Harness) -> None:
    world.poll()
    world.query.fail(RuntimeError("the broker is away"))
    assert world.poll() == "restarting"
    assert world.run.status.error == "RuntimeError: the broker is away"
    assert world.poll(0.9) == "restarting"
    assert world.poll(0.2) == "running"
    assert len(world.queries) == 2
    assert world.run.status.restarts == 1


def test_failures_in_a_row_end_a_pipeline_and_a_batch_resets_their_count(world: Harness) -> None:
    for _ in range(3):
        world.poll(60)
        world.query.fail(RuntimeError("again"))
        assert world.poll() == "restarting"
    world.poll(60)
    world.query.finish_batch(0)
    world.poll()
    for _ in range(3):
        world.query.fail(RuntimeError("again"))
        assert world.poll() == "restarting"
        world.poll(60)
    world.query.fail(RuntimeError("again"))

    assert world.poll() == "failed"
    assert world.poll(1000) == "failed"
    assert world.run.status.restarts == 6


def test_a_final_failure_is_not_restarted(world: Harness) -> None:
    world.poll()
    world.query.fail(
        RuntimeError("x\nTraceback (most recent call last):\na.b.DataLossError: offsets are gone\n")
    )

    assert world.poll() == "failed"
    assert world.run.status.error == "offsets are gone"


def test_a_start_that_fails_counts_as_a_failure(world: Harness) -> None:
    world.refuse = ConnectionRefusedError("the JVM is gone")
    assert world.poll() == "restarting"
    world.refuse = None

    assert world.poll(2) == "running"


def test_a_query_whose_report_is_not_understood_is_not_left_running(world: Harness) -> None:
    world.poll()
    world.query.reports.append({"batchId": 0, "timestamp": "yesterday"})

    assert world.poll() == "restarting"
    assert world.query.stopped


def test_a_status_that_cannot_be_written_is_no_reason_to_end(world: Harness) -> None:
    shutil.rmtree(world.state.path)

    assert world.poll() == "running"
    world.query.finish_batch(0)
    assert world.poll() == "running"
    assert world.told[-1].progress is not None


def test_a_batch_that_does_not_let_itself_be_stopped_is_left_to_the_end_of_spark(
    world: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise TimeoutError("the batch goes on")

    world.poll()
    monkeypatch.setattr(world.query, "stop", stop)
    world.run.stop(now=True)

    assert world.poll() == "stopped"
    assert world.run.status.error == "TimeoutError: the batch goes on"
    assert SETTINGS["spark.sql.streaming.stopTimeout"] == "30s", "else Spark waits for ever"


def test_a_stop_lets_the_running_batch_finish(world: Harness) -> None:
    world.poll()
    world.query.finish_batch(0)
    world.poll()
    world.state.ask_to_stop("copy")
    assert world.poll() == "running"
    assert world.poll(5) == "running"
    world.query.finish_batch(1)

    assert world.poll() == "stopped"
    assert world.query.stopped
    assert world.told[-1].progress is not None
    assert world.told[-1].progress["batch_id"] == 1


@pytest.mark.parametrize("how", ["idle", "late", "now"])
def test_a_stop_waits_only_for_a_running_batch_and_not_forever(world: Harness, how: str) -> None:
    world.poll()
    world.run.stop()
    if how == "idle":
        world.query.active = False
    elif how == "late":
        assert world.poll(29) == "running"
        world.now += 2
    else:
        world.run.stop(now=True)

    assert world.poll() == "stopped"
    assert world.query.stopped


def test_a_stop_ends_a_wait(world: Harness) -> None:
    world.poll()
    world.query.fail(RuntimeError("away"))
    world.poll()
    world.run.stop()

    assert world.poll() == "stopped"
    assert world.state.status("copy") == world.run.status


def test_a_pipeline_with_available_now_ends_as_finished(tmp_path: Path) -> None:
    world = Harness(tmp_path, trigger="available_now")
    world.poll()
    world.query.finish_batch(0)
    world.query.isActive = False

    assert world.poll() == "finished"
    assert world.run.status.progress is not None
    world.state.claim("copy").release()


def test_a_pipeline_that_fails_before_its_start_reports_the_reason(world: Harness) -> None:
    world.run.give_up("the frame has no column key")

    found = world.state.status("copy")
    assert found is not None
    assert (found.state, found.error) == ("failed", "the frame has no column key")
    assert world.poll() == "failed"
    assert not world.queries
