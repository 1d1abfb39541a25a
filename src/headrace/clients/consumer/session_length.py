"""The length of sessions under the protocol `consumer`: the coordinator decides, and heartbeats do not contain it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.background import Background
from headrace.clients.engine import Engine
from headrace.clients.flows.group_session import session_timeout

DEFAULT_SESSION_MS: Final = 45_000
"""Kafka's default for `group.consumer.session.timeout.ms`."""
SESSION_INTERVALS: Final = 9
"""The length of Kafka's default session in heartbeat intervals, as an estimate if the length cannot be looked up."""
CHECK_MS: Final = 60_000
"""Milliseconds between two look-ups; an administrator may change the length at any time."""


class SessionLength:
    """Looks up `consumer.session.timeout.ms` of a group."""

    def __init__(
        self, engine: Engine, config: ConsumerConfig, on_change: Callable[[], object]
    ) -> None:
        """Prepare the look-up.

        Args:
            engine: The consumer's engine.
            config: The consumer's configuration.
            on_change: Called when the length is known or has changed.
        """
        self._engine = engine
        self._config = config
        self._on_change = on_change
        self._asking = Background(engine)
        self._asked_ms: int | None = None
        self._known_ms: int | None = None

    def within(self, interval_ms: int) -> int:
        """Return the length in milliseconds, or a low estimate from the interval between heartbeats."""
        if self._known_ms is not None:
            return self._known_ms
        return min(DEFAULT_SESSION_MS, SESSION_INTERVALS * interval_ms)

    def look(self) -> None:
        """Request the length from a broker, unless that was done less than a minute ago."""
        now_ms = self._engine.now_ms
        if self._asking.running:
            return
        if self._asked_ms is None or now_ms >= self._asked_ms + CHECK_MS:
            self._asked_ms = now_ms
            assert self._config.group_id is not None, "a member has a group"
            flow = session_timeout(self._config.group_id)
            self._asking.start(flow, self._found, self._config.request_timeout_ms)

    def stop(self) -> None:
        """Stop looking up the length."""
        self._asking.stop()

    def _found(self, outcome: object) -> None:
        if isinstance(outcome, int) and outcome != self._known_ms:
            self._known_ms = outcome
            self._on_change()
