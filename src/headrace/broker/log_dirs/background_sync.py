"""Background syncs of logs whose records are acknowledged before their sync (durability `interval:<ms>` and `os`).

Logs with the same interval are due at the same times, the multiples of the interval. So one group commit serves them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from headrace.config.topic import TopicConfig
from headrace.core.deadlines import Deadlines
from headrace.core.log import PartitionLog
from headrace.ports import Journal

OS_INTERVAL_MS: Final = 30_000
"""The time between two syncs of logs with durability `os`, in milliseconds. It limits the work of a recovery."""
RETRY_INTERVAL_MS: Final = 200
"""The time until a sync that could not open a file is tried again, in milliseconds."""
_NAMED: Final = 20
"""The greatest number of topics that a warning names."""


class BackgroundSync:
    """The logs that were written to since their last sync, and the time when the next one is due."""

    __slots__ = ("_deadlines", "_unhurried", "waiting")

    def __init__(self) -> None:
        self._deadlines: Deadlines[PartitionLog] = Deadlines()
        self._unhurried: set[PartitionLog] = set()
        """The dirty logs of topics with durability `os`."""
        self.waiting: dict[PartitionLog, None] | None = None
        """The due logs with durability `os`, which are written out before their sync (`write_out.py`); None if the
        shell does not write out."""

    def written(self, log: PartitionLog, interval_ms: int, now_ms: int) -> None:
        """Register that a log has to be synced at the end of the interval that contains `now_ms`."""
        if log not in self._deadlines:
            self._deadlines.set(log, (now_ms // interval_ms + 1) * interval_ms)
            if interval_ms == OS_INTERVAL_MS:
                self._unhurried.add(log)

    def again(self, log: PartitionLog, now_ms: int) -> None:
        """Sync a log soon, because its sync has failed with a temporary error."""
        self.forget(log)
        self._deadlines.set(log, now_ms + RETRY_INTERVAL_MS)

    def forget(self, log: PartitionLog) -> None:
        """Drop a log that was deleted, or is synced by other means."""
        self._deadlines.cancel(log)
        self._unhurried.discard(log)
        if self.waiting:
            self.waiting.pop(log, None)

    @property
    def next_deadline_ms(self) -> int | None:
        """The time when the next log is due; None if no log is dirty."""
        return self._deadlines.next_ms

    def due(self, now_ms: int) -> list[PartitionLog]:
        """Remove and return the logs that are due, without those that have to be written out first."""
        due = self._deadlines.expire(now_ms)
        unhurried = self._unhurried.intersection(due)
        self._unhurried -= unhurried
        if self.waiting is None:
            return due
        self.waiting.update(dict.fromkeys(unhurried))
        return [log for log in due if log not in unhurried]


class _Configured(Protocol):
    @property
    def is_internal(self) -> bool:
        """Whether the topic is internal."""

    @property
    def name(self) -> str:
        """The name of the topic."""

    @property
    def config(self) -> TopicConfig:
        """The effective configuration of the topic."""


def warn_of_losses(default: TopicConfig, topics: Iterable[_Configured], journal: Journal) -> None:
    """Log where an acknowledgement promises nothing about power failures.

    Args:
        default: The configuration of a topic without settings of its own.
        topics: All topics.
        journal: Receives the events.
    """
    if (window := _window(default)) is not None:
        journal.warning(
            "durability_reduced",
            durability=default.headrace_durability,
            meaning=f"a power cut may lose acknowledged records {window}",
        )
    weaker = [
        topic.name
        for topic in topics
        if not topic.is_internal
        and _window(topic.config) is not None
        and topic.config.sync_interval_ms != default.sync_interval_ms
    ]
    if weaker:
        journal.warning(
            "durability_reduced_for_topics",
            topics=",".join(weaker[:_NAMED]),
            count=len(weaker),
            meaning="a power cut may lose acknowledged records",
        )


def _window(config: TopicConfig) -> str | None:
    interval_ms = config.sync_interval_ms
    if interval_ms == 0:
        return None
    if interval_ms is None:
        return "that the operating system has not written yet"
    return f"of the last {interval_ms} ms and of the sync in flight"
