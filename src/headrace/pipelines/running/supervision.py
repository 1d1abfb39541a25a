"""Supervise a pipeline: start its query, watch it, restart it, and end it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol

from headrace.pipelines.plan import Plan
from headrace.pipelines.running.backoff import RestartBackoff, is_final, summary
from headrace.pipelines.status.progress import LagClock, read_progress
from headrace.pipelines.status.state import State, Status, StatusClaim

DRAIN_S: Final = 60.0
"""Seconds for which a stop waits for the running batch."""


class Query(Protocol):
    """The used part of Spark's `StreamingQuery`."""

    @property
    def isActive(self) -> bool:
        """Whether the query has not ended."""

    @property
    def lastProgress(self) -> Any:
        """The last report, of a batch or of a time without records; None before the first."""

    @property
    def recentProgress(self) -> Any:
        """The last reports, the newest at the end."""

    @property
    def status(self) -> Any:
        """Spark's description of the query's present activity."""

    def exception(self) -> Exception | None:
        """Return the exception that ended the query; None if there is none."""

    def stop(self) -> None:
        """Stop the query at once, also in the middle of a batch."""


Watcher = Callable[[Status], None]
"""Called with the status after every change of state and every batch."""


@dataclass
class Supervised:
    """One supervised pipeline of this process. `poll` does the next step and never waits for a batch.

    A finished batch resets the count of failures. Only failures in a row lengthen the delays and end the pipeline.
    """

    plan: Plan
    start: Callable[[Plan], Query]
    claim: StatusClaim
    watch: Watcher
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    clock: Callable[[], float] = time.time
    drain_s: float = DRAIN_S
    status: Status = field(init=False)
    _query: Query | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _due_s: float = field(default=0.0, init=False)
    _stop_by_s: float | None = field(default=None, init=False)
    _stop_seen: Any = field(default=None, init=False)
    _batch: int = field(default=-1, init=False)
    _lag: LagClock = field(default_factory=LagClock, init=False)

    def __post_init__(self) -> None:
        now = self._now_ms()
        self.status = Status(self.plan.name, "starting", os.getpid(), now, now, self.plan.as_dict())
        self.claim.write(self.status)

    @property
    def ended(self) -> bool:
        """Whether the pipeline has ended, with or without success."""
        return self.status.ended

    def stop(self, *, now: bool = False) -> None:
        """End the pipeline after the running batch. With `now`, do not wait for the batch."""
        if self._stop_by_s is None or now:
            self._stop_by_s = self.clock() + (0 if now else self.drain_s)
            self._stop_seen = self.status.progress

    def examined(self, plan: Plan) -> None:
        """Replace the plan by the plan with the columns that Spark found."""
        self.plan = plan
        self.status = replace(self.status, plan=plan.as_dict())

    def give_up(self, reason: str) -> None:
        """Fail before the query has started. The caller reports the reason, so that the watcher is not called."""
        self.status = replace(self.status, state="failed", updated_ms=self._now_ms(), error=reason)
        self.claim.write(self.status)
        self.claim.release()

    def poll(self) -> None:
        """Do the next step: start, restart, collect progress, or end."""
        if self.ended:
            return
        if self._stop_by_s is None and self.claim.stop_wanted:
            self.stop()
        try:
            if self._query is None:
                self._poll_waiting()
            else:
                self._poll_running(self._query)
        except Exception as error:  # noqa: BLE001 - errors of Spark, its JVM and the function are failures
            self._failed(error)

    def _poll_waiting(self) -> None:
        if self._stop_by_s is not None:
            self._end("stopped")
        elif self.clock() >= self._due_s:
            self._query = self.start(self.plan)
            self._change("running")

    def _poll_running(self, query: Query) -> None:
        active = (
            query.isActive
        )  # read before the progress, so that the progress of the last batch is not missed
        self._collect(query)
        if not active:
            error = query.exception()
            if error is not None:
                self._failed(error)
            else:
                self._end("finished" if self.plan.trigger.every is None else "stopped")
        elif self._stop_by_s is not None and self._at_rest(query):
            self._query = None
            query.stop()
            self._collect(query)
            self._end("stopped")

    def _at_rest(self, query: Query) -> bool:
        """Return whether the batch that ran when the stop was requested has finished, or its time is over."""
        assert self._stop_by_s is not None
        return (
            self.status.progress is not self._stop_seen
            or not query.status["isTriggerActive"]
            or self.clock() >= self._stop_by_s
        )

    def _collect(self, query: Query) -> None:
        """Report the batches since the last call."""
        last = query.lastProgress
        if last is None or last["batchId"] < self._batch:
            return
        reports = [last]
        if last["batchId"] > self._batch + 1:
            reports = [each for each in query.recentProgress if each["batchId"] > self._batch]
        for report in reports:
            progress = asdict(read_progress(_plain(report), self._lag))
            if (
                self.status.progress is not None
                and progress["at_ms"] <= self.status.progress["at_ms"]
            ):
                continue
            self._batch = progress["batch_id"]
            self._failures = 0
            self._change(self.status.state, progress=progress)

    def _failed(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        self._failures += 1
        query, self._query = self._query, None
        if query is not None:
            with contextlib.suppress(Exception):  # the query or Spark may have ended already
                query.stop()
        wait_s = None if is_final(text) else self.backoff.wait_s(self._failures)
        if wait_s is None:
            self._end("failed", error=summary(text))
        elif self._stop_by_s is not None:
            self._end("stopped", error=summary(text))
        else:
            self._due_s = self.clock() + wait_s
            restarts = self.status.restarts + 1
            self._change("restarting", error=summary(text), restarts=restarts)

    def _end(self, state: State, **changes: Any) -> None:
        self._query = None
        self._change(state, **changes)
        self.claim.release()

    def _change(self, state: State, **changes: Any) -> None:
        self.status = replace(self.status, state=state, updated_ms=self._now_ms(), **changes)
        with contextlib.suppress(
            OSError
        ):  # on a full disk the pipeline runs on, and others see an old status
            self.claim.write(self.status)
        self.watch(self.status)

    def _now_ms(self) -> int:
        return int(self.clock() * 1000)


def _plain(report: Any) -> Any:
    """Return a report as parsed JSON. PySpark's object has other types for some parts."""
    return json.loads(report.json) if hasattr(report, "json") else report
