"""The metadata that the brokers of a cluster share. Each broker uses them from a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from headrace.metadata_stores.memory import MemoryMetadata
from headrace.metadata_stores.sessions import Timeline
from headrace.ports import (
    Check,
    Conflict,
    Delete,
    MetadataBatch,
    MetadataEntry,
    Put,
    SessionLost,
)


class SharedMetadata(MemoryMetadata):
    """Metadata in memory that several threads use."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        """Begin without entries and sessions."""
        super().__init__()
        self._lock = threading.RLock()

    def begin_session(self) -> int:
        """Begin a session, and return its number."""
        with self._lock:
            return super().begin_session()

    def end_session(self, number: int) -> None:
        """End a session and delete its ephemeral keys. Does nothing if the session has ended."""
        with self._lock:
            super().end_session(number)

    def get(self, key: str) -> MetadataEntry | None:
        """Return one entry, or None."""
        with self._lock:
            return super().get(key)

    def entries(self) -> Sequence[MetadataEntry]:
        """Return all entries, sorted by key."""
        with self._lock:
            return super().entries()

    def change(self, version: int) -> MetadataBatch | None:
        """Return the change that the commit with this version has made; None if the log no longer has it."""
        with self._lock:
            return super().change(version)

    def commit(
        self, checks: Sequence[Check], operations: Sequence[Put | Delete], session: int
    ) -> dict[str, int] | Conflict | SessionLost:
        """Apply all operations if all checks are true, and call the listeners."""
        with self._lock:
            return super().commit(checks, operations, session)


class LoopTimeline(Timeline):
    """The future events of one broker's session, on the broker's event loop."""

    __slots__ = ("_loop", "_run")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], int],
        run: Callable[[Callable[[], object]], object],
    ) -> None:
        """Begin without events.

        Args:
            loop: The event loop, which calls this object.
            clock: Returns the time in milliseconds.
            run: Calls an event, and sees to the work that it leaves to the broker.
        """
        super().__init__(clock)
        self._loop = loop
        self._run = run

    def at(self, when_ms: int, event: Callable[[], object]) -> None:
        """Call `event` at a time."""
        self._loop.call_later(max(0, when_ms - self.now_ms) / 1000, self._run, event)
