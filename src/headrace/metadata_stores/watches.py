"""The watches of a metadata store that lies in this process: callbacks after every commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.ports import Entry, MetadataBatch

Callback = Callable[[MetadataBatch], object]


class _Watch:
    __slots__ = ("callback", "changed", "prefix", "told")

    def __init__(self, prefix: str, callback: Callback) -> None:
        self.prefix = prefix
        self.callback = callback
        self.changed: set[str] | None = None
        """Keys to look at; None before the snapshot."""
        self.told: dict[str, int] = {}
        """The versions that the callback knows."""


class Watches:
    """The watches of a metadata store, and their pending notifications.

    A callback may commit, watch and end watches. No callback runs inside another callback: the outermost call delivers
    notifications until none is pending.
    """

    __slots__ = ("_get", "_list", "_telling", "_watches")

    def __init__(
        self, get: Callable[[str], Entry | None], list_: Callable[[str], Sequence[Entry]]
    ) -> None:
        """Take over how the store is read."""
        self._get = get
        self._list = list_
        self._watches: dict[_Watch, None] = {}
        self._telling = False

    def add(self, prefix: str, callback: Callback) -> Callable[[], object]:
        """Begin a watch; see `headrace.ports.MetadataStore.watch`."""
        watch = _Watch(prefix, callback)
        self._watches[watch] = None
        self._tell()
        return lambda: self._watches.pop(watch, None)

    def committed(self, keys: Iterable[str]) -> None:
        """Tell of a commit that wrote these keys."""
        if not self._watches:
            return
        written = list(keys)
        for watch in self._watches:
            if watch.changed is not None:
                watch.changed.update(key for key in written if key.startswith(watch.prefix))
        self._tell()

    def clear(self) -> None:
        """End all watches of the store."""
        self._watches.clear()

    def _tell(self) -> None:
        if self._telling:
            return
        self._telling = True
        try:
            while (watch := self._next()) is not None:
                batch = self._batch(watch)
                if batch is not None:
                    watch.callback(batch)
        finally:
            self._telling = False

    def _next(self) -> _Watch | None:
        return next((w for w in self._watches if w.changed is None or w.changed), None)

    def _batch(self, watch: _Watch) -> MetadataBatch | None:
        changed, watch.changed = watch.changed, set()
        if changed is None:
            entries = self._list(watch.prefix)
            watch.told = {entry.key: entry.version for entry in entries}
            return MetadataBatch(snapshot=True, puts=entries)
        puts: list[Entry] = []
        deletes: list[str] = []
        for key in sorted(changed):
            entry = self._get(key)
            if entry is None:
                if watch.told.pop(key, None) is not None:
                    deletes.append(key)
            elif watch.told.get(key) != entry.version:
                watch.told[key] = entry.version
                puts.append(entry)
        return (
            MetadataBatch(snapshot=False, puts=puts, deletes=deletes) if puts or deletes else None
        )
