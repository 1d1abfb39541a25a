"""Repeats writes and reads of keys that fail, for as long as the writes of dead letters are repeated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from headrace.errors import HeadraceError
from headrace.workers.failure.outcomes import UnkeptKeyError
from headrace.workers.failure.refusals import is_over, remedy

T = TypeVar("T")

AGAIN_S: Final = 1.0
"""The pause before an action is repeated, in seconds."""
WARN_EVERY_MS: Final = 30_000
"""The least time in milliseconds between two warnings."""

_log: Final = logging.getLogger("headrace.workers")


class Persistence:
    """Repeats actions that fail. One object serves all calls of a worker, so that one fault logs one warning."""

    def __init__(self, worker: str, place: str, now_ms: Callable[[], int]) -> None:
        """Prepare.

        Args:
            worker: The worker's name.
            place: The name of the store in messages: "the topic 'x'".
            now_ms: Returns the time in milliseconds since 1970.
        """
        self._worker = worker
        self._place = place
        self._now_ms = now_ms
        self._warn_ms = 0

    async def until_done(
        self, action: Callable[[], Awaitable[T]], *, handled: bool, what: str
    ) -> T:
        """Call an action until it succeeds, and return its result.

        Args:
            action: The action.
            handled: Whether the record of the key was handled already.
            what: The beginning of the message about a failure: "its key cannot be written to".

        Raises:
            UnkeptKeyError: The action failed for too long.
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
                    _log.warning("%s: a record waits: %s (the worker retries)", self._worker, text)
            await asyncio.sleep(AGAIN_S)
