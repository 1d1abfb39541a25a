"""The watches of a metadata store: readers of its change log, each at its own version."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headrace.ports import MetadataBatch, MetadataEntry

Callback = Callable[[MetadataBatch], object]


class ChangeLog(Protocol):
    """The content and the change log of a metadata store, as watches read them."""

    @property
    def version(self) -> int:
        """The version of the last commit; 0 if there was none."""

    def entries(self) -> Sequence[MetadataEntry]:
        """Return all entries, sorted by key."""

    def change(self, version: int) -> MetadataBatch | None:
        """Return the change that the commit with this version has made; None if the log no longer has it."""


class _Watch:
    __slots__ = ("callback", "version")

    def __init__(self, callback: Callback) -> None:
        self.callback = callback
        self.version: int | None = None
        """The version of the last commit that was delivered; None before the first snapshot."""


class Watches:
    """The watches of one session.

    A callback may commit, watch and end watches. No callback runs inside another callback: the outermost call delivers
    notifications until none is pending.
    """

    __slots__ = ("_delivering", "_log", "_watches")

    def __init__(self, log: ChangeLog) -> None:
        """Read the given log."""
        self._log = log
        self._watches: dict[_Watch, None] = {}
        self._delivering = False

    def add(self, callback: Callback) -> Callable[[], object]:
        """Begin a watch, which `deliver` serves, and return the function that ends it."""
        watch = _Watch(callback)
        self._watches[watch] = None
        return lambda: self._watches.pop(watch, None)

    def clear(self) -> None:
        """End all watches of the session."""
        self._watches.clear()

    def deliver(self) -> None:
        """Notify all watches of everything that they do not know yet."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while (watch := self._behind()) is not None:
                batch = self._next(watch)
                if batch.snapshot or batch.puts or batch.deletes:
                    watch.callback(batch)
        finally:
            self._delivering = False

    def _behind(self) -> _Watch | None:
        version = self._log.version
        return next((watch for watch in self._watches if watch.version != version), None)

    def _next(self, watch: _Watch) -> MetadataBatch:
        change = None if watch.version is None else self._log.change(watch.version + 1)
        if watch.version is None or change is None:
            version, entries = self._log.version, self._log.entries()
            watch.version = version  # not before the entries are read: a failed read is repeated
            return MetadataBatch(snapshot=True, puts=entries)
        watch.version += 1
        return change
