"""When logs are synced whose records are acknowledged before (durability `interval:<ms>` and `os`).

Logs with the same interval are due at the same moments, the multiples of it, so that one group commit serves them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from headrace.config.topic import TopicConfig
from headrace.core.deadlines import Deadlines
from headrace.core.log import PartitionLog
from headrace.ports import Journal

OS_INTERVAL_MS: Final = 30_000
"""With `os`: how often logs are synced all the same, so that a start after a crash has little to check."""
RETRY_INTERVAL_MS: Final = 200
"""When a sync is tried again that could not open a file."""
_NAMED: Final = 20
"""How many topics a warning names."""


class BackgroundSync:
    """The logs that have been written to since their last sync, and when the next one is due."""

    __slots__ = ("_deadlines", "_unhurried", "waiting")

    def __init__(self) -> None:
        self._deadlines: Deadlines[PartitionLog] = Deadlines()
        self._unhurried: set[PartitionLog] = set()
        """The dirty logs of topics with durability `os`."""
        self.waiting: dict[PartitionLog, None] | None = None
        """The logs with durability `os` that are due, and have to be written out before their sync (`write_out.py`).
        None if the shell does not write out."""

    def written(self, log: PartitionLog, interval_ms: int, now_ms: int) -> None:
        """Note that a log has to be synced at the end of the interval that `now_ms` lies in."""
        if log not in self._deadlines:
            self._deadlines.set(log, (now_ms // interval_ms + 1) * interval_ms)
            if interval_ms == OS_INTERVAL_MS:
                self._unhurried.add(log)

    def again(self, log: PartitionLog, now_ms: int) -> None:
        """Have a log synced soon whose sync has failed for a passing reason."""
        self.forget(log)
        self._deadlines.set(log, now_ms + RETRY_INTERVAL_MS)

    def forget(self, log: PartitionLog) -> None:
        """Drop a log that was deleted, or is synced otherwise."""
        self._deadlines.cancel(log)
        self._unhurried.discard(log)
        if self.waiting:
            self.waiting.pop(log, None)

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next log is due."""
        return self._deadlines.next_ms

    def due(self, now_ms: int) -> list[PartitionLog]:
        """Remove and return the logs that are due, but for those that are written out before."""
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
        """Whether it is one of the broker's own topics."""

    @property
    def name(self) -> str:
        """The name of the topic."""

    @property
    def config(self) -> TopicConfig:
        """The effective configuration of the topic."""


def warn_of_losses(default: TopicConfig, topics: Iterable[_Configured], journal: Journal) -> None:
    """Say in the journal where an acknowledgement is no promise about power cuts.

    Args:
        default: The configuration of a topic without settings of its own.
        topics: The topics there are.
        journal: Where to say it.
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
