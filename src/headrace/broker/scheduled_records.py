"""The schedules of partitions: a produce adds scheduled records to them, and the broker delivers the records when due.

A partition has a schedule from its first scheduled record on. It keeps the schedule when the option of its topic is
switched off: the broker still delivers the pending records. The schedule is a directory of its own (`schedule_of`) in
the log directory of the partition. It is always synced before a record is acknowledged, and deleted with the topic.

A schedule has the replicas and the leader of its partition. Only the leader releases; followers copy the schedule.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.topics import Topics
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.partition_loader import PartitionLoader
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic_names import schedule_of
from headrace.core.deadlines import Deadlines
from headrace.core.log import AppendInfo, check_produced
from headrace.core.replica.role import Role
from headrace.core.scheduled.division import (
    Divided,
    divide,
    may_be_scheduled,
    scheduled_in,
    was_divided,
)
from headrace.core.scheduled.due_queue import DueQueue
from headrace.core.scheduled.recovery import marked_end
from headrace.core.scheduled.schedule import Schedule
from headrace.errors import (
    ApiError,
    CorruptRecordError,
    ErrorCode,
    InvalidRecordError,
    StorageError,
)
from headrace.ports import Journal
from headrace.records.batch import BatchHeader
from headrace.records.expiry import check_expiry
from headrace.records.refusal import produced_records
from headrace.types import Buffer

IN_MEMORY: Final = 1 << 20
"""The greatest number of entries of pending records in memory, over all schedules. An entry takes about 70 bytes."""
LEAST_IN_MEMORY: Final = 1024
"""The number of entries that each schedule may have in memory, however many schedules there are."""
REFRESH_INTERVAL_MS: Final = 60_000
RETRY_INTERVAL_MS: Final = 1_000
"""The time until records that could not be delivered for lack of space are tried again, in milliseconds."""

RECORDS_AT_ONCE: Final = 4096
"""The number of records, over all schedules, after which the rest waits for the next tick: some 20 ms of work."""
_FIRST_OF_ALL: Final = -1
"""The deadline of a schedule with records left over: it is served before all other schedules."""

Scheduled = tuple[Partition, int]
"""A schedule as a partition of its own, and the offset in it that has to become durable."""


class Deliveries:
    """All schedules, and their deadlines."""

    __slots__ = (
        "_deadlines",
        "_followed",
        "_journal",
        "_loader",
        "_moved",
        "_refresh_ms",
        "_replicas",
        "_reported",
        "_schedules",
    )

    def __init__(self, replicas: Replicas, loader: PartitionLoader, journal: Journal) -> None:
        """Begin without schedules for the partitions of `replicas`. `load` has to be called before the first append."""
        self._replicas = replicas
        self._loader = loader
        self._journal = journal
        self._schedules: dict[Partition, Schedule] = {}
        self._deadlines: Deadlines[Partition] = Deadlines()
        self._moved: dict[Partition, None] = {}
        """The partitions whose high watermark, or the high watermark of their schedule, has moved."""
        self._followed: dict[Partition, None] = {}
        """The partitions with schedules that this broker follows."""
        replicas.open_schedule = self._follow
        self._refresh_ms: int | None = None
        self._reported = 0
        """The number of pending records in the last log event."""

    def load(self, topics: Topics, partitions: LocalPartitions, now_ms: int) -> None:
        """Begin the existing schedules of all partitions that this broker leads."""
        for topic in topics:
            for partition in partitions.of(topic):
                if partition is not None and not partition.refusal:
                    self.begin(partition, now_ms)

    def begin(self, partition: Partition, now_ms: int) -> None:
        """Begin the schedule of a partition, if it has one: this broker has become the partition's leader."""
        companion = self._loader.companion(partition, now_ms, create=False)
        if companion is not None:
            self._begin(partition, companion, now_ms)
            return
        damage = partition.log_dir.logs.failed.get(schedule_of(partition.topic_partition))
        if damage is not None:
            self._not_served(partition, damage)

    def role_changed(self, partition: Partition, now_ms: int) -> None:
        """End the schedule of a partition, and begin it again if this broker leads the partition."""
        self.end(partition)
        if partition.refusal:
            return
        try:
            self.begin(partition, now_ms)
        except (ApiError, OSError) as error:
            self._not_served(partition, error)  # the next record for the schedule tries again

    def _follow(self, partition: Partition, now_ms: int) -> Partition | None:
        """Open the schedule of a partition that this broker follows; None if it is damaged.

        A follower cleans only what marks cover: as the leader it would repeat the releases that it does not find.
        """
        if partition.companion is None:
            self._loader.companion(partition, now_ms, create=True)
        if partition not in self._followed and partition.companion is not None:
            self._followed[partition] = None
            partition.log.keep_from = 0
            if self._refresh_ms is None:
                self._refresh_ms = now_ms + REFRESH_INTERVAL_MS
        return partition.companion

    def _keep_followed(self) -> None:
        """Let followers clean what marks cover since the last time."""
        for partition in list(self._followed):
            if partition.role is not Role.FOLLOWER or partition.companion is None:
                del self._followed[partition]
                continue
            try:
                end_offset = marked_end(partition.companion.log)
            except (StorageError, OSError) as error:
                self._not_served(partition, error)
                del self._followed[partition]
                continue
            if end_offset is not None:
                partition.log.keep_from = end_offset

    def end(self, partition: Partition) -> None:
        """End the schedule of a partition, if it has one: this broker leads the partition no longer.

        The next leader delivers the pending records. Until then the partition keeps the releases that no mark covers.
        """
        schedule = self._schedules.pop(partition, None)
        partition.schedules = None
        self._deadlines.cancel(partition)
        self._moved.pop(partition, None)
        if schedule is not None and not partition.gone:
            schedule.end()
            if len(partition.newest.replicas) > 1:
                partition.log.keep_from = 0

    def _begin(self, partition: Partition, companion: Partition, now_ms: int) -> Schedule | None:
        replicas, files = self._replicas, companion.log_dir.files
        partition.schedules = partition
        schedule = Schedule(
            partition.log,
            companion.log,
            DueQueue(files, companion.log.directory),
            append_target=lambda batch, at_ms: replicas.append(
                partition, batch, at_ms, validate=False
            ),
            append=lambda batch, at_ms: replicas.append(companion, batch, at_ms, in_sequence=False),
            journal=self._journal,
            in_memory=companion.log_dir.in_memory,
            is_cut=partition.newest.unclean_epoch >= 0,
        )
        try:
            schedule.load(now_ms)
        except (StorageError, ApiError) as error:
            self._not_served(partition, error)
            return None
        except OSError:
            # Until the schedule is loaded, its releases are unknown, so that none of them may be deleted.
            partition.log.keep_from = 0
            raise
        self._schedules[partition] = schedule
        self._set_deadline(partition, schedule)
        share = max(LEAST_IN_MEMORY, IN_MEMORY // len(self._schedules))
        for each in self._schedules.values():
            each.bound(share)
        if self._refresh_ms is None:
            self._refresh_ms = now_ms + REFRESH_INTERVAL_MS
        return schedule

    def _not_served(self, partition: Partition, error: Exception) -> None:
        reason = str(error)
        if isinstance(error, StorageError):
            # It is unknown which releases have no mark. A deleted one would be delivered again after a repair.
            partition.log.keep_from = 0
            partition.schedules = partition
            reason += "; until its schedule is repaired nothing of the partition is deleted"
        self._journal.error(
            "schedule_not_served", partition=str(partition.topic_partition), reason=reason
        )

    # Produces

    def append(
        self, partition: Partition, records: Buffer, now_ms: int
    ) -> tuple[AppendInfo, Scheduled | None]:
        """Append a produced batch, and schedule those of its records that have a delivery time.

        Returns:
            The result of the append in the partition, and the schedule that has to become durable as well.

        Raises:
            ApiError: The batch is refused, and nothing was scheduled.
        """
        if partition.refusal:
            raise partition.refused()
        schedule = self._schedules.get(partition)
        divided = self._divide(partition, schedule, records, now_ms)
        if divided is None:
            return self._replicas.append(partition, records, now_ms), None
        companion = self._loader.companion(partition, now_ms, create=True)
        if companion is None or len(divided.later) > companion.log.config.segment_bytes:
            raise ApiError(
                ErrorCode.MESSAGE_TOO_LARGE if companion else ErrorCode.KAFKA_STORAGE_ERROR,
                "the records with a delivery time cannot be scheduled",
            )
        if schedule is None:
            try:
                schedule = self._begin(partition, companion, now_ms)
            except OSError as error:
                raise self._replicas.store.refused(partition.log_dir, error, now_ms) from error
            if schedule is None:
                raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the schedule cannot be read")
        info = self._replicas.append(partition, divided.now, now_ms, validate=False)
        end_offset = schedule.add(divided.later, now_ms)
        self._set_deadline(partition, schedule)
        return info, (companion, end_offset)

    def _divide(
        self, partition: Partition, schedule: Schedule | None, records: Buffer, now_ms: int
    ) -> Divided | None:
        """Divide a batch. A retry is divided like the first attempt, even if the options of the topic have changed."""
        if not may_be_scheduled(records):
            return None
        repeats_divided = self._repeats_divided(partition, schedule, records, now_ms)
        delays = partition.max_delay_ms is not None if repeats_divided is None else repeats_divided
        if not delays:
            return None
        check_produced(records, partition.log.config, now_ms)
        data = produced_records(BatchHeader.parse(records), records)
        if partition.log.config.expires:
            check_expiry(records, data)
        return divide(
            records,
            data=data,
            now_ms=now_ms if schedule is None else schedule.clock(now_ms),
            max_delay_ms=None if repeats_divided else partition.max_delay_ms,
        )

    def _repeats_divided(
        self, partition: Partition, schedule: Schedule | None, records: Buffer, now_ms: int
    ) -> bool | None:
        """Return whether the first attempt of this batch was divided; None if it is no retry, or that is unknown."""
        log, header = partition.log, BatchHeader.parse(records)
        first = log.producers.repeated(
            header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence
        )
        if first is None or first.base_offset < log.log_start_offset:
            return None
        end_offset = log.log_end_offset
        try:
            found = log.read(first.base_offset, max_bytes=1, up_to=end_offset, minimum_one=True)
            batch = b"" if found is None else found.read()
        except OSError as error:
            raise self._replicas.store.refused(partition.log_dir, error, now_ms) from error
        if not batch:
            return None
        stored = BatchHeader.parse(batch)
        if stored.base_offset != first.base_offset:
            return None
        if stored.is_control or stored.records_count == header.records_count:
            return stored.is_control
        # The batch was divided or cleaned, or both.
        check_produced(records, log.config, now_ms)
        try:
            delayed = scheduled_in(header, records)
            if schedule is not None and schedule.knows(header, len(delayed)):
                return True
            return was_divided(delayed, batch, compacts=log.config.compacts)
        except CorruptRecordError as error:
            raise InvalidRecordError(str(error)) from error

    @property
    def in_memory(self) -> int:
        """The number of entries of pending records in memory."""
        return sum(schedule.in_memory for schedule in self._schedules.values())

    # Time

    def advanced(self, partition: Partition) -> None:
        """Register that a high watermark has moved: of a partition with a schedule, or of the schedule itself."""
        owner = partition.schedules
        schedule = None if owner is None else self._schedules.get(owner)
        if owner is None or schedule is None:
            return
        # Without a deadline, the next records due wait for the sync of the schedule.
        if schedule.unsettled or (schedule.pending and owner not in self._deadlines):
            self._moved[owner] = None

    @property
    def next_deadline_ms(self) -> int | None:
        """The time at which `tick` has something to do next; None if there is no such time."""
        if self._moved:
            return 0
        earliest, refresh = self._deadlines.next_ms, self._refresh_ms
        if refresh is not None and (earliest is None or refresh < earliest):
            return refresh
        return earliest

    def tick(self, now_ms: int) -> None:
        """Deliver the records that are due."""
        if not self._schedules and not self._followed:
            if self._refresh_ms is not None:  # the topic of the last one was deleted
                self._refresh_ms, self._moved, self._deadlines = None, {}, Deadlines()
            return
        moved, self._moved = self._moved, {}
        due = dict.fromkeys(self._deadlines.expire(now_ms))
        left = RECORDS_AT_ONCE
        for partition in {**moved, **due}:
            if left <= 0:
                self._deadlines.set(partition, _FIRST_OF_ALL)
                continue
            schedule = self._schedule(partition)
            if schedule is not None:
                left -= self._work(partition, schedule, now_ms)
        if self._refresh_ms is not None and now_ms >= self._refresh_ms:
            self._refresh_ms = now_ms + REFRESH_INTERVAL_MS
            self._refresh(now_ms)

    def _schedule(self, partition: Partition) -> Schedule | None:
        if partition.refusal:
            self.end(partition)
        return self._schedules.get(partition)

    def _work(self, partition: Partition, schedule: Schedule, now_ms: int) -> int:
        """Deliver the due records of one partition. Return how many records were handled."""
        released = 0
        try:
            released = schedule.work(now_ms)
        except ApiError as error:
            if not partition.refusal:
                self._journal.warning(
                    "release_put_off",
                    partition=str(partition.topic_partition),
                    reason=error.message,
                )
                self._deadlines.set(partition, now_ms + RETRY_INTERVAL_MS)
            return released
        except StorageError as error:
            self._not_served(partition, error)
            self._schedules.pop(partition)
            return released
        except OSError as error:
            self._replicas.store.refused(partition.log_dir, error, now_ms)
            self._deadlines.set(partition, now_ms + RETRY_INTERVAL_MS)
            return released
        self._set_deadline(partition, schedule)
        return released

    def _set_deadline(self, partition: Partition, schedule: Schedule) -> None:
        deadline_ms = schedule.next_deadline_ms
        if deadline_ms is None:
            self._deadlines.cancel(partition)
        else:
            self._deadlines.set(partition, deadline_ms)

    def _refresh(self, now_ms: int) -> None:
        self._keep_followed()
        pending = 0
        for partition in list(self._schedules):
            schedule = self._schedule(partition)
            if schedule is not None:
                pending += schedule.pending
                try:
                    schedule.refresh(now_ms)
                except ApiError:
                    continue  # without space the mark is written later
        if pending != self._reported:
            self._reported = pending
            self._journal.info("delayed_records", pending=pending, partitions=len(self._schedules))

    # What clients can see

    def waiting(self, partition: Partition) -> tuple[int, int] | None:
        """Return the number of pending records of a partition, and the first delivery time (-1 if there is none).

        Both are -1 while the schedule is not served. The result is None for a partition that never had scheduled
        records and does not accept them.

        Raises:
            ApiError: COORDINATOR_LOAD_IN_PROGRESS: the broker is still reading the schedule after a start.
        """
        schedule = self._schedules.get(partition)
        if schedule is None:
            if partition.schedules is not None:
                return -1, -1
            return None if partition.max_delay_ms is None else (0, -1)
        if not schedule.loaded:
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                "the scheduled records are still being counted",
            )
        earliest_ms = schedule.earliest_ms
        return schedule.pending, -1 if earliest_ms is None else earliest_ms

    def pending(self, partition: Partition) -> int:
        """Return how many records of a partition are pending."""
        schedule = self._schedules.get(partition)
        return 0 if schedule is None else schedule.pending
