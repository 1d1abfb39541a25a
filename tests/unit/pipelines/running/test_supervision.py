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
def harness(tmp_path: Path) -> Any:
    made = Harness(tmp_path)
    yield made
    made.run.claim.release()


def test_every_batch_is_reported_once(harness: Harness) -> None:
    assert harness.poll() == "running"
    harness.query.finish_batch(0)
    harness.query.finish_batch(1)
    harness.poll()
    harness.poll()

    batches = [each.progress["batch_id"] for each in harness.told if each.progress]
    assert batches == [0, 1]
    found = harness.state.status("copy")
    assert found is not None
    assert (found.state, found.progress) == ("running", harness.told[-1].progress)


def test_a_failed_pipeline_is_restarted_after_a_delay(harness: Harness) -> None:
    harness.poll()
    harness.query.fail(RuntimeError("the broker is away"))
    assert harness.poll() == "restarting"
    assert harness.run.status.error == "RuntimeError: the broker is away"
    assert harness.poll(0.9) == "restarting"
    assert harness.poll(0.2) == "running"
    assert len(harness.queries) == 2
    assert harness.run.status.restarts == 1


def test_failures_in_a_row_end_a_pipeline_and_a_batch_resets_their_count(harness: Harness) -> None:
    for _ in range(3):
        harness.poll(60)
        harness.query.fail(RuntimeError("again"))
        assert harness.poll() == "restarting"
    harness.poll(60)
    harness.query.finish_batch(0)
    harness.poll()
    for _ in range(3):
        harness.query.fail(RuntimeError("again"))
        assert harness.poll() == "restarting"
        harness.poll(60)
    harness.query.fail(RuntimeError("again"))

    assert harness.poll() == "failed"
    assert harness.poll(1000) == "failed"
    assert harness.run.status.restarts == 6


def test_a_final_failure_is_not_restarted(harness: Harness) -> None:
    harness.poll()
    harness.query.fail(
        RuntimeError("x\nTraceback (most recent call last):\na.b.DataLossError: offsets are gone\n")
    )

    assert harness.poll() == "failed"
    assert harness.run.status.error == "offsets are gone"


def test_a_start_that_fails_counts_as_a_failure(harness: Harness) -> None:
    harness.refuse = ConnectionRefusedError("the JVM is gone")
    assert harness.poll() == "restarting"
    harness.refuse = None

    assert harness.poll(2) == "running"


def test_a_query_whose_report_is_not_understood_is_not_left_running(harness: Harness) -> None:
    harness.poll()
    harness.query.reports.append({"batchId": 0, "timestamp": "yesterday"})

    assert harness.poll() == "restarting"
    assert harness.query.stopped


def test_a_status_that_cannot_be_written_is_no_reason_to_end(harness: Harness) -> None:
    shutil.rmtree(harness.state.path)

    assert harness.poll() == "running"
    harness.query.finish_batch(0)
    assert harness.poll() == "running"
    assert harness.told[-1].progress is not None


def test_a_batch_that_does_not_let_itself_be_stopped_is_left_to_the_end_of_spark(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop() -> None:
        raise TimeoutError("the batch goes on")

    harness.poll()
    monkeypatch.setattr(harness.query, "stop", stop)
    harness.run.stop(now=True)

    assert harness.poll() == "stopped"
    assert harness.run.status.error == "TimeoutError: the batch goes on"
    assert SETTINGS["spark.sql.streaming.stopTimeout"] == "30s", "else Spark waits for ever"


def test_a_stop_lets_the_running_batch_finish(harness: Harness) -> None:
    harness.poll()
    harness.query.finish_batch(0)
    harness.poll()
    harness.state.ask_to_stop("copy")
    assert harness.poll() == "running"
    assert harness.poll(5) == "running"
    harness.query.finish_batch(1)

    assert harness.poll() == "stopped"
    assert harness.query.stopped
    assert harness.told[-1].progress is not None
    assert harness.told[-1].progress["batch_id"] == 1


@pytest.mark.parametrize("how", ["idle", "late", "now"])
def test_a_stop_waits_only_for_a_running_batch_and_not_forever(harness: Harness, how: str) -> None:
    harness.poll()
    harness.run.stop()
    if how == "idle":
        harness.query.active = False
    elif how == "late":
        assert harness.poll(29) == "running"
        harness.now += 2
    else:
        harness.run.stop(now=True)

    assert harness.poll() == "stopped"
    assert harness.query.stopped


def test_a_stop_ends_a_wait(harness: Harness) -> None:
    harness.poll()
    harness.query.fail(RuntimeError("away"))
    harness.poll()
    harness.run.stop()

    assert harness.poll() == "stopped"
    assert harness.state.status("copy") == harness.run.status


def test_a_pipeline_with_available_now_ends_as_finished(tmp_path: Path) -> None:
    harness = Harness(tmp_path, trigger="available_now")
    harness.poll()
    harness.query.finish_batch(0)
    harness.query.isActive = False

    assert harness.poll() == "finished"
    assert harness.run.status.progress is not None
    harness.state.claim("copy").release()


def test_a_pipeline_that_fails_before_its_start_reports_the_reason(harness: Harness) -> None:
    harness.run.give_up("the frame has no column key")

    found = harness.state.status("copy")
    assert found is not None
    assert (found.state, found.error) == ("failed", "the frame has no column key")
    assert harness.poll() == "failed"
    assert not harness.queries
