"""The pause before elections when most brokers are gone at once.

If the metadata store was frozen, the sessions of all brokers end in the same moment. The brokers register again at
once, and then each leads its partitions again. Without a pause, the first broker to register would lead everything.
The pause ends when all brokers are back: the last one leads its partitions again, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

DAMPING_MS: Final = 5_000
"""The longest pause in milliseconds, counted from the moment when the first of the brokers was gone."""


class Damping:
    """Decides whether the controller has to wait for brokers that are gone."""

    __slots__ = ("_gone_at_ms", "_live", "_until_ms")

    def __init__(self, expected: Iterable[int] = ()) -> None:
        """Expect brokers to be live, such as all that have ever registered."""
        self._live = frozenset(expected)
        self._gone_at_ms: dict[int, int] = {}
        """The time at which each broker was first found to be gone, for the longest pause."""
        self._until_ms: int | None = None
        """The end of the present pause; None if there is none."""

    def waits_until_ms(self, live: Collection[int], now_ms: int) -> int | None:
        """Return the time until which no leader is elected, because more than half of the brokers were gone at once.

        Args:
            live: The live brokers.
            now_ms: The time.

        Returns:
            None if leaders may be elected now.
        """
        for broker in self._live.difference(live):
            self._gone_at_ms.setdefault(broker, now_ms)
        self._gone_at_ms = {
            broker: at_ms
            for broker, at_ms in self._gone_at_ms.items()
            if broker not in live and now_ms < at_ms + DAMPING_MS
        }
        self._live = frozenset(live)
        gone = self._gone_at_ms
        if 2 * len(gone) > len(gone) + len(self._live):
            self._until_ms = min(gone.values()) + DAMPING_MS
        elif not gone or (self._until_ms is not None and now_ms >= self._until_ms):
            self._until_ms = None
        return self._until_ms
