"""A member's view of the leases and shards of a stream, and the facts that follow from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from headrace.core.lease.actions import ListedShard
from headrace.core.lease.checkpoint import SHARD_END, TRIM_HORIZON, Checkpoint, at_timestamp
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.core.lease.settings import LeaseSettings


@dataclass(slots=True)
class Seen:
    """A lease as it was seen last."""

    lease: Lease
    first_ms: int
    """When it was seen for the first time."""
    changed_ms: int
    """When this member saw that epoch or beat had changed: later than they did, by its own clock."""
    known_ms: int
    """Since when at the latest it is so."""

    @property
    def is_begun(self) -> bool:
        """Whether something of the shard is finished."""
        checkpoint = self.lease.checkpoint
        return checkpoint.is_sequence_number or checkpoint.is_end


class StreamView:
    """The leases of a group on a stream, and the shards of the stream."""

    def __init__(self, group: str, stream: str, settings: LeaseSettings) -> None:
        self._group = group
        self.stream = stream
        self._settings = settings
        self.rows: dict[str, Seen] = {}
        self.listed: dict[str, ListedShard] = {}
        self._children: dict[str, list[str]] = {}
        self._listed_ms: int | None = None
        """When the list that was answered last was asked for."""
        self._answered_ms: int | None = None
        """When that list was answered."""
        self._scanned_wall_ms = 0
        self.is_scanned = False
        """Whether the leases were read since."""
        self._refused: dict[str, None] = {}
        """Shards whose leases cannot be created, as there is something, though nothing that is a lease."""

    # What is learnt

    def on_leases(
        self, leases: Iterable[Lease], sent_ms: int, now_ms: int, wall_ms: int = 0
    ) -> None:
        """Take the leases that a scan has found; `wall_ms` is when it was sent, ms since 1970."""
        rows: dict[str, Seen] = {}
        for lease in leases:
            known = self.rows.get(lease.key.shard)
            if known is not None and known.known_ms > sent_ms and lease.epoch < known.lease.epoch:
                rows[lease.key.shard] = known  # learnt from a write while the scan ran
            else:
                rows[lease.key.shard] = self._seen(known, lease, now_ms)
        for shard, known in self.rows.items():
            if shard not in rows and known.known_ms > sent_ms:
                rows[shard] = known
        self.rows = rows
        # Rows that are older than the list do not say which of its shards are younger than the group.
        self.is_scanned = self._answered_ms is not None and sent_ms >= self._answered_ms
        self._scanned_wall_ms = wall_ms

    def on_lease(self, lease: Lease, now_ms: int) -> None:
        """Take what a write has answered."""
        shard = lease.key.shard
        self.rows[shard] = self._seen(self.rows.get(shard), lease, now_ms)

    def _seen(self, known: Seen | None, lease: Lease, now_ms: int) -> Seen:
        if known is None:
            return Seen(lease, now_ms, now_ms, now_ms)
        if (known.lease.epoch, known.lease.beat) != (lease.epoch, lease.beat):
            known.changed_ms = now_ms
        known.lease = lease
        known.known_ms = now_ms
        return known

    def on_refused(self, shard: str) -> None:
        """Take that there is something already where a lease was to be created."""
        self._refused[shard] = None

    def on_deleted(self, shard: str) -> None:
        """Take that a lease is gone."""
        self.rows.pop(shard, None)

    def on_shards(self, shards: Iterable[ListedShard], sent_ms: int, now_ms: int) -> None:
        """Take the shards that the stream has."""
        self._answered_ms = now_ms
        self.is_scanned = False
        self.listed = {info.shard: info for info in shards}
        self._listed_ms = sent_ms
        self._refused.clear()
        self._children = {}
        for info in self.listed.values():
            for parent in info.parents:
                self._children.setdefault(parent, []).append(info.shard)

    # What follows

    def is_listed_after(self, time_ms: int) -> bool:
        """Whether there is a list of the shards that was asked for after some time."""
        return self._listed_ms is not None and self._listed_ms > time_ms

    def is_there(self, shard: str) -> bool:
        """Whether a shard has a row, be it one that is no lease."""
        return shard in self.rows or shard in self._refused

    def missing(self) -> list[ListedShard]:
        """Return the shards without a lease."""
        if not self.is_scanned:
            return []
        return [info for info in self.listed.values() if not self.is_there(info.shard)]

    def creatable(self) -> list[ListedShard]:
        """Return those whose lease can be created now: when the shards that came from them have theirs.

        So a member that finds the lease of a parent without the child's knows that the child is younger than the group,
        also if the member that began the group died while it wrote the first leases.
        """
        return [info for info in self.missing() if self._has_children_there(info.shard)]

    def creatable_behind(self, lease: Lease) -> list[ListedShard]:
        """Return what a lease that is there now has kept from being created: those that its shard came from."""
        return [
            self.listed[shard]
            for shard in lease.parents & self.listed.keys()
            if self.is_scanned and not self.is_there(shard) and self._has_children_there(shard)
        ]

    def _has_children_there(self, shard: str) -> bool:
        return all(self.is_there(child) for child in self._children.get(shard, ()))

    def is_complete(self) -> bool:
        """Whether every shard has a lease: before that none is taken."""
        is_known = self.is_scanned and self._listed_ms is not None
        return is_known and all(self.is_there(shard) for shard in self.listed)

    def children_of(self, shard: str) -> list[ListedShard]:
        """Return the listed shards that came from a shard."""
        return [self.listed[child] for child in self._children.get(shard, ())]

    def is_readable(self, seen: Seen) -> bool:
        """Whether a shard may be read: it is not finished, and all its parents are."""
        lease = seen.lease
        return not lease.checkpoint.is_end and all(
            self._is_finished(parent, seen.first_ms) for parent in lease.parents
        )

    def _is_finished(self, parent: str, since_ms: int) -> bool:
        row = self.rows.get(parent)
        if row is not None:
            return row.lease.checkpoint.is_end
        # A list that is older than the child's lease may be older than the parent, too.
        return self.is_listed_after(since_ms) and parent not in self.listed

    def wants_list(self) -> bool:
        """Whether a shard waits for nothing but a newer list, that says whether a parent is gone."""
        return any(
            not self.is_listed_after(seen.first_ms)
            and any(parent not in self.rows for parent in seen.lease.parents)
            for seen in self.rows.values()
            if not seen.is_begun
        )

    def deletable(self) -> Iterator[Lease]:
        """Return the leases of which nothing is needed any more.

        The shard is finished and gone from the stream, and so is its last use: to say that its children may be read
        (they have begun), and that they are younger than the group (they have leases).
        """
        children: dict[str, list[Seen]] = {}
        for seen in self.rows.values():
            for parent in seen.lease.parents:
                children.setdefault(parent, []).append(seen)
        for shard, seen in self.rows.items():
            if (
                seen.lease.checkpoint.is_end
                and self.is_listed_after(seen.first_ms)
                and shard not in self.listed
                and shard in children
                and all(child.is_begun for child in children[shard])
                and all(child in self.rows for child in self._children.get(shard, ()))
            ):
                yield seen.lease

    # Where reading begins

    def key(self, shard: str) -> LeaseKey:
        """Return how the lease of a shard is called."""
        return LeaseKey(self._group, self.stream, shard)

    def first_lease(self, info: ListedShard) -> Lease:
        """Return the lease of a shard that has none."""
        return Lease(
            key=self.key(info.shard),
            checkpoint=self._beginning(info),
            parents=info.parents,
            hash_range=info.hash_range,
        )

    def _beginning(self, info: ListedShard) -> Checkpoint:
        if any(seen.is_begun for seen in self.rows.values() if info.shard in seen.lease.parents):
            return SHARD_END  # it was finished, or its child could not have begun; its lease was removed
        if self._is_younger_than_group(info):
            return TRIM_HORIZON
        start = self._settings.starts.get(info.shard, self._settings.start)
        return start if start is not None else self._latest()

    def _is_younger_than_group(self, info: ListedShard) -> bool:
        # Each once: a stream that was split and merged again and again has more ways back than shards.
        ancestors, met = list(info.parents), set(info.parents)
        for ancestor in ancestors:  # grows
            if ancestor in self.rows:
                return True
            if ancestor in self.listed:
                further = self.listed[ancestor].parents - met
                ancestors += further
                met |= further
        return False

    def _latest(self) -> Checkpoint:
        """Return what LATEST is: decided once for a group, or whatever comes while it is away would be lost."""
        if not self.rows:
            return at_timestamp(self._scanned_wall_ms)  # when nobody had begun yet
        times = [seen.lease.checkpoint.timestamp_ms for seen in self.rows.values()]
        known = [time for time in times if time is not None]
        return at_timestamp(min(known)) if known else TRIM_HORIZON
