"""A bound of the producers that all logs of a broker remember together.

Whoever may write to a topic can invent producer ids. When there are too many, the logs that remember the most forget
some: those that the ids were invented in, rather than those with the producers of others.
"""

from __future__ import annotations

from typing import Final, Protocol

MAX_PRODUCERS: Final = 300_000
"""Producers that are remembered, each in every partition that it writes to: some 450 bytes each."""
_PORTION: Final = 64
"""The part of the bound that is made free at a time, so that a flood of producer ids costs little per append."""


class BoundedState(Protocol):
    """The producers of one log, as far as `ProducerBound` needs them."""

    def __len__(self) -> int:
        """Return the number of producers."""

    def forget_some(self) -> int:
        """Forget some of the producers, and return how many."""


class ProducerBound:
    """Counts the producers that several logs remember."""

    __slots__ = ("_next_at", "_states", "count", "limit")

    def __init__(self, limit: int = MAX_PRODUCERS) -> None:
        """Allow so many of them."""
        self._states: dict[BoundedState, None] = {}
        self._next_at = limit
        """At which count there is something to forget."""
        self.count = 0
        self.limit = limit

    def add(self, state: BoundedState) -> None:
        """Count the producers of one more log."""
        self._states[state] = None

    def remove(self, state: BoundedState) -> None:
        """Count the producers of a log no longer."""
        if state in self._states:
            del self._states[state]
            self.count -= len(state)

    def make_room(self) -> None:
        """Have logs forget producers if there is no room for one more."""
        if self.count < self._next_at:
            return
        portion = max(1, self.limit // _PORTION)
        wanted = self.count - self.limit + portion
        for state in sorted(self._states, key=len, reverse=True):
            if wanted <= 0:
                break
            wanted -= state.forget_some()
        # What has a transaction open stays: then there are more of them for a time, and it is tried again later.
        self._next_at = max(self.limit, self.count + portion)
