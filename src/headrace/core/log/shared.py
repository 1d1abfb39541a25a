"""The bounds that all logs of a broker share, so that the memory and descriptors of all logs together are bounded."""

from __future__ import annotations

from headrace.core.log.producers.aborted_history import AbortedCache
from headrace.core.log.producers.producer_bound import ProducerBound
from headrace.core.log.segments.open_segments import OpenSegments


class Shared:
    """The bounds that several logs share."""

    __slots__ = ("aborted", "open_segments", "producers")

    def __init__(self, open_segments: OpenSegments | None = None) -> None:
        """Begin with nothing in use.

        Args:
            open_segments: The bound of open segments; None for the default.
        """
        self.aborted = AbortedCache()
        """The bound of aborted transactions in memory."""
        self.open_segments = OpenSegments() if open_segments is None else open_segments
        """The bound of open segments."""
        self.producers = ProducerBound()
        """The bound of producers whose state is kept."""

    def of_memory(self) -> Shared:
        """Return the bounds for a directory in memory, whose files need no descriptors.

        Only the bound of open segments is a separate one.
        """
        shared = Shared()
        shared.aborted, shared.producers = self.aborted, self.producers
        return shared
