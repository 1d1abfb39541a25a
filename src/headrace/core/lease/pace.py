"""When something that is repeated is due."""

from __future__ import annotations


class Pace:
    """One request after another, never two at a time."""

    __slots__ = ("_is_wanted", "due_ms")

    def __init__(self) -> None:
        self.due_ms: int | None = None
        """The time of the next request, in milliseconds; None before the first one and while one is in flight."""
        self._is_wanted = False

    def starts(self, now_ms: int) -> bool:
        """Return whether a request is due. If so, it counts as in flight from now on."""
        if self.due_ms is None or now_ms < self.due_ms:
            return False
        self.due_ms = None
        return True

    def hurry(self, now_ms: int) -> None:
        """Make the next request due now. If one is in flight, wait for its answer."""
        if self.due_ms is not None:
            self.due_ms = min(self.due_ms, now_ms)

    def want(self, now_ms: int) -> None:
        """Have one that begins from now on, as soon as may be."""
        if self.due_ms is None:
            self._is_wanted = True
        else:
            self.due_ms = min(self.due_ms, now_ms)

    def wait(self, now_ms: int, wait_ms: int) -> None:
        """Take that one is over, and when the next one is due."""
        self.due_ms = now_ms if self._is_wanted else now_ms + wait_ms
        self._is_wanted = False
