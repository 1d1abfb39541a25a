"""When something that is repeated is due."""

from __future__ import annotations


class Pace:
    """One request after another, never two at a time."""

    __slots__ = ("_is_wanted", "due_ms")

    def __init__(self) -> None:
        self.due_ms: int | None = None
        """None before the first one, and while one is under way."""
        self._is_wanted = False

    def starts(self, now_ms: int) -> bool:
        """Whether one is due; then it is under way."""
        if self.due_ms is None or now_ms < self.due_ms:
            return False
        self.due_ms = None
        return True

    def hurry(self, now_ms: int) -> None:
        """Have the next one now; if one is under way, its answer is waited for."""
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
