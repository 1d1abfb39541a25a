"""Warnings about topics that a consumer is subscribed to and that do not exist, and about their creation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from headrace.clients.consumer.background import Background
from headrace.clients.engine import Engine, Timer
from headrace.clients.flows import metadata
from headrace.errors import ErrorCode

PATIENCE_MS: Final = 2_000
"""Milliseconds for which a topic may be missing before a warning; it may be about to be created."""
LOOK_TIMEOUT_MS: Final = 10_000


class WantedTopics(Protocol):
    """The subscription of a consumer."""

    @property
    def local_pattern(self) -> str | None:
        """The pattern that the client applies. None if topics are named, or if the coordinator applies the pattern."""

    def relevant(self) -> frozenset[str]:
        """Return the topics of the subscription and of assigned partitions."""


class MissingTopics:
    """The topics of one subscription that do not exist."""

    def __init__(
        self,
        engine: Engine,
        topics: WantedTopics,
        warn: Callable[[str], object],
    ) -> None:
        """Prepare the warnings of a consumer.

        Args:
            engine: The consumer's engine.
            topics: The subscription of the consumer.
            warn: Logs a warning.
        """
        self._engine = engine
        self._topics = topics
        self._warn = warn
        self._since_ms: int | None = None
        self._timer: Timer | None = None
        self._warned: dict[str, str] = {}
        """The warnings that were logged, by the name of what is missing."""
        self._asking = Background(engine)

    @property
    def text(self) -> str | None:
        """The warnings about topics that are still missing, joined; None if there are none."""
        return "; ".join(self._warned.values()) or None

    def look(self) -> None:
        """Compare the subscription with fresh metadata."""
        missing, wanted = self._missing(), self._wanted()
        for name in self._warned.keys() - missing:
            del self._warned[name]
            if name in wanted:  # the program may have subscribed to other topics
                self._warn(f"{name} exists now, and the consumer reads it")
        if missing <= self._warned.keys():
            self._stop_waiting()
        elif self._since_ms is None:
            self._since_ms = self._engine.now_ms
            self._timer = self._engine.at(self._since_ms + PATIENCE_MS, self._look_for_names)

    def stop(self) -> None:
        """Stop looking, and forget all warnings."""
        self._asking.stop()
        self._warned.clear()
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        self._since_ms = None
        if self._timer is not None:
            self._timer.cancel()

    def _wanted(self) -> set[str]:
        pattern = self._topics.local_pattern
        names = set(map(_of_name, self._topics.relevant()))
        return names if pattern is None else {_of_pattern(pattern), *names}

    def _missing(self) -> set[str]:
        pattern, wanted = self._topics.local_pattern, self._topics.relevant()
        if pattern is not None and not wanted:
            return {_of_pattern(pattern)}
        known = self._engine.state.metadata.topics
        return {
            _of_name(name)
            for name in wanted
            if name not in known or known[name].error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        }

    def _look_for_names(self) -> None:
        """Request the names of all topics, to suggest a similar one."""
        if self._since_ms is None or self._asking.running:
            return
        flow = metadata.refresh(self._engine.state, None)
        self._asking.start(flow, lambda _: self._report(), LOOK_TIMEOUT_MS)

    def _report(self) -> None:
        self._since_ms = None
        wanted = {_of_name(name): name for name in self._topics.relevant()}
        for what in sorted(self._missing() - self._warned.keys()):
            question = metadata.did_you_mean(self._engine.state, wanted.get(what, ""))
            text = f"there is no {what}; the consumer waits for it{question}"
            self._warned[what] = text
            self._warn(text)
        self._engine.notify()


def _of_name(name: str) -> str:
    return f"topic {name!r}"


def _of_pattern(pattern: str) -> str:
    return f"topic that matches {pattern!r}"
