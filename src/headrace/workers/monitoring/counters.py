"""The counters of a worker, and the events that its hooks receive."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from headrace.clients.consumer.records import ConsumerRecord
from headrace.workers.failure.tracebacks import Failures, trimmed
from headrace.workers.handler.results import ready

_log: Final = logging.getLogger("headrace.workers")

EventKind = Literal["handled", "failed", "retried", "dead_lettered", "skipped"]


@dataclass(slots=True)
class Counters:
    """Numbers of records. `in_flight` and `overlaps` are numbers of handler calls."""

    handled: int = 0
    """Finished without an error."""
    failed: int = 0
    """Records of attempts that failed."""
    retried: int = 0
    """Records of failed attempts that are followed by another attempt."""
    dead_lettered: int = 0
    """Records that were written to the dead letters."""
    skipped: int = 0
    """Finished without a result: by `Skip`, `on_failure="skip"`, or as duplicates."""
    duplicates: int = 0
    """Skipped records whose key, returned by `dedupe=`, was handled before."""
    passed_over: int = 0
    """Records that were not handled because their header `headrace-only-group` names another group."""
    in_flight: int = 0
    """Handler calls that run at this moment."""
    overlaps: int = 0
    """Handler calls that ran on after their partition was revoked. Another member may handle the same records."""

    def as_dict(self) -> dict[str, int]:
        """Return the numbers by name, for metrics."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Event:
    """An event that concerns records of a worker."""

    kind: EventKind
    worker: str
    records: list[ConsumerRecord]
    """The records; keys and values are bytes."""
    error: Exception | None
    attempt: int


Hook = Callable[[Event], Any]


class Tally:
    """Counts the outcomes of a worker's records and calls the hooks."""

    def __init__(self, worker: str, counters: Counters, hooks: Sequence[Hook]) -> None:
        self.counters = counters
        self._worker = worker
        self._hooks = hooks
        self._failures = Failures()

    def add(
        self, kind: EventKind, records: list[ConsumerRecord], attempt: int, error: Exception | None
    ) -> None:
        """Count records by their outcome, and call the hooks."""
        setattr(self.counters, kind, getattr(self.counters, kind) + len(records))
        for hook in self._hooks:
            try:
                ready("a hook", hook(Event(kind, self._worker, records, error, attempt)))
            except KeyboardInterrupt:
                raise
            except BaseException as raised:  # noqa: BLE001 - a fault of the program's metrics must not stop its work
                if self._failures.is_new(raised):
                    trace = (type(raised), raised, trimmed(raised))
                    _log.error("%s: a hook failed (logged once)", self._worker, exc_info=trace)
