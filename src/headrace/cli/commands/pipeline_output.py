"""Output of running pipelines: a table that is redrawn, lines at intervals, or JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.output.printing import json_text, print_facts, print_table, say
from headrace.cli.output.terminal import printable, unshielded

if TYPE_CHECKING:
    from headrace.pipelines.plan import Plan
    from headrace.pipelines.running.runner import Reporter
    from headrace.pipelines.status.state import Status

REDRAW_S: Final = 1.0
NO_WRAP: Final = "\x1b[?7l"
WRAP: Final = "\x1b[?7h"
COLUMNS: Final = (
    "PIPELINE",
    "STATE",
    "BATCH",
    "IN/S",
    "DONE/S",
    "LAG",
    "LAG S",
    "STATE ROWS",
    "STATE MB",
    "BATCH MS",
)


def reporter(*, as_json: bool, interval_s: float) -> Reporter:
    """Return the reporter: JSON lines for programs, a table on a terminal, otherwise lines at intervals."""
    if as_json:
        return JsonLines()
    return Screen() if sys.stderr.isatty() else QuietLines(interval_s)


class JsonLines:
    """A JSON line on standard output for every change of state and every batch."""

    def changed(self, status: Status) -> None:
        """Write the status as a JSON line."""
        event = {name: value for name, value in asdict(status).items() if name != "plan"}
        click.echo(json_text(event))

    def tick(self, statuses: Sequence[Status]) -> None:
        """Do nothing: lines are written only for changes."""


class QuietLines:
    """Output for logs: a line for every change of state, and a line per interval for each pipeline."""

    def __init__(
        self,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
        write: Callable[[str], None] = say,
    ) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._write = write
        self._due_s = clock() + interval_s
        self._states: dict[str, tuple[str, int]] = {}

    def changed(self, status: Status) -> None:
        """Write a line if the state has changed."""
        if self._states.get(status.name) == (status.state, status.restarts):
            return
        self._states[status.name] = (status.state, status.restarts)
        self._write(state_line(status))

    def tick(self, statuses: Sequence[Status]) -> None:
        """Write a line for each pipeline if the interval has passed."""
        if self._clock() < self._due_s:
            return
        self._due_s = self._clock() + self._interval_s
        for status in statuses:
            if status.progress is not None and not status.ended:
                self._write(progress_line(status.name, status.progress))


class Screen:
    """A table that is redrawn in place. Lines for changes of state scroll above it."""

    def __init__(self) -> None:
        self._drawn = 0
        self._due_s = 0.0
        self._states: dict[str, tuple[str, int]] = {}

    def changed(self, status: Status) -> None:
        """Write a line above the table if the state has changed."""
        if self._states.get(status.name) == (status.state, status.restarts):
            return
        self._states[status.name] = (status.state, status.restarts)
        self._wipe()
        say(state_line(status))
        self._due_s = 0.0

    def tick(self, statuses: Sequence[Status]) -> None:
        """Redraw the table, once per second."""
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + REDRAW_S
        self._wipe()
        terminal = unshielded(sys.stderr)
        terminal.write(NO_WRAP)  # a long line is cut, so that it stays one line
        print_table(COLUMNS, [row(each) for each in statuses], to_stderr=True)
        terminal.write(WRAP)
        self._drawn = len(statuses) + 1

    def _wipe(self) -> None:
        if self._drawn:
            unshielded(sys.stderr).write(f"\x1b[{self._drawn}F\x1b[J")
        self._drawn = 0


def state_line(status: Status) -> str:
    """Return a line with the state of a pipeline."""
    why = f": {status.error}" if status.error and status.state in {"restarting", "failed"} else ""
    return f"{status.name}: {status.state}{why}"


def progress_line(name: str, progress: Mapping[str, Any]) -> str:
    """Return a line about the last batch."""
    lag = "-" if progress["lag_records"] is None else f"{progress['lag_records']} records"
    seconds = "" if progress["lag_seconds"] is None else f", {progress['lag_seconds']:.1f} s"
    return (
        f"{name}: batch {progress['batch_id']}, {progress['input_rows']} records in "
        f"{progress['duration_ms']} ms, in {progress['input_rate']:g}/s, done "
        f"{progress['processed_rate']:g}/s, lag {lag}{seconds}, state {progress['state_rows']} rows, "
        f"{_megabytes(progress['state_bytes'])} MB"
    )


def row(status: Status) -> tuple[object, ...]:
    """Return a status as a row of the columns `COLUMNS`."""
    progress = status.progress
    if progress is None:
        return (status.name, status.state, *[None] * (len(COLUMNS) - 2))
    seconds = progress["lag_seconds"]
    return (
        status.name,
        status.state,
        progress["batch_id"],
        round(progress["input_rate"]),
        round(progress["processed_rate"]),
        progress["lag_records"],
        None if seconds is None else round(seconds),
        progress["state_rows"],
        _megabytes(progress["state_bytes"]),
        progress["duration_ms"],
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f}"


def print_status(status: Status) -> None:
    """Write the full status of a running or ended pipeline."""
    facts: dict[str, object] = {
        "pipeline": status.name,
        "state": status.state,
        "pid": status.pid,
        "started": _time(status.started_ms),
        "updated": _time(status.updated_ms),
        "restarts": status.restarts,
        "error": status.error or "-",
    }
    plan = dict(status.plan)
    for name in ("file", "sources", "sink", "trigger", "output_mode", "checkpoint", "bootstrap"):
        if name in plan:
            value = plan[name]
            facts[name] = value if isinstance(value, str) else json.dumps(value)
    facts |= {name.replace("_", " "): value for name, value in (status.progress or {}).items()}
    print_facts(facts, max(map(len, facts)) + 2)


def _time(at_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at_ms / 1000))


def print_plan(plan: Plan) -> None:
    """Write a plan for people."""
    click.echo(printable(f"{plan.name}  ({plan.pipeline.where})"))
    facts = {f"source {name}": str(source) for name, source in plan.sources.items()}
    facts |= {
        "sink": f"{plan.sink}, {plan.pipeline.output_mode} rows",
        "trigger": str(plan.trigger),
        "checkpoint": plan.checkpoint,
    }
    if plan.columns is not None:
        facts["columns"] = ", ".join(f"{name} {kind}" for name, kind in plan.columns.items())
    if plan.creates:
        facts["creates"] = ", ".join(f"topic {name}" for name in plan.creates)
    print_facts({f"  {name}": value for name, value in facts.items()}, max(map(len, facts)) + 4)
