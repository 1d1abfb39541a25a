"""Run pipelines in this process, from the check of their frames to the end of the last pipeline."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Final, Protocol

from headrace.errors import ConfigError
from headrace.pipelines import frames
from headrace.pipelines.checks import sinks as sink_checks
from headrace.pipelines.plan import Plan, PlanError, Problem
from headrace.pipelines.running.backoff import RestartBackoff, summary
from headrace.pipelines.running.session import Sessions
from headrace.pipelines.running.supervision import DRAIN_S, Query, Supervised
from headrace.pipelines.status.state import StateDirectory, Status

POLL_S: Final = 0.2


class Reporter(Protocol):
    """Receives the statuses of pipelines."""

    def changed(self, status: Status) -> None:
        """Report a pipeline that has changed its state or finished a batch."""

    def tick(self, statuses: Sequence[Status]) -> None:
        """Report the statuses of all pipelines; called at every poll."""


class Signals:
    """Counts SIGTERM and SIGINT: the first requests a clean stop, the second an immediate stop."""

    def __init__(self) -> None:
        self.count = 0
        self.came = threading.Event()

    @contextlib.contextmanager
    def caught(self) -> Iterator[Signals]:
        """Handle the signals inside the block."""
        before = {each: signal.signal(each, self._take) for each in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield self
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self.came.set()


@dataclass(frozen=True)
class Runner:
    """Runs the pipelines of plans in one session."""

    sessions: Sessions
    state: StateDirectory
    reporter: Reporter
    signals: Signals
    backoff: RestartBackoff = field(default_factory=RestartBackoff)
    drain_s: float = DRAIN_S

    def run(self, plans: Sequence[Plan]) -> bool:
        """Run until all pipelines have ended. Return whether all succeeded.

        Raises:
            PlanError: The frame of a pipeline does not fit its sink.
            ConfigError: Spark cannot start, or a pipeline is already running.
        """
        with contextlib.ExitStack() as cleanup:
            claims = []
            for plan in plans:
                claims.append(self.state.claim(plan.name))
                cleanup.callback(claims[-1].release)
            cleanup.callback(self.sessions.close)
            runs = [
                Supervised(
                    plan,
                    self._start,
                    claim,
                    self.reporter.changed,
                    self.backoff,
                    drain_s=self.drain_s,
                )
                for plan, claim in zip(plans, claims, strict=True)
            ]
            try:
                for each, plan in zip(runs, examine(self.sessions, plans), strict=True):
                    each.examined(plan)
            except BaseException as error:
                for each in runs:
                    each.give_up(_reason(error, each.plan))
                raise
            self._watch(runs)
        return all(each.status.state != "failed" for each in runs)

    def _start(self, plan: Plan) -> Query:
        query: Query = frames.start(self.sessions.get(), plan)
        return query

    def _watch(self, runs: Sequence[Supervised]) -> None:
        seen = 0
        while not all(each.ended for each in runs):
            if seen != self.signals.count:
                seen = self.signals.count
                for each in runs:
                    each.stop(now=seen > 1)
            for each in runs:
                each.poll()
            self.reporter.tick([each.status for each in runs])
            self.signals.came.wait(POLL_S)
            self.signals.came.clear()


def examine(sessions: Sessions, plans: Sequence[Plan]) -> list[Plan]:
    """Return the plans with the columns of their results. No stream is started.

    Raises:
        PlanError: A function fails, or its frame does not fit the sink.
        ConfigError: Spark cannot start, or has ended.
    """
    examined, problems = examine_frames(sessions, plans)
    if problems:
        raise PlanError(problems)
    return examined


def examine_frames(sessions: Sessions, plans: Sequence[Plan]) -> tuple[list[Plan], list[Problem]]:
    """Return the plans with the columns of their results, and the problems of these frames.

    Raises:
        ConfigError: Spark cannot start, or has ended.
    """
    problems: list[Problem] = []
    examined = []
    for plan in plans:
        spark = sessions.get()
        try:
            session = frames.session_of(spark, plan)
            frame = frames.result(session, plan)
            found = [
                *sink_checks.problems(session, frame, plan),
                *sink_checks.unsupported(frame, plan),
            ]
            examined.append(replace(plan, columns=dict(frame.dtypes)))
        except Exception as error:
            if not sessions.alive:
                raise ConfigError(f"Spark ended: {summary(str(error))}") from error
            found = [_what(error)]
        problems += [Problem(plan.pipeline, each) for each in found]
    return examined, problems


def _reason(error: BaseException, plan: Plan) -> str:
    """Return the reason for one pipeline when an error ends the whole run."""
    if not isinstance(error, PlanError):
        return summary(str(error))
    own = [each.message for each in error.problems if each.pipeline is plan.pipeline]
    return "; ".join(own) or "another pipeline of the same run has problems"


def _what(error: Exception) -> str:
    text = summary(str(error))
    if isinstance(error, ConfigError):
        return text
    return f"{type(error).__name__}: {text}"
