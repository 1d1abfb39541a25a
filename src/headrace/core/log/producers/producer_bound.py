"""The bound of the producers that all logs of a broker keep together.

A client that may write to a topic can invent producer ids. When there are too many producers, the logs that keep the
most forget some of them. These are the logs for which ids were invented, not those with the producers of others.
"""

from __future__ import annotations

from typing import Final, Protocol

MAX_PRODUCERS: Final = 300_000
"""The largest number of producers that are kept, counted in each partition that they write to: some 450 bytes each."""
_PORTION: Final = 64
"""The part of the bound that is freed at a time is 1/64, so that many new producer ids cost little per append."""


class BoundedState(Protocol):
    """The producers of one log, as far as `ProducerBound` needs them."""

    def __len__(self) -> int:
        """Return the number of producers."""

    def forget_some(self) -> int:
        """Forget some of the producers, and return how many."""


class ProducerBound:
    """Counts the producers that several logs keep."""

    __slots__ = ("_next_at", "_states", "count", "limit")

    def __init__(self, limit: int = MAX_PRODUCERS) -> None:
        """Allow this number of producers."""
        self._states: dict[BoundedState, None] = {}
        self._next_at = limit
        """The count from which on producers have to be forgotten."""
        self.count = 0
        self.limit = limit

    def add(self, state: BoundedState) -> None:
        """Count the producers of one more log."""
        self._states[state] = None

    def remove(self, state: BoundedState) -> None:
        """Stop counting the producers of a log."""
        if state in self._states:
            del self._states[state]
            self.count -= len(state)

    def make_space(self) -> None:
        """Make logs forget producers if the bound is reached."""
        if self.count < self._next_at:
            return
        portion = max(1, self.limit // _PORTION)
        wanted = self.count - self.limit + portion
        for state in sorted(self._states, key=len, reverse=True):
            if wanted <= 0:
                break
            wanted -= state.forget_some()
        # Producers with an open transaction stay. Then the bound is exceeded for a time, and the next attempt is made
        # later.
        self._next_at = max(self.limit, self.count + portion)
