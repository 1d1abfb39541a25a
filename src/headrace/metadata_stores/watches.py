"""The watches of a metadata store in this process: callbacks after every commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from headrace.ports import MetadataBatch, MetadataEntry

Callback = Callable[[MetadataBatch], object]


class _Watch:
    __slots__ = ("callback", "changed", "delivered", "prefix")

    def __init__(self, prefix: str, callback: Callback) -> None:
        self.prefix = prefix
        self.callback = callback
        self.changed: set[str] | None = None
        """The keys with changes that were not delivered yet; None before the snapshot."""
        self.delivered: dict[str, int] = {}
        """The versions of the keys that were delivered to the callback."""


class Watches:
    """The watches of a metadata store, and their pending notifications.

    A callback may commit, watch and end watches. No callback runs inside another callback: the outermost call delivers
    notifications until none is pending.
    """

    __slots__ = ("_delivering", "_get", "_list", "_watches")

    def __init__(
        self,
        get: Callable[[str], MetadataEntry | None],
        list_: Callable[[str], Sequence[MetadataEntry]],
    ) -> None:
        """Use the given functions to read the store."""
        self._get = get
        self._list = list_
        self._watches: dict[_Watch, None] = {}
        self._delivering = False

    def add(self, prefix: str, callback: Callback) -> Callable[[], object]:
        """Begin a watch, and return the function that ends it; see `headrace.ports.MetadataStore.watch`."""
        watch = _Watch(prefix, callback)
        self._watches[watch] = None
        self._deliver()
        return lambda: self._watches.pop(watch, None)

    def committed(self, keys: Iterable[str]) -> None:
        """Notify the watches of a commit that wrote or deleted these keys."""
        if not self._watches:
            return
        written = list(keys)
        for watch in self._watches:
            if watch.changed is not None:
                watch.changed.update(key for key in written if key.startswith(watch.prefix))
        self._deliver()

    def clear(self) -> None:
        """End all watches of the store."""
        self._watches.clear()

    def _deliver(self) -> None:
        if self._delivering:
            return
        self._delivering = True
        try:
            while (watch := self._next()) is not None:
                batch = self._batch(watch)
                if batch is not None:
                    watch.callback(batch)
        finally:
            self._delivering = False

    def _next(self) -> _Watch | None:
        return next((w for w in self._watches if w.changed is None or w.changed), None)

    def _batch(self, watch: _Watch) -> MetadataBatch | None:
        changed, watch.changed = watch.changed, set()
        if changed is None:
            entries = self._list(watch.prefix)
            watch.delivered = {entry.key: entry.version for entry in entries}
            return MetadataBatch(snapshot=True, puts=entries)
        puts: list[MetadataEntry] = []
        deletes: list[str] = []
        for key in sorted(changed):
            entry = self._get(key)
            if entry is None:
                if watch.delivered.pop(key, None) is not None:
                    deletes.append(key)
            elif watch.delivered.get(key) != entry.version:
                watch.delivered[key] = entry.version
                puts.append(entry)
        return (
            MetadataBatch(snapshot=False, puts=puts, deletes=deletes) if puts or deletes else None
        )
