"""What all logs of a broker share, so that the sum of what they take has a bound."""

from __future__ import annotations

from headrace.core.log.producers.aborted_history import AbortedCache
from headrace.core.log.producers.producer_bound import ProducerBound
from headrace.core.log.segments.open_segments import OpenSegments


class Shared:
    """The bounds that logs share."""

    __slots__ = ("aborted", "open_segments", "producers")

    def __init__(self, open_segments: OpenSegments | None = None) -> None:
        """Begin with nothing in use.

        Args:
            open_segments: Bounds how many segments are open; None for the default.
        """
        self.aborted = AbortedCache()
        """Bounds what memory holds of aborted transactions."""
        self.open_segments = OpenSegments() if open_segments is None else open_segments
        """Bounds how many segments are open."""
        self.producers = ProducerBound()
        """Bounds how many producers are remembered."""

    def of_memory(self) -> Shared:
        """Return the same for a directory in memory, whose files need no descriptors."""
        shared = Shared()
        shared.aborted, shared.producers = self.aborted, self.producers
        return shared
