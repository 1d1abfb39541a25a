"""The positions of a consumer, seeking and pausing, and the first and last offsets of partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from headrace.clients.consumer.assigned_partition import AssignedPartition
from headrace.clients.consumer.position_finder import PositionFinder
from headrace.clients.consumer.subscription import partition_of
from headrace.clients.engine import Engine
from headrace.clients.flows.effects import Flow, Wait
from headrace.clients.flows.list_offsets import EARLIEST, LATEST, ListedOffset, list_offsets
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.errors import ConfigError, NotAssignedError, TransportError
from headrace.types import TopicPartition


class ConsumerPositions:
    """The positions of one consumer, and offsets of any partition."""

    def __init__(
        self,
        engine: Engine,
        assigned: Mapping[TopicPartition, AssignedPartition],
        finder: PositionFinder,
        isolation_level: int,
        *,
        check: Callable[[], object],
        check_reading: Callable[[], object],
        raise_failure: Callable[[], object],
    ) -> None:
        """Prepare the positions of a consumer.

        Args:
            engine: The consumer's engine.
            assigned: The partitions that the consumer reads.
            finder: Finds unknown positions.
            isolation_level: Kafka's isolation level, for end offsets.
            check: Raises an exception if the consumer is closed.
            check_reading: Raises an exception if the consumer is closed or reads nothing.
            raise_failure: Raises an error that background work has reported.
        """
        self._engine = engine
        self.assigned = assigned
        self._position_finder = finder
        self._isolation_level = isolation_level
        self._check = check
        self._check_reading = check_reading
        self._raise_failure = raise_failure

    def seek(self, name: TopicPartition, offset: int) -> None:
        """Set the position of an assigned partition."""
        partition = self.assigned_partition(name)
        partition.move(checked_offset(partition, offset).offset)
        self._engine.notify()

    def seek_to(self, partitions: Iterable[TopicPartition] | None, target: int) -> Flow[None]:
        """Set positions to EARLIEST, LATEST or a time; to the end if no record is as late as the time."""
        assigned = self.assigned_partitions(partitions)
        found = yield from self.listed({partition.name: target for partition in assigned})
        late = [name for name, listed in found.items() if listed.offset < 0]
        found |= yield from self.listed(dict.fromkeys(late, LATEST))
        for partition in assigned:
            if self.assigned.get(partition.name) is partition:
                partition.move(found[partition.name].offset)

    def position(self, name: TopicPartition, timeout_ms: int) -> Flow[int]:
        """Return the offset of the next record that polls will return. Wait until it is known."""
        return (yield from self._known(name, self._engine.now_ms + timeout_ms))

    def _known(self, name: TopicPartition, until_ms: int) -> Flow[int]:
        began_ms = self._engine.now_ms
        while (offset := self.assigned_partition(name).offset) is None:
            self._raise_failure()
            self._position_finder.work()
            if self._engine.now_ms >= until_ms:
                text = f"the position of {name} was not found in time"
                raise TransportError(self._engine.trouble.explain(text, began_ms))
            yield Wait(until_ms)
        return offset

    def positions(self) -> dict[TopicPartition, int | None]:
        """Return the position of every assigned partition; None for a position that is not known yet."""
        return {name: self.assigned[name].offset for name in sorted(self.assigned)}

    def known_ends(self) -> dict[TopicPartition, int]:
        """Return the high watermarks of the last responses to fetches; no request is sent."""
        assigned = self.assigned.items()
        return {
            name: partition.high_watermark
            for name, partition in assigned
            if partition.high_watermark >= 0
        }

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`."""
        for partition in self.assigned_partitions(partitions):
            partition.paused = True
            partition.release()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again."""
        for partition in self.assigned_partitions(partitions):
            partition.paused = False
        self._engine.notify()

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused."""
        return sorted(name for name, partition in self.assigned.items() if partition.paused)

    def lag(
        self, partitions: Iterable[TopicPartition] | None, timeout_ms: int
    ) -> Flow[dict[TopicPartition, int]]:
        """Return the number of offsets between each position and the end."""
        names = [partition.name for partition in self.assigned_partitions(partitions)]
        until_ms = self._engine.now_ms + timeout_ms
        positions = {}
        for name in names:
            positions[name] = yield from self._known(name, until_ms)
        ends = yield from self.listed(dict.fromkeys(names, LATEST))
        return {name: max(0, ends[name].offset - positions[name]) for name in names}

    def offsets_for(
        self, targets: Mapping[TopicPartition, int]
    ) -> Flow[dict[TopicPartition, ListedOffset]]:
        """Find EARLIEST, LATEST, or the first record that is not older than a time; offset -1 if there is none."""
        return (yield from self.listed({partition_of(n): at for n, at in targets.items()}))

    def begin_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> Flow[dict[TopicPartition, int]]:
        """Return the first offset of each partition."""
        found = yield from self.offsets_for(dict.fromkeys(partitions, EARLIEST))
        return {name: listed.offset for name, listed in found.items()}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> Flow[dict[TopicPartition, int]]:
        """Return one past the last offset of each partition that this consumer's isolation level lets it read."""
        found = yield from self.offsets_for(dict.fromkeys(partitions, LATEST))
        return {name: listed.offset for name, listed in found.items()}

    def listed(
        self, targets: Mapping[TopicPartition, int]
    ) -> Flow[dict[TopicPartition, ListedOffset]]:
        """Request offsets from the leaders; without partitions no request is sent."""
        self._check()
        for name, at in targets.items():
            if not isinstance(at, int):
                raise ConfigError(f"{name}: a time is a whole number of milliseconds, not {at!r}")
        if not targets:
            return {}
        return (yield from list_offsets(self._engine.state, targets, self._isolation_level))

    def assigned_partitions(
        self, partitions: Iterable[TopicPartition] | None
    ) -> list[AssignedPartition]:
        """Return the assigned of these partitions, or (None) of all that are read.

        Raises:
            NoSubscriptionError: The consumer has no subscription and no partitions.
            NotAssignedError: A partition is not assigned.
        """
        self._check_reading()
        return [
            self.assigned_partition(name)
            for name in (self.assigned if partitions is None else partitions)
        ]

    def assigned_partition(self, name: TopicPartition) -> AssignedPartition:
        """Return the partition of a partition that is read.

        Raises:
            NoSubscriptionError: The consumer has no subscription and no partitions.
            NotAssignedError: The partition is not assigned.
        """
        self._check_reading()
        partition = self.assigned.get(partition_of(name))
        if partition is None:
            raise NotAssignedError(
                f"{partition_of(name)} is not assigned to this consumer (any more): it reads "
                f"{', '.join(map(str, sorted(self.assigned))) or 'nothing'}"
            )
        return partition

    def checked(
        self, wanted: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return offsets that the program wants to commit, each with the leader epoch of the partition's position.

        Raises:
            ConfigError: They are no offsets by partition.
            NotAssignedError: A partition is not assigned.
        """
        if not isinstance(wanted, Mapping):
            raise ConfigError(
                f"offsets are given by partition, {{partition: offset}}, not {wanted!r}"
            )
        checked = {}
        for name, at in wanted.items():
            partition = self.assigned_partition(name)
            checked[partition.name] = checked_offset(partition, at)
        return checked


def checked_offset(partition: AssignedPartition, given: object) -> OffsetAndMetadata:
    """Return an offset of the program in the form in which it is committed."""
    if isinstance(given, OffsetAndMetadata):
        return given
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ConfigError(f"{partition.name}: an offset is a number from 0 on, not {given!r}")
    epoch = partition.epoch if given == partition.offset else -1
    return OffsetAndMetadata(given, leader_epoch=epoch)
