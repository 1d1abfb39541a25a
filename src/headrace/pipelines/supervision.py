"""A pipeline under supervision: its query is started, watched, started again, and ended."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Protocol

from headrace.pipelines.backoff import RestartBackoff, is_final, summary
from headrace.pipelines.plan import Plan
from headrace.pipelines.progress import LagClock, read_progress
from headrace.pipelines.state import State, Status, StatusClaim

DRAIN_S: Final = 60.0
"""How long a stop waits for the batch under way."""


class Query(Protocol):
    """What is used of Spark's `StreamingQuery`."""

    @property
    def isActive(self) -> bool:
        """Whether it has not ended."""

    @property
    def lastProgress(self) -> Any:
        """The report of the last batch, or of a time without one; None before the first."""

    @property
    def recentProgress(self) -> Any:
        """The last reports, the latest at the end."""

    @property
    def status(self) -> Any:
        """What it does at this moment."""

    def exception(self) -> Exception | None:
        """Return why it ended."""

    def stop(self) -> None:
        """End it, in the midst of a batch if one is under way."""


Watcher = Callable[[Status], None]
"""Is told of every change of state and every batch."""


@dataclass
class Supervised:
    """One pipeline of this process; `poll` moves it on and never waits for Spark's batches.

    A finished batch begins the count of failures anew: only failures in a row lead to longer waits and to giving up.
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
        """Whether it is done, for good or bad."""
        return self.status.ended

    def stop(self, *, now: bool = False) -> None:
        """Let the batch under way finish, then end; `now` does not wait for it."""
        if self._stop_by_s is None or now:
            self._stop_by_s = self.clock() + (0 if now else self.drain_s)
            self._stop_seen = self.status.progress

    def examined(self, plan: Plan) -> None:
        """Take the plan with what Spark knows of it."""
        self.plan = plan
        self.status = replace(self.status, plan=plan.as_dict())

    def give_up(self, reason: str) -> None:
        """End it before it has begun; whoever decides so tells it."""
        self.status = replace(self.status, state="failed", updated_ms=self._now_ms(), error=reason)
        self.claim.write(self.status)
        self.claim.release()

    def poll(self) -> None:
        """Do what is to be done at this moment."""
        if self.ended:
            return
        if self._stop_by_s is None and self.claim.stop_wanted:
            self.stop()
        try:
            if self._query is None:
                self._poll_waiting()
            else:
                self._poll_running(self._query)
        except Exception as error:  # noqa: BLE001 - of Spark, of the function, of a JVM that is gone: all are failures
            self._failed(error)

    def _poll_waiting(self) -> None:
        if self._stop_by_s is not None:
            self._end("stopped")
        elif self.clock() >= self._due_s:
            self._query = self.start(self.plan)
            self._change("running")

    def _poll_running(self, query: Query) -> None:
        active = query.isActive  # before the progress is read, so that the last batch's is
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
        """Return whether the batch that was under way when the stop was asked for has finished, or had its time."""
        assert self._stop_by_s is not None
        return (
            self.status.progress is not self._stop_seen
            or not query.status["isTriggerActive"]
            or self.clock() >= self._stop_by_s
        )

    def _collect(self, query: Query) -> None:
        """Report the batches since the last time."""
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
            with contextlib.suppress(Exception):  # it has ended, or Spark has
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
        with contextlib.suppress(OSError):  # a full disk: it runs on, and looks old to others
            self.claim.write(self.status)
        self.watch(self.status)

    def _now_ms(self) -> int:
        return int(self.clock() * 1000)


def _plain(report: Any) -> Any:
    """Return a report as its JSON says it; PySpark makes objects of some of its parts."""
    return json.loads(report.json) if hasattr(report, "json") else report
