"""Where a consumer is, where it goes on, and where partitions begin and end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from headrace.clients.consumer.cursor import Cursor
from headrace.clients.consumer.locator import Locator
from headrace.clients.consumer.subscription import partition_of
from headrace.clients.engine import Engine
from headrace.clients.flows.effects import Flow, Wait
from headrace.clients.flows.list_offsets import EARLIEST, LATEST, ListedOffset, list_offsets
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.errors import ConfigError, NotAssignedError, TransportError
from headrace.types import TopicPartition


class Places:
    """Positions in the partitions that one consumer reads, and offsets in any."""

    def __init__(
        self,
        engine: Engine,
        cursors: Mapping[TopicPartition, Cursor],
        locator: Locator,
        isolation_level: int,
        *,
        check: Callable[[], object],
        check_reading: Callable[[], object],
        raise_failure: Callable[[], object],
    ) -> None:
        """Prepare the places of a consumer.

        Args:
            engine: What runs it.
            cursors: What it reads.
            locator: What finds positions.
            isolation_level: What it may read.
            check: Raises an exception when the consumer is closed.
            check_reading: Raises an exception when it is closed, or reads nothing.
            raise_failure: Raises what has failed in the background.
        """
        self._engine = engine
        self.cursors = cursors
        self._locator = locator
        self._isolation_level = isolation_level
        self._check = check
        self._check_reading = check_reading
        self._raise_failure = raise_failure

    def seek(self, name: TopicPartition, offset: int) -> None:
        """Go on from another offset of a partition that is read."""
        cursor = self.cursor(name)
        cursor.move(checked_offset(cursor, offset).offset)
        self._engine.notify()

    def seek_to(self, partitions: Iterable[TopicPartition] | None, target: int) -> Flow[None]:
        """Go to EARLIEST, LATEST or a time; where no record is as late as the time, to the end."""
        cursors = self.cursors_of(partitions)
        found = yield from self.listed({cursor.name: target for cursor in cursors})
        late = [name for name, listed in found.items() if listed.offset < 0]
        found |= yield from self.listed(dict.fromkeys(late, LATEST))
        for cursor in cursors:
            if self.cursors.get(cursor.name) is cursor:
                cursor.move(found[cursor.name].offset)

    def position(self, name: TopicPartition, timeout_ms: int) -> Flow[int]:
        """Return the offset of the next record that polls will return, once it is known."""
        return (yield from self._known(name, self._engine.now_ms + timeout_ms))

    def _known(self, name: TopicPartition, until_ms: int) -> Flow[int]:
        began_ms = self._engine.now_ms
        while (offset := self.cursor(name).offset) is None:
            self._raise_failure()
            self._locator.work()
            if self._engine.now_ms >= until_ms:
                text = f"the position of {name} was not found in time"
                raise TransportError(self._engine.trouble.explain(text, began_ms))
            yield Wait(until_ms)
        return offset

    def positions(self) -> dict[TopicPartition, int | None]:
        """Return the position in every partition that is read, as far as it is known."""
        return {name: self.cursors[name].offset for name in sorted(self.cursors)}

    def known_ends(self) -> dict[TopicPartition, int]:
        """Return the high watermarks that fetches told of; nothing is asked for."""
        cursors = self.cursors.items()
        return {
            name: cursor.high_watermark for name, cursor in cursors if cursor.high_watermark >= 0
        }

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out no records of these partitions until `resume`."""
        for cursor in self.cursors_of(partitions):
            cursor.paused = True
            cursor.release()

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out records of these partitions again."""
        for cursor in self.cursors_of(partitions):
            cursor.paused = False
        self._engine.notify()

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused."""
        return sorted(name for name, cursor in self.cursors.items() if cursor.paused)

    def lag(
        self, partitions: Iterable[TopicPartition] | None, timeout_ms: int
    ) -> Flow[dict[TopicPartition, int]]:
        """Return how many offsets lie between each position and the end."""
        names = [cursor.name for cursor in self.cursors_of(partitions)]
        until_ms = self._engine.now_ms + timeout_ms
        positions = {}
        for name in names:
            positions[name] = yield from self._known(name, until_ms)
        ends = yield from self.listed(dict.fromkeys(names, LATEST))
        return {name: max(0, ends[name].offset - positions[name]) for name in names}

    def offsets_for(
        self, targets: Mapping[TopicPartition, int]
    ) -> Flow[dict[TopicPartition, ListedOffset]]:
        """Find EARLIEST, LATEST, or the first record not older than a time; offset -1 where there is none."""
        return (yield from self.listed({partition_of(n): at for n, at in targets.items()}))

    def begin_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> Flow[dict[TopicPartition, int]]:
        """Return the first offset of each partition."""
        found = yield from self.offsets_for(dict.fromkeys(partitions, EARLIEST))
        return {name: listed.offset for name, listed in found.items()}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> Flow[dict[TopicPartition, int]]:
        """Return one past the last offset of each partition, as far as this consumer may read."""
        found = yield from self.offsets_for(dict.fromkeys(partitions, LATEST))
        return {name: listed.offset for name, listed in found.items()}

    def listed(
        self, targets: Mapping[TopicPartition, int]
    ) -> Flow[dict[TopicPartition, ListedOffset]]:
        """Ask the leaders; without partitions nobody is asked."""
        self._check()
        for name, at in targets.items():
            if not isinstance(at, int):
                raise ConfigError(f"{name}: a time is a whole number of milliseconds, not {at!r}")
        if not targets:
            return {}
        return (yield from list_offsets(self._engine.state, targets, self._isolation_level))

    def cursors_of(self, partitions: Iterable[TopicPartition] | None) -> list[Cursor]:
        """Return the cursors of these partitions, or (None) of all that are read.

        Raises:
            NoSubscriptionError: Nothing is read.
            NotAssignedError: One is not read.
        """
        self._check_reading()
        return [self.cursor(name) for name in (self.cursors if partitions is None else partitions)]

    def cursor(self, name: TopicPartition) -> Cursor:
        """Return the cursor of a partition that is read.

        Raises:
            NoSubscriptionError: Nothing is read.
            NotAssignedError: It is not read.
        """
        self._check_reading()
        cursor = self.cursors.get(partition_of(name))
        if cursor is None:
            raise NotAssignedError(
                f"{partition_of(name)} is not assigned to this consumer (any more): it reads "
                f"{', '.join(map(str, sorted(self.cursors))) or 'nothing'}"
            )
        return cursor


def checked_offset(cursor: Cursor, given: object) -> OffsetAndMetadata:
    """Return an offset that the program gave, as it would be committed."""
    if isinstance(given, OffsetAndMetadata):
        return given
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ConfigError(f"{cursor.name}: an offset is a number from 0 on, not {given!r}")
    epoch = cursor.epoch if given == cursor.offset else -1
    return OffsetAndMetadata(given, leader_epoch=epoch)
