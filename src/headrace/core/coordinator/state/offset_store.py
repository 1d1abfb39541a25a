"""Committed offsets by group, topic and partition, and pending offsets of transactions. Only replay changes them.

For one partition the record written last counts. A pending offset is dropped if a later record takes effect before its
transaction is committed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from headrace.core.coordinator.state.memory import OFFSET_BYTES, OFFSETS_GROUP_BYTES, GroupMemory
from headrace.core.coordinator.state.records import CommittedOffset, OffsetCommit, PendingOffset
from headrace.core.log import Marker

Offsets = Mapping[str, Mapping[int, CommittedOffset]]
"""Topic -> partition -> committed offset."""

Key = tuple[str, int]
"""A topic name and a partition number."""


PLACES_A_STEP: Final = 5_000
"""The greatest number of pending offsets that one step of a marker ends, which takes some four milliseconds."""

FREED_A_STEP: Final = 5_000
"""The number of offsets that are freed in about a millisecond."""


class _Pending(NamedTuple):
    number: int
    """The order of writing: a later record has a greater number."""
    epoch: int
    commit: OffsetCommit


def held_bytes(committed: CommittedOffset | None) -> int:
    """Return the memory of a committed offset in bytes; 0 for None."""
    return 0 if committed is None else OFFSET_BYTES + len(committed.metadata)


def group_bytes(group_id: str) -> int:
    """Return the memory in bytes that a group needs because it has offsets."""
    return OFFSETS_GROUP_BYTES + len(group_id)


class OffsetStore:
    """The offsets of all groups of a shard."""

    __slots__ = ("_groups", "_held_bytes", "_memory", "_number", "_pending", "_producers")

    def __init__(self, memory: GroupMemory) -> None:
        """Create an empty store, whose size is counted in `memory`."""
        self._memory = memory
        self._held_bytes = 0
        self._groups: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self._pending: dict[str, dict[Key, dict[int, _Pending]]] = {}
        """Pending offsets by group, then topic and partition, then producer id."""
        self._producers: dict[int, dict[tuple[str, Key], None]] = {}
        """The groups and partitions with pending offsets, by producer id."""
        self._number = 0

    def replay(self, record: OffsetCommit) -> None:
        """Set or delete one offset; remove levels that become empty."""
        if self._pending:
            self._number += 1
            self._supersede(record, self._number)
        if record.committed is not None:
            self._hold(self._put(record))
            return
        topics = self._groups.get(record.group_id, {})
        partitions = topics.get(record.topic, {})
        self._hold(-held_bytes(partitions.pop(record.partition, None)))
        if not partitions:
            topics.pop(record.topic, None)
        if not topics and self._groups.pop(record.group_id, None) is not None:
            self._hold(-group_bytes(record.group_id))

    def free(self) -> Iterator[None]:
        """Delete all offsets of the shard, with a pause after about each millisecond."""
        self._hold(-self._held_bytes)
        for producer_id, places in self._producers.items():
            self._memory.pending_changed(producer_id, -len(places))
        self._producers.clear()
        self._pending.clear()
        left = FREED_A_STEP
        while self._groups:
            left -= sum(map(len, self._groups.popitem()[1].values())) + 1
            if left <= 0:
                left = FREED_A_STEP
                yield

    def added_bytes(self, commits: Sequence[OffsetCommit]) -> int:
        """Return the bytes that committing some offsets would add."""
        new_groups = {commit.group_id for commit in commits} - self._groups.keys()
        return sum(map(group_bytes, new_groups)) + sum(
            held_bytes(commit.committed)
            - held_bytes(self.get(commit.group_id, commit.topic, commit.partition))
            for commit in commits
        )

    def added_pending(self, producer_id: int, commits: Iterable[OffsetCommit]) -> int:
        """Return the number of partitions for which a transaction would add a first pending offset."""
        known = self._producers.get(producer_id, {})
        places = {(commit.group_id, (commit.topic, commit.partition)) for commit in commits}
        return len(places - known.keys())

    def _put(self, commit: OffsetCommit) -> int:
        """Set one offset, and return the bytes that the store holds in addition."""
        more_bytes, (group_id, topic, partition, committed) = 0, commit
        assert committed is not None, "transactions commit offsets, they delete none"
        topics = self._groups.get(group_id)
        if topics is None:
            topics = self._groups[group_id] = {}
            more_bytes = group_bytes(group_id)
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        more_bytes += held_bytes(committed) - held_bytes(partitions.get(partition))
        partitions[partition] = committed
        return more_bytes

    def _hold(self, more_bytes: int) -> None:
        self._held_bytes += more_bytes
        self._memory.offsets_bytes += more_bytes

    def replay_pending(self, record: PendingOffset) -> None:
        """Store a pending offset until its transaction ends."""
        producer_id, epoch, commit = record
        self._number += 1
        key = (commit.topic, commit.partition)
        by_producer = self._pending.setdefault(commit.group_id, {}).setdefault(key, {})
        if producer_id in by_producer:
            self._hold(-held_bytes(by_producer[producer_id].commit.committed))
        else:
            self._memory.pending_changed(producer_id, 1)
        self._hold(held_bytes(commit.committed))
        by_producer[producer_id] = _Pending(self._number, epoch, commit)
        self._producers.setdefault(producer_id, {})[commit.group_id, key] = None

    def replay_marker(self, marker: Marker) -> tuple[Collection[str], bool]:
        """End a transaction: apply or drop its pending offsets, at most `PLACES_A_STEP`.

        Pending offsets of a later producer epoch belong to another transaction and stay.

        Returns:
            The affected groups, and whether pending offsets of the transaction are left.
        """
        producer_id, epoch, committed = marker.producer_id, marker.producer_epoch, marker.committed
        places = self._producers.get(producer_id, {})
        count, more_bytes = len(places), 0
        groups: set[str] = set()
        is_left = False
        for place in list(places):
            group_id, key = place
            keys = self._pending[group_id]
            by_producer = keys[key]
            pending = by_producer[producer_id]
            if pending.epoch > epoch:
                continue
            if count - len(places) == PLACES_A_STEP:
                is_left = True
                break
            groups.add(group_id)
            del places[place]
            if len(by_producer) == 1:  # the usual case
                del keys[key]
                if not keys:
                    del self._pending[group_id]
            else:
                del by_producer[producer_id]
                if committed:
                    self._supersede(pending.commit, pending.number)
            more_bytes -= held_bytes(pending.commit.committed)
            if committed:
                more_bytes += self._put(pending.commit)
        if count and not places:
            del self._producers[producer_id]
        if count > len(places):
            self._memory.pending_changed(producer_id, len(places) - count)
        self._hold(more_bytes)
        return groups, is_left

    def _supersede(self, record: OffsetCommit, number: int) -> None:
        """Drop the pending offsets of a partition that are older than a record which takes effect now."""
        key = (record.topic, record.partition)
        pending = self._pending.get(record.group_id, {}).get(key, {})
        for producer_id in [each for each in pending if pending[each].number < number]:
            self._forget(record.group_id, key, producer_id)

    def _forget(self, group_id: str, key: Key, producer_id: int) -> None:
        places = self._producers[producer_id]
        del places[group_id, key]
        self._memory.pending_changed(producer_id, -1)
        if not places:
            del self._producers[producer_id]
        keys = self._pending[group_id]
        self._hold(-held_bytes(keys[key].pop(producer_id).commit.committed))
        if not keys[key]:
            del keys[key]
        if not keys:
            del self._pending[group_id]

    def of_group(self, group_id: str) -> Offsets:
        """Return a group's committed offsets; empty if it has none."""
        return self._groups.get(group_id, {})

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        """Return one committed offset."""
        return self._groups.get(group_id, {}).get(topic, {}).get(partition)

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        """Return whether a transaction that has not ended has a pending offset for a partition."""
        keys = self._pending.get(group_id)
        return keys is not None and (topic, partition) in keys

    def has_pending(self, group_id: str) -> bool:
        """Return whether a transaction that has not ended has pending offsets of a group."""
        return group_id in self._pending

    def has_any(self, group_id: str) -> bool:
        """Return whether a group has offsets, committed or pending."""
        return group_id in self._groups or group_id in self._pending

    def keys_of_group(self, group_id: str) -> Collection[Key]:
        """Return the partitions for which a group has offsets, committed or pending."""
        keys = {
            (topic, partition): None
            for topic, partitions in self.of_group(group_id).items()
            for partition in partitions
        }
        return keys | dict.fromkeys(self._pending.get(group_id, ()))

    def topics(self) -> set[str]:
        """Return the topics for which there are offsets, committed or pending."""
        committed = {topic for topics in self._groups.values() for topic in topics}
        return committed | {topic for keys in self._pending.values() for topic, _ in keys}

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that have offsets, committed or pending, for a topic."""
        groups = [group_id for group_id, topics in self._groups.items() if topic in topics]
        known = set(groups)
        for group_id, keys in self._pending.items():
            if group_id not in known and any(name == topic for name, _ in keys):
                groups.append(group_id)
        return groups

    def partitions_of(self, group_id: str, topic: str) -> dict[int, int]:
        """Return the partitions of a topic with offsets of a group, and the time of the last commit of each."""
        times = {
            partition: committed.commit_timestamp_ms
            for partition, committed in self.of_group(group_id).get(topic, {}).items()
        }
        for (name, partition), by_producer in self._pending.get(group_id, {}).items():
            if name == topic:
                for pending in by_producer.values():
                    assert pending.commit.committed is not None, "transactions delete no offsets"
                    time_ms = pending.commit.committed.commit_timestamp_ms
                    times[partition] = max(times.get(partition, time_ms), time_ms)
        return times

    def of_topic(self, topic: str) -> Iterator[tuple[str, int]]:
        """Yield (group id, partition) of every offset, committed or pending, for a topic."""
        for group_id, topics in self._groups.items():
            for partition in topics.get(topic, ()):
                yield group_id, partition
        for group_id, keys in self._pending.items():
            for name, partition in keys:
                if name == topic and self.get(group_id, topic, partition) is None:
                    yield group_id, partition
