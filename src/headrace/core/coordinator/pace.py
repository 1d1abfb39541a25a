"""The pace of work in steps: a pause after about each millisecond, by the estimated cost of what was done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MILLISECOND: Final = 1_000
"""One millisecond in microseconds."""


class Pace:
    """The work since the last pause.

    The caller adds to `done_us`, and yields from `pauses` when `done_us` has reached `MILLISECOND`.
    """

    __slots__ = ("done_us",)

    def __init__(self) -> None:
        self.done_us = 0
        """The estimated time of the work since the last pause, in microseconds."""

    def pauses(self) -> Iterator[None]:
        """Yield None for each millisecond. One piece of work that took several has as many pauses."""
        while self.done_us >= MILLISECOND:
            self.done_us -= MILLISECOND
            yield None
