"""The times at which a repeated request is due."""

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
        """Make the next request due now. If one is in flight, wait for its response."""
        if self.due_ms is not None:
            self.due_ms = min(self.due_ms, now_ms)

    def want(self, now_ms: int) -> None:
        """Have a request that starts at `now_ms` or later, as soon as possible. A request in flight does not count."""
        if self.due_ms is None:
            self._is_wanted = True
        else:
            self.due_ms = min(self.due_ms, now_ms)

    def wait(self, now_ms: int, wait_ms: int) -> None:
        """Process the end of a request. The next one is due after `wait_ms`; at once if `want` was called meanwhile."""
        self.due_ms = now_ms if self._is_wanted else now_ms + wait_ms
        self._is_wanted = False
