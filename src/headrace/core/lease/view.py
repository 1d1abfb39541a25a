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
    """The last state of a lease that this member read or wrote, with the times of reading."""

    lease: Lease
    first_ms: int
    """The time at which this member first read the lease, in ms of the member's clock."""
    changed_ms: int
    """The time at which this member noticed the last change of epoch or beat, in ms. The change itself was earlier."""
    known_ms: int
    """The time of the last read or write that returned this state, in ms."""

    @property
    def is_begun(self) -> bool:
        """Whether at least one record of the shard is finished."""
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
        """The time at which the last answered ListShards was sent, in ms; None before the first response."""
        self._answered_ms: int | None = None
        """The time at which that ListShards was answered, in ms; None before the first response."""
        self._scanned_wall_ms = 0
        """The time at which the last scan was sent, in ms since 1970."""
        self.is_scanned = False
        """Whether a scan of the leases was sent after the last list of shards arrived."""
        self._refused: dict[str, None] = {}
        """Shards whose lease cannot be created, because an item that is not a lease exists under the lease's key."""

    # Updates

    def on_leases(
        self, leases: Iterable[Lease], sent_ms: int, now_ms: int, wall_ms: int = 0
    ) -> None:
        """Replace the leases by those that a scan returned.

        Args:
            leases: All leases of the stream.
            sent_ms: The time at which the scan was sent, by the member's clock.
            now_ms: The present time, by the same clock.
            wall_ms: The time at which the scan was sent, in ms since 1970.
        """
        rows: dict[str, Seen] = {}
        for lease in leases:
            known = self.rows.get(lease.key.shard)
            if known is not None and known.known_ms > sent_ms and lease.epoch < known.lease.epoch:
                # A write that ended while the scan ran returned a newer state.
                rows[lease.key.shard] = known
            else:
                rows[lease.key.shard] = self._seen(known, lease, now_ms)
        for shard, known in self.rows.items():
            if shard not in rows and known.known_ms > sent_ms:
                rows[shard] = known
        self.rows = rows
        # A scan that is older than the list cannot show which of the listed shards are younger than the group.
        self.is_scanned = self._answered_ms is not None and sent_ms >= self._answered_ms
        self._scanned_wall_ms = wall_ms

    def on_lease(self, lease: Lease, now_ms: int) -> None:
        """Store the lease that a write returned."""
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
        """Note that another item exists under the key of a lease that was to be created."""
        self._refused[shard] = None

    def on_deleted(self, shard: str) -> None:
        """Remove a lease that was deleted."""
        self.rows.pop(shard, None)

    def on_shards(self, shards: Iterable[ListedShard], sent_ms: int, now_ms: int) -> None:
        """Replace the list of the stream's shards.

        Args:
            shards: All shards of the stream.
            sent_ms: The time at which ListShards was sent, by the member's clock.
            now_ms: The present time, by the same clock.
        """
        self._answered_ms = now_ms
        self.is_scanned = False
        self.listed = {info.shard: info for info in shards}
        self._listed_ms = sent_ms
        self._refused.clear()
        self._children = {}
        for info in self.listed.values():
            for parent in info.parents:
                self._children.setdefault(parent, []).append(info.shard)

    # Queries

    def is_listed_after(self, time_ms: int) -> bool:
        """Whether the present list of shards was requested after a time."""
        return self._listed_ms is not None and self._listed_ms > time_ms

    def is_there(self, shard: str) -> bool:
        """Whether the table has an item for a shard: a lease, or another item under the lease's key."""
        return shard in self.rows or shard in self._refused

    def missing(self) -> list[ListedShard]:
        """Return the listed shards without a lease; empty until the leases are scanned."""
        if not self.is_scanned:
            return []
        return [info for info in self.listed.values() if not self.is_there(info.shard)]

    def creatable(self) -> list[ListedShard]:
        """Return the shards whose lease can be created now: shards without children, or whose children have leases.

        Members create the lease of a child before the lease of its parent. So if a parent has a lease and the child has
        none, the child is younger than the group. This holds also if the first member of the group died while it
        created the first leases.
        """
        return [info for info in self.missing() if self._has_children_there(info.shard)]

    def creatable_behind(self, lease: Lease) -> list[ListedShard]:
        """Return the parents of a lease's shard whose leases can be created because this lease exists."""
        return [
            self.listed[shard]
            for shard in lease.parents & self.listed.keys()
            if self.is_scanned and not self.is_there(shard) and self._has_children_there(shard)
        ]

    def _has_children_there(self, shard: str) -> bool:
        return all(self.is_there(child) for child in self._children.get(shard, ()))

    def is_complete(self) -> bool:
        """Whether every listed shard has a lease. Members take no lease before."""
        is_known = self.is_scanned and self._listed_ms is not None
        return is_known and all(self.is_there(shard) for shard in self.listed)

    def children_of(self, shard: str) -> list[ListedShard]:
        """Return the listed shards that a split or merge made from a shard."""
        return [self.listed[child] for child in self._children.get(shard, ())]

    def is_readable(self, seen: Seen) -> bool:
        """Whether a shard may be read: the shard is not finished, and all its parents are finished."""
        lease = seen.lease
        return not lease.checkpoint.is_end and all(
            self._is_finished(parent, seen.first_ms) for parent in lease.parents
        )

    def _is_finished(self, parent: str, since_ms: int) -> bool:
        row = self.rows.get(parent)
        if row is not None:
            return row.lease.checkpoint.is_end
        # A list that is older than the child's lease may also be older than the parent.
        return self.is_listed_after(since_ms) and parent not in self.listed

    def wants_list(self) -> bool:
        """Whether a shard cannot be read until a newer list shows whether its parent still exists."""
        return any(
            not self.is_listed_after(seen.first_ms)
            and any(parent not in self.rows for parent in seen.lease.parents)
            for seen in self.rows.values()
            if not seen.is_begun
        )

    def deletable(self) -> Iterator[Lease]:
        """Return the leases that can be deleted.

        A lease can be deleted if (1) its shard is finished, (2) the stream no longer lists the shard, (3) all children
        of the shard have leases, so that no child needs the parent to show that the child is younger than the group,
        and (4) all children have begun, so that no child waits for the end of the parent.
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

    # The first checkpoint

    def key(self, shard: str) -> LeaseKey:
        """Return the key of a shard's lease."""
        return LeaseKey(self._group, self.stream, shard)

    def first_lease(self, info: ListedShard) -> Lease:
        """Return a new lease for a shard that has none."""
        return Lease(
            key=self.key(info.shard),
            checkpoint=self._beginning(info),
            parents=info.parents,
            hash_range=info.hash_range,
        )

    def _beginning(self, info: ListedShard) -> Checkpoint:
        if any(seen.is_begun for seen in self.rows.values() if info.shard in seen.lease.parents):
            return SHARD_END  # a child has begun, so this shard was finished, and its lease was deleted
        if self._is_younger_than_group(info):
            return TRIM_HORIZON
        start = self._settings.starts.get(info.shard, self._settings.start)
        return start if start is not None else self._latest()

    def _is_younger_than_group(self, info: ListedShard) -> bool:
        # Visit each ancestor once: after repeated splits and merges there are many paths to the same ancestor.
        ancestors, met = list(info.parents), set(info.parents)
        for ancestor in ancestors:  # the loop appends to the list
            if ancestor in self.rows:
                return True
            if ancestor in self.listed:
                further = self.listed[ancestor].parents - met
                ancestors += further
                met |= further
        return False

    def _latest(self) -> Checkpoint:
        """Return the time that LATEST stands for.

        The first member of the group fixes that time. Otherwise records that arrive while no member runs would be lost.
        """
        if not self.rows:
            return at_timestamp(self._scanned_wall_ms)  # no member of the group has begun
        times = [seen.lease.checkpoint.timestamp_ms for seen in self.rows.values()]
        known = [time for time in times if time is not None]
        return at_timestamp(min(known)) if known else TRIM_HORIZON
