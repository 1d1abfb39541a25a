"""Writes and reads of keys that are repeated while that may help, as those of dead letters are."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from headrace.errors import HeadraceError
from headrace.workers.outcomes import UnkeptKeyError
from headrace.workers.refusals import is_over, remedy

T = TypeVar("T")

AGAIN_S: Final = 1.0
WARN_EVERY_MS: Final = 30_000

_log: Final = logging.getLogger("headrace.workers")


class Persistence:
    """Repeats what fails for a while. One object serves all calls of a worker, so that a fault is one warning."""

    def __init__(self, worker: str, place: str, now_ms: Callable[[], int]) -> None:
        """Prepare.

        Args:
            worker: The worker's name.
            place: Where keys are kept, for people: "the topic 'x'".
            now_ms: Returns the time.
        """
        self._worker = worker
        self._place = place
        self._now_ms = now_ms
        self._warn_ms = 0

    async def until_done(
        self, action: Callable[[], Awaitable[T]], *, handled: bool, what: str
    ) -> T:
        """Return what an action returns, once it does not fail.

        Args:
            action: What to do, again and again.
            handled: Whether the record was handled before.
            what: What cannot be done if it fails, for people: "its key cannot be written to".

        Raises:
            UnkeptKeyError: It failed for as long as a dead letter would be tried.
        """
        since_ms: int | None = None
        while True:
            try:
                return await action()
            except HeadraceError as error:
                now_ms = self._now_ms()
                since_ms = now_ms if since_ms is None else since_ms
                text = f"{what} {self._place}: {error}"
                if is_over(error, since_ms, now_ms):
                    raise UnkeptKeyError(
                        f"was {'' if handled else 'not '}handled, and {text}. {remedy(error)}, and start the worker "
                        "again"
                    ) from error
                if now_ms >= self._warn_ms:
                    self._warn_ms = now_ms + WARN_EVERY_MS
                    _log.warning("%s: a record waits: %s (it is tried again)", self._worker, text)
            await asyncio.sleep(AGAIN_S)
