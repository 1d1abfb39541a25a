"""The decisions of one worker: which records to handle, what to commit, when to pause and release partitions.

The core does no I/O and reads no clock. The worker (`running/worker.py`) passes in records, the outcomes of jobs,
commits, revocations and the time. It performs the actions that the core returns. Three other modules of this package
belong to the core: `scheduler.py` decides which job runs next, `delivery.py` has the decisions that depend on the
delivery mode, and `revocation.py` decides the order of steps in which partitions are released.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters.letter_headers import is_for
from headrace.types import TopicPartition
from headrace.workers.core.delivery import DeliveryMode
from headrace.workers.core.origins import Origins
from headrace.workers.core.revocation import Revocation
from headrace.workers.core.scheduler import Scheduler


class Pause(NamedTuple):
    """Return no records of a partition until `Resume`."""

    topic_partition: TopicPartition


class Resume(NamedTuple):
    """Return records of a partition again."""

    topic_partition: TopicPartition


class Seek(NamedTuple):
    """Read a partition again from an offset that was read and not committed."""

    topic_partition: TopicPartition
    offset: int


SourceAction = Pause | Resume | Seek
"""An action that the worker performs on its record source."""


class Intake(NamedTuple):
    """The result of `WorkerCore.on_records`."""

    actions: list[SourceAction]
    skipped: int
    """The number of records that were skipped because they are for another group."""


class WorkerCore:
    """The state of one worker. Every method that needs the time takes it, in milliseconds since 1970."""

    def __init__(
        self,
        mode: DeliveryMode,
        scheduler: Scheduler,
        origins: Origins,
        *,
        max_buffered: int,
        waiting_calls: Callable[[TopicPartition], int] | None = None,
    ) -> None:
        """Begin without partitions.

        Args:
            mode: The delivery mode.
            scheduler: The scheduler of the worker's jobs.
            origins: Knows the worker's retry topics, and the time at which a record in one is due.
            max_buffered: The number of unfinished records at which a partition is paused.
            waiting_calls: Returns the number of handler calls of a partition that wait for their transaction. A
                partition is paused at `max_buffered` of them. None if the worker uses no transactions.
        """
        self.mode = mode
        self.scheduler = scheduler
        self._origins = origins
        self._max_buffered = max_buffered
        self._waiting_calls = waiting_calls
        self.stopping = False
        """Whether the worker is about to end."""
        self.full: set[TopicPartition] = set()
        """Partitions that are paused because too many of their records are unfinished."""
        self.held: dict[TopicPartition, int] = {}
        """Partitions of retry topics that are paused, each with the time at which its next record is due."""
        self.committed: dict[TopicPartition, int] = {}
        """The offset that was committed last, by partition."""

    # Records in

    def on_records(self, records: Sequence[ConsumerRecord], now_ms: int) -> Intake:
        """Take in records that were read.

        When the worker stops, records that are not committed yet are ignored: their next owner reads them again.
        """
        if self.stopping and self.mode.drops_late_records:
            return Intake([], 0)
        actions: list[SourceAction] = []
        wanted: list[ConsumerRecord] = []
        skipped = 0
        scheduler, group = self.scheduler, self._origins.group
        may_wait = self._origins.has_retry_topics
        for record in records:
            if may_wait and self._hold(record, now_ms, actions):
                continue
            if record.headers and not is_for(record, group):
                scheduler.add(wanted)
                wanted = []
                scheduler.skip(record)
                skipped += 1
            else:
                wanted.append(record)
        scheduler.add(wanted)
        for topic, partition in {record[:2]: None for record in records}:
            name = TopicPartition(topic, partition)
            if name not in self.full and self._is_full(name):
                self.full.add(name)
                actions.append(Pause(name))
        return Intake(actions, skipped)

    def _hold(self, record: ConsumerRecord, now_ms: int, actions: list[SourceAction]) -> bool:
        """Return whether a record must wait in its retry topic. Its whole partition then waits with it."""
        if not self._origins.is_in_retry_topic(record):
            return False
        name = TopicPartition(record.topic, record.partition)
        if name in self.held:
            return True  # an earlier record waits: this one is read again after it
        due_ms = self._origins.due_ms(record, now_ms)
        if due_ms <= now_ms or not is_for(record, self._origins.group):
            return False
        self.held[name] = due_ms
        actions += [Seek(name, record.offset), Pause(name)]
        return True

    def read_again(
        self, records: Iterable[ConsumerRecord], assigned: Collection[TopicPartition]
    ) -> list[SourceAction]:
        """Return the actions that read records again, because their offsets could not be committed."""
        first: dict[TopicPartition, int] = {}
        for record in records:
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        return [Seek(name, offset) for name, offset in first.items() if name in assigned]

    # Time and finished jobs in

    def on_time(self, now_ms: int) -> list[SourceAction]:
        """Resume the partitions of retry topics whose next record is due."""
        actions: list[SourceAction] = []
        for name in [name for name, due_ms in self.held.items() if due_ms <= now_ms]:
            del self.held[name]
            if name not in self.full:
                actions.append(Resume(name))
        return actions

    def due_ms(self) -> int | None:
        """Return when the next record is due, in milliseconds since 1970; None if no record waits for a time."""
        moments = list(self.held.values())
        if not self.scheduler.saturated and (due_ms := self.scheduler.next_deadline_ms) is not None:
            moments.append(due_ms)
        return min(moments) if moments else None

    def make_room(self, name: TopicPartition) -> list[SourceAction]:
        """Resume a partition that was full, once half of its unfinished records are finished."""
        if name not in self.full or not self.scheduler.roomy(name) or self._is_full(name):
            return []
        self.full.discard(name)
        return [] if name in self.held else [Resume(name)]

    def _is_full(self, name: TopicPartition) -> bool:
        if self._waiting_calls is not None and self._waiting_calls(name) >= self._max_buffered:
            return True
        return self.scheduler.full(name)

    # Commits

    def to_commit(
        self,
        partitions: Collection[TopicPartition] | None,
        positions: Mapping[TopicPartition, int | None],
    ) -> dict[TopicPartition, int]:
        """Return the offsets to commit: those that differ from the committed offsets.

        Args:
            partitions: The partitions to commit; None for all.
            positions: By assigned partition, the offset after the last record that was read.
        """
        wanted: dict[TopicPartition, int] = {}
        for name, finished in self.scheduler.positions().items():
            if name not in positions or (partitions is not None and name not in partitions):
                continue
            at = finished
            if not self.stopping and not self.scheduler.unfinished([name]):
                at = max(at, positions[name] or 0)  # transaction markers may follow the last record
            if self.committed.get(name) != at:
                wanted[name] = at
        return wanted

    def beginnings(self) -> list[TopicPartition]:
        """Return the partitions without a committed offset."""
        return [name for name in self.scheduler.partitions if name not in self.committed]

    def on_committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Record what the source has committed."""
        self.committed.update(offsets)

    def on_transaction(
        self, offsets: Mapping[TopicPartition, int], assigned: Collection[TopicPartition]
    ) -> list[SourceAction]:
        """Record what a transaction has committed, and resume partitions that its handler calls kept paused."""
        self.committed.update((name, at) for name, at in offsets.items() if name in assigned)
        return [action for name in offsets for action in self.make_room(name)]

    # Partitions out

    def stop(self) -> None:
        """Prepare for the end of the worker. All partitions are revoked after this."""
        self.stopping = True
        self.mode.stop(self.scheduler, self.scheduler.partitions)

    def revoke(
        self,
        partitions: Collection[TopicPartition],
        now_s: float,
        *,
        drain_timeout_s: float,
        commit_timeout_s: float,
    ) -> Revocation:
        """Begin to release partitions, and return the object that decides the steps.

        Args:
            partitions: The partitions.
            now_s: The time in seconds, by the clock that `Revocation.next` uses.
            drain_timeout_s: How long to wait for handlers.
            commit_timeout_s: How long to repeat a commit that fails.
        """
        return Revocation(
            self.mode,
            self.scheduler,
            partitions,
            drain_until_s=now_s + drain_timeout_s,
            commit_timeout_s=commit_timeout_s,
        )

    def lose(self, partitions: Collection[TopicPartition]) -> None:
        """Begin no further job of partitions that already belong to other members."""
        self.scheduler.stop(partitions)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions that belong to other members now."""
        self.scheduler.drop(partitions)
        for name in partitions:
            self.held.pop(name, None)
            self.full.discard(name)
            self.committed.pop(name, None)


def offsets_after(records: Iterable[ConsumerRecord]) -> dict[TopicPartition, int]:
    """Return, by partition, the offset after the last of some records."""
    return {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}
