"""`App.status()`: the values for a health check and for metrics."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import pytest

import headrace
from headrace.errors import WorkerFailedError
from headrace.workers import service
from headrace.workers.trial import Trial


def until(condition: Callable[[], bool]) -> None:
    wait = threading.Event().wait
    assert any(condition() or wait(0.01) for _ in range(1_000))


def test_the_lag_counts_unfinished_records() -> None:
    app = headrace.App(group="billing")
    begun, go_on = threading.Event(), threading.Event()

    @app.worker("orders", ordering="none", concurrency=1)
    def bill(order: int) -> None:
        begun.set()
        go_on.wait(10)

    assert app.status()["bill"].state == "stopped"
    with app.test() as trial:
        for number in range(3):
            trial.produce("orders", number)
        begun.wait(10)
        until(lambda: app.status()["bill"].lag_records == 3)
        status = app.status()["bill"]
        assert (status.state, status.healthy, status.group) == ("running", True, "billing")
        assert (status.counters.in_flight, status.lag_ms) == (1, None)
        assert json.loads(json.dumps(status.as_dict()))["partitions"] == [
            {
                "topic": "orders",
                "partition": 0,
                "shard": None,
                "lag_records": 3,
                "lag_ms": None,
                "error": None,
            }
        ]
        go_on.set()
        trial.wait_idle()
        assert app.status()["bill"].lag_records == 0
    last = app.status()["bill"]
    assert (last.state, last.counters.handled, last.partitions) == ("stopped", 3, [])


def test_the_status_of_a_failed_worker_has_the_reason() -> None:
    app = headrace.App(group="billing")

    @app.worker("orders", retry=1)
    async def bill(order: int) -> None:
        raise ValueError("poison")

    def run(trial: Trial) -> None:
        trial.produce("orders", 1)
        trial.wait_idle()

    with app.test() as trial, pytest.raises(WorkerFailedError, match="poison"):
        run(trial)
    status = app.status()["bill"]
    assert (status.state, status.healthy) == ("failed", False)
    assert "poison" in (status.error or "")


def test_the_status_reports_a_loop_that_a_handler_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "STATUS_TIMEOUT_S", 0.05)
    app = headrace.App(group="billing")
    begun, go_on = threading.Event(), threading.Event()

    @app.worker("orders")
    async def bill(order: int) -> None:
        begun.set()
        go_on.wait(10)

    with app.test() as trial:
        trial.produce("orders", 1)
        begun.wait(10)
        with pytest.raises(TimeoutError, match="does a handler block it"):
            app.status()
        go_on.set()
