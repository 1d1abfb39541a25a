"""The scheduler: which records a worker handles next, and which offset of each partition it may commit.

The scheduler does no I/O. Its input is records, outcomes and the time; its output is jobs and offsets.

A lane is a queue of records that must be handled one after another: the records of a partition, or those of a key. With
ordering "none" the lane of a partition is shared: several of its jobs run at the same time. A failed record stays at
the head of its lane until it is due again. So retries keep the order, and only one lane waits for them.

The offset to commit is the first offset that is not finished. Records behind it may be finished, and are handled again
after a crash. No record before it is unfinished.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Final, Literal

from headrace.clients.consumer.records import ConsumerRecord
from headrace.types import TopicPartition

Ordering = Literal["partition", "key", "none"]

_WHOLE: Final = b""
"""The key of the lane that contains all records of a partition."""
_SHARED: Final = None
"""The key of a shared lane, whose records have no order. Records without a key are in it, too."""


class Job:
    """One call of the handler, for one record, or for a batch of consecutive records of one lane."""

    __slots__ = (
        "attempt",
        "began_s",
        "error",
        "in_thread",
        "lane",
        "let_go",
        "records",
        "refused_ms",
        "slow_s",
        "topic_partition",
        "waits",
    )

    def __init__(self, lane: _Lane, records: list[ConsumerRecord]) -> None:
        self.topic_partition = lane.topic_partition
        self.lane = lane
        self.records = records
        self.attempt = 1
        """The number of the attempt, from 1."""
        self.error: Exception | None = None
        """The failure of the last attempt. If it is set, the record is only written to another topic."""
        self.began_s: float | None = None
        """The start of the handler, in seconds of the event loop's clock; None while no handler runs."""
        self.slow_s = 0.0
        """The run time of the handler, in seconds, when it was logged last."""
        self.refused_ms: int | None = None
        """The time of the first failed write to another topic, in milliseconds since 1970; None if none failed."""
        self.waits = False
        """Whether the job does not run: it waits for its next attempt, or it was abandoned."""
        self.let_go = False
        """Whether the job was cancelled because its partition is released. Its records are not finished."""
        self.in_thread = False
        """Whether the handler runs in a thread at this moment. It cannot be cancelled there."""


class _Lane:
    __slots__ = ("alone", "attempt", "jobs", "key", "queue", "shared", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, key: Hashable) -> None:
        self.topic_partition = topic_partition
        self.key = key
        self.shared = key is _SHARED
        """Whether several jobs of the lane may run at once, because its records have no order."""
        self.queue: deque[ConsumerRecord] = deque()
        """The records of the lane that are in no job yet."""
        self.jobs: set[Job] = set()
        """Jobs that run or wait for their next attempt."""
        self.alone = 0
        """The number of records at the head that are handled one by one, because their batch has failed."""
        self.attempt = 1
        """The number of the attempt for those records."""


class _Partition:
    """The records of one partition that were taken in and are not finished."""

    __slots__ = ("lanes", "next_offset", "open")

    def __init__(self) -> None:
        self.lanes: dict[Hashable, _Lane] = {}
        self.open: dict[int, None] = {}
        """Offsets that are not finished, in the order of the log. The values have no meaning."""
        self.next_offset = -1
        """One past the last record taken in; -1 before the first."""

    @property
    def position(self) -> int:
        """The first offset that is not finished."""
        return next(iter(self.open), self.next_offset)


