"""The image: all entries of the metadata store, as one broker knows them.

A change of metadata takes effect through the image, whichever broker has committed the change:

1. A broker commits a change to the metadata store.
2. The store notifies every broker with a `MetadataBatch`, also the broker that has committed.
3. The image of each broker applies the batch, reads the new entries, and passes the changes to the consumers of their
   keys.
4. The consumers change what the broker does: its quotas, its permissions, its topics.

A newer broker may write an entry that this version cannot read. Such an entry keeps no other change from a consumer:
the consumer does not receive the entry, and continues with the last value that it could read.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from headrace.errors import StorageError
from headrace.ports import MetadataBatch, MetadataEntry

T = TypeVar("T")

SORTED_CHANGES: Final = 100
"""The number of new and deleted keys in a batch above which all keys are sorted again."""


@dataclass(frozen=True, slots=True)
class Changes(Generic[T]):
    """Changes of the entries below a prefix. A consumer applies the deletes first.

    Attributes:
        puts: The values of new and changed entries by key, in the order of the keys.
        deletes: The keys of deleted entries, sorted. The consumer may not know such a key: it could not be read.
    """

    puts: Mapping[str, T] = field(default_factory=dict)
    deletes: Sequence[str] = ()


class _Consumer(NamedTuple):
    """A consumer of the changes below a prefix."""

    prefix: str
    read: Callable[[MetadataEntry], Any]
    apply: Callable[[Changes[Any]], object]

    def pass_on(self, puts: Sequence[MetadataEntry], deletes: Sequence[str]) -> list[StorageError]:
        """Pass on the changes below the prefix; return the errors of the entries that cannot be read."""
        values: dict[str, Any] = {}
        errors: list[StorageError] = []
        for entry in puts:
            if entry.key.startswith(self.prefix):
                try:
                    values[entry.key] = self.read(entry)
                except StorageError as error:
                    errors.append(error)
        changes = Changes(values, [key for key in deletes if key.startswith(self.prefix)])
        if changes.puts or changes.deletes:
            self.apply(changes)
        return errors


class MetadataImage:
    """All entries by key, and the consumers of their changes."""

    __slots__ = ("_consumers", "_entries", "_keys")

    def __init__(self) -> None:
        """Begin without entries and consumers."""
        self._entries: dict[str, MetadataEntry] = {}
        self._keys: list[str] = []
        """The keys of all entries, sorted."""
        self._consumers: list[_Consumer] = []

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: str) -> MetadataEntry | None:
        """Return an entry; None if there is none."""
        return self._entries.get(key)

    def list(self, prefix: str) -> Sequence[MetadataEntry]:
        """Return all entries whose keys start with a prefix, sorted by key."""
        keys, entries = self._keys, self._entries
        found: list[MetadataEntry] = []
        for index in range(bisect_left(keys, prefix), len(keys)):
            key = keys[index]
            if not key.startswith(prefix):
                break
            found.append(entries[key])
        return found

    def consume(
        self,
        prefix: str,
        read: Callable[[MetadataEntry], T],
        apply: Callable[[Changes[T]], object],
    ) -> Mapping[str, T]:
        """Add a consumer of all changes from now on, and return the present values below its prefix.

        Args:
            prefix: The prefix of the keys.
            read: Returns the value of an entry, or raises StorageError.
            apply: Applies changes. It is called once for each batch that changes something below the prefix, after the
                consumers that were added earlier. It must not raise.

        Returns:
            The values by key, in the order of the keys.

        Raises:
            StorageError: An entry cannot be read.
        """
        present = {entry.key: read(entry) for entry in self.list(prefix)}
        self._consumers.append(_Consumer(prefix, read, apply))
        return present

    def apply(self, batch: MetadataBatch) -> Sequence[StorageError]:
        """Apply a notification of the store, and pass its changes to the consumers.

        A snapshot deletes every entry that it does not contain. An entry with a known version is no change.

        Returns:
            The errors of the entries that a consumer cannot read.
        """
        entries = self._entries
        puts = [entry for entry in batch.puts if entries.get(entry.key) != entry]
        if batch.snapshot:
            kept = {entry.key for entry in batch.puts}
            deletes = sorted(key for key in entries if key not in kept)
        else:
            deletes = [key for key in batch.deletes if key in entries]
        self._order({entry.key for entry in puts if entry.key not in entries}, deletes)
        for key in deletes:
            del entries[key]
        for entry in puts:
            entries[entry.key] = entry
        return self._pass_on(puts, deletes)

    def _order(self, new: Collection[str], deletes: Sequence[str]) -> None:
        """Update the order of the keys."""
        keys = self._keys
        if len(new) + len(deletes) > SORTED_CHANGES:
            gone = frozenset(deletes)
            keys[:] = sorted([*(key for key in keys if key not in gone), *new])
            return
        for key in deletes:
            del keys[bisect_left(keys, key)]
        for key in new:
            insort(keys, key)

    def _pass_on(
        self, puts: Sequence[MetadataEntry], deletes: Sequence[str]
    ) -> Sequence[StorageError]:
        errors: list[StorageError] = []
        changed = [*deletes, *(entry.key for entry in puts)]
        for consumer in self._consumers:
            for key in changed:
                if key.startswith(consumer.prefix):
                    errors += consumer.pass_on(puts, deletes)
                    break
        return errors
