"""Detects a program that does not poll for `max.poll.interval.ms`."""

from __future__ import annotations

from collections.abc import Callable

from headrace.clients.engine import Engine, Timer


class PollWatch:
    """Watches the polls of one program."""

    def __init__(
        self,
        engine: Engine,
        limit_ms: int,
        *,
        is_member: Callable[[], bool],
        on_late: Callable[[], object],
    ) -> None:
        """Prepare to watch.

        Args:
            engine: The consumer's engine.
            limit_ms: Milliseconds that may pass between two polls.
            is_member: Returns whether the consumer is a member or joins.
            on_late: Called when the program has not polled for `limit_ms`.
        """
        self._engine = engine
        self._limit_ms = limit_ms
        self._is_member = is_member
        self._on_late = on_late
        self._polls = 0
        """The number of running calls in which the member can take part in rebalances."""
        self._polled_ms = engine.now_ms
        self._timer: Timer | None = None

    def began(self) -> None:
        """Note that the program is inside such a call."""
        self._polls += 1

    def ended(self) -> None:
        """Note that the program has left such a call."""
        self._polls -= 1
        self._polled_ms = self._engine.now_ms

    def start(self) -> None:
        """Start or continue to watch."""
        self._polled_ms = self._engine.now_ms
        if self._timer is None or not self._timer.pending:
            self._timer = self._engine.at(self._polled_ms + self._limit_ms, self._check)

    def stop(self) -> None:
        """Stop watching the program's polls."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        if not self._is_member():
            return  # the next join watches again
        if self._polls:
            self._polled_ms = self._engine.now_ms
        due_ms = self._polled_ms + self._limit_ms
        if self._engine.now_ms < due_ms:
            self._timer = self._engine.at(due_ms, self._check)
        else:
            self._on_late()