class Scheduler:
    """The unfinished records of one worker, in partitions and lanes."""

    def __init__(
        self,
        *,
        ordering: Ordering,
        concurrency: int,
        batch: int | None = None,
        max_buffered: int = 1000,
    ) -> None:
        """Prepare a scheduler.

        Args:
            ordering: Which records are handled one after another: those of a partition, those of a key, or none.
            concurrency: The most jobs that run at once.
            batch: The most records of a job; None is one record.
            max_buffered: The number of unfinished records at which a partition is `full`.
        """
        self._ordering = ordering
        self._concurrency = concurrency
        self._batch = batch or 1
        self._max_buffered = max_buffered
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._runnable: deque[_Lane] = deque()
        """Lanes from which a job can begin. The lane that has waited longest is first."""
        self._later: list[tuple[int, int, Job]] = []
        """A heap of jobs that wait for their next attempt, with their due time in milliseconds and a unique number."""
        self._numbers = itertools.count()
        self.running = 0
        """The number of jobs that have begun and have no outcome."""

    # Records in

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        """Take in records. The records of a partition must be in the order of their offsets."""
        name = TopicPartition("", -1)
        partition = _Partition()
        for record in records:
            if record.partition != name.partition or record.topic != name.topic:
                name = TopicPartition(record.topic, record.partition)
                partition = self._partition(name)
            partition.open[record.offset] = None
            partition.next_offset = record.offset + 1
            key = self._lane_key(record)
            lane = partition.lanes.get(key)
            if lane is None:
                lane = partition.lanes[key] = _Lane(name, key)
            if not lane.queue and (lane.shared or not lane.jobs):
                self._runnable.append(lane)
            lane.queue.append(record)

    def _lane_key(self, record: ConsumerRecord) -> Hashable:
        if self._ordering == "partition":
            return _WHOLE
        return record.key if self._ordering == "key" else _SHARED

    def skip(self, record: ConsumerRecord) -> None:
        """Count a record as finished without a job, because it is for another group."""
        name = TopicPartition(record.topic, record.partition)
        self._partition(name).next_offset = record.offset + 1

    def _partition(self, name: TopicPartition) -> _Partition:
        partition = self._partitions.get(name)
        if partition is None:
            partition = self._partitions[name] = _Partition()
        return partition

    def full(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition has so many unfinished records that it should be paused."""
        partition = self._partitions.get(topic_partition)
        return partition is not None and len(partition.open) >= self._max_buffered

    def roomy(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition has at most half the unfinished records at which it is full."""
        partition = self._partitions.get(topic_partition)
        return partition is None or 2 * len(partition.open) <= self._max_buffered

    @property
    def saturated(self) -> bool:
        """Whether as many jobs run as `concurrency` allows."""
        return self.running >= self._concurrency

    # Jobs out, outcomes in

    def take(self, now_ms: int) -> Iterator[Job]:
        """Yield the jobs that begin now. They count as running."""
        while (job := self.take_one(now_ms)) is not None:
            yield job

    def take_one(self, now_ms: int) -> Job | None:
        """Return one job that begins now, and count it as running; None if no job can begin."""
        if self.running >= self._concurrency:
            return None
        job = (self._due(now_ms) if self._later else None) or self._next()
        if job is not None:
            self.running += 1
        return job

    def _due(self, now_ms: int) -> Job | None:
        while self._later and self._later[0][0] <= now_ms:
            job = heapq.heappop(self._later)[2]
            if self.is_current(job):
                job.waits = False
                return job
        return None

    def _next(self) -> Job | None:
        while self._runnable:
            lane = self._runnable.popleft()
            queue = lane.queue
            if not queue:
                continue  # its partition was dropped
            count = 1 if lane.alone else min(self._batch, len(queue))
            first = queue.popleft()
            rest = [queue.popleft() for _ in range(count - 1)] if count > 1 else ()
            job = Job(lane, [first, *rest])
            if lane.alone:
                lane.alone -= 1
                job.attempt = lane.attempt
            lane.jobs.add(job)
            if lane.shared and queue:
                self._runnable.append(lane)
            return job
        return None

    @property
    def next_deadline_ms(self) -> int | None:
        """The time of the next retry, in milliseconds since 1970; None if no job waits for one."""
        while self._later and not self.is_current(self._later[0][2]):
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    def finish(self, job: Job) -> None:
        """Finish a job's records: they need not be handled again."""
        self.running -= 1
        if not self.is_current(job):
            return  # its partition was released
        partition = self._partitions[job.topic_partition]
        for record in job.records:
            partition.open.pop(record.offset, None)
        self._free(partition, job)

    def retry(self, job: Job, due_ms: int) -> None:
        """Handle a job's records again at a time, in milliseconds since 1970. Their lane waits.

        The attempt counts up only if the handler runs again: a job with an error repeats a write to another topic.
        """
        self.running -= 1
        if self.is_current(job):
            job.attempt += job.error is None
            job.waits = True
            heapq.heappush(self._later, (due_ms, next(self._numbers), job))

    def split(self, job: Job) -> None:
        """Handle the records of a failed batch again at once, one by one, so that only the faulty record fails."""
        self.running -= 1
        if not self.is_current(job):
            return
        lane = job.lane
        lane.jobs.remove(job)
        if not lane.shared or not lane.queue:
            self._runnable.append(lane)
        lane.queue.extendleft(reversed(job.records))
        lane.alone += len(job.records)
        lane.attempt = job.attempt

    def abandon(self, job: Job) -> None:
        """End a job without an outcome: its records stay unfinished, and its lane waits for ever."""
        self.running -= 1
        job.waits = True

    def is_current(self, job: Job) -> bool:
        """Whether a job's outcome still counts: its partition was not dropped since the job began."""
        return job in job.lane.jobs

    def _free(self, partition: _Partition, job: Job) -> None:
        lane = job.lane
        lane.jobs.remove(job)
        if lane.queue:
            if not lane.shared:
                self._runnable.append(lane)
        elif not lane.jobs:
            del partition.lanes[lane.key]

    # Partitions

    def positions(self) -> dict[TopicPartition, int]:
        """Return the offset to commit, by partition."""
        return {name: partition.position for name, partition in self._partitions.items()}

    def first_unfinished(self) -> dict[TopicPartition, int]:
        """Return the first unfinished offset, by partition. Partitions without unfinished records are left out."""
        return {name: next(iter(each.open)) for name, each in self._partitions.items() if each.open}

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions of which records were taken in."""
        return list(self._partitions)

    def busy(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether a job of some partitions runs. A job that waits for its next attempt does not run."""
        return any(
            not job.waits
            for name in partitions
            if name in self._partitions
            for lane in self._partitions[name].lanes.values()
            for job in lane.jobs
        )

    def unfinished(self, partitions: Iterable[TopicPartition]) -> int:
        """Return the number of unfinished records in some partitions."""
        return sum(
            len(self._partitions[name].open) for name in partitions if name in self._partitions
        )

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Begin no further job of some partitions. Waiting records and retries stay unfinished."""
        for name in partitions:
            partition = self._partitions.get(name)
            if partition is None:
                continue
            for lane in list(partition.lanes.values()):
                lane.queue.clear()
                lane.alone = 0
                lane.jobs = {job for job in lane.jobs if not job.waits}
                if not lane.jobs:
                    del partition.lanes[lane.key]

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions. The outcomes of their running jobs have no effect."""
        for name in partitions:
            partition = self._partitions.pop(name, None)
            if partition is not None:
                for lane in partition.lanes.values():
                    lane.queue.clear()
                    lane.jobs.clear()

    @property
    def idle(self) -> bool:
        """Whether every record that was taken in is finished."""
        return not any(partition.open for partition in self._partitions.values())
