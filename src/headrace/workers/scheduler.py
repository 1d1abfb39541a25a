"""Which records a worker handles next, and how far each partition is finished.

It decides and does no I/O: records, outcomes and the time come in; jobs and positions come out. A lane is a line of
records that must be handled one after another: all of a partition, all of a key, or each record by itself. A failed
record stays at the head of its lane until it is due again, so order holds through retries and only its own lane waits.
A partition's position is the first offset that is not finished: what lies behind it may be done, and is handled again
after a crash, but nothing before it is missing.
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
_SHARED: Final = None
"""The lane of a partition's records that have no order among them."""


class Job:
    """One call of the handler: a record, or a batch of one partition's records that follow each other."""

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
        """When its handler began, in seconds of the event loop's clock; None while no handler runs."""
        self.slow_s = 0.0
        """How long the handler had run, in seconds, when that was logged last."""
        self.refused_ms: int | None = None
        """When a write to another topic first failed, in milliseconds since 1970; None if none failed."""
        self.waits = False
        """Whether it waits for its next attempt."""
        self.let_go = False
        """Whether nobody waits for it any more: however it ends, its records are not finished."""
        self.in_thread = False
        """Whether its handler runs in a thread at this moment, where nothing can cancel it."""


class _Lane:
    __slots__ = ("alone", "attempt", "jobs", "key", "queue", "shared", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, key: Hashable) -> None:
        self.topic_partition = topic_partition
        self.key = key
        self.shared = key is _SHARED
        """Whether several of its jobs may run at once: its records have no order."""
        self.queue: deque[ConsumerRecord] = deque()
        self.jobs: set[Job] = set()
        """Jobs that run or wait for their next attempt."""
        self.alone = 0
        """How many records at the head are handled one by one, after their batch has failed."""
        self.attempt = 1
        """Which attempt that is for them."""


class _Partition:
    """The records of one partition that were taken in, and which of them are finished."""

    __slots__ = ("lanes", "next_offset", "open")

    def __init__(self) -> None:
        self.lanes: dict[Hashable, _Lane] = {}
        self.open: dict[int, None] = {}
        """Offsets that are not finished, in the order of the log."""
        self.next_offset = -1
        """One past the last record taken in."""

    @property
    def position(self) -> int:
        """The first offset that is not finished."""
        return next(iter(self.open), self.next_offset)


class Scheduler:
    """The records of one worker."""

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
            ordering: What is handled one after another: a partition's records, a key's, or none.
            concurrency: How many jobs run at once.
            batch: At most so many records a job; None is one record a job.
            max_buffered: Records of one partition that are open at once; then the partition is `full`.
        """
        self._ordering = ordering
        self._concurrency = concurrency
        self._batch = batch or 1
        self._max_buffered = max_buffered
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._runnable: deque[_Lane] = deque()
        """Lanes with records and no job, those first that have waited longest."""
        self._later: list[tuple[int, int, Job]] = []
        self._numbers = itertools.count()
        self.running = 0
        """Jobs that were handed out and have no outcome."""

    # Records in

    def add(self, records: Iterable[ConsumerRecord]) -> None:
        """Take in records, in the order of their partitions."""
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
        """Take note of a record that is not to be handled here."""
        name = TopicPartition(record.topic, record.partition)
        self._partition(name).next_offset = record.offset + 1

    def _partition(self, name: TopicPartition) -> _Partition:
        partition = self._partitions.get(name)
        if partition is None:
            partition = self._partitions[name] = _Partition()
        return partition

    def full(self, topic_partition: TopicPartition) -> bool:
        """Whether no more records of a partition should be taken in for now."""
        partition = self._partitions.get(topic_partition)
        return partition is not None and len(partition.open) >= self._max_buffered

    def roomy(self, topic_partition: TopicPartition) -> bool:
        """Whether a partition that was full is half empty again."""
        partition = self._partitions.get(topic_partition)
        return partition is None or 2 * len(partition.open) <= self._max_buffered

    @property
    def saturated(self) -> bool:
        """Whether as many jobs run as may."""
        return self.running >= self._concurrency

    # Jobs out, outcomes in

    def take(self, now_ms: int) -> Iterator[Job]:
        """Yield the jobs that are to start now; each is running from then on."""
        while (job := self.take_one(now_ms)) is not None:
            yield job

    def take_one(self, now_ms: int) -> Job | None:
        """Return a job that is to start now, which is running from then on; None if none is."""
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
        """When the next retry is due; None when there is none."""
        while self._later and not self.is_current(self._later[0][2]):
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    def finish(self, job: Job) -> None:
        """Take note that a job's records need not be handled again, for whatever reason."""
        self.running -= 1
        if not self.is_current(job):
            return  # its partition is another's by now
        partition = self._partitions[job.topic_partition]
        for record in job.records:
            partition.open.pop(record.offset, None)
        self._free(partition, job)

    def retry(self, job: Job, due_ms: int) -> None:
        """Handle a job's records again at a later time; their lane waits."""
        self.running -= 1
        if self.is_current(job):
            job.attempt += job.error is None
            job.waits = True
            heapq.heappush(self._later, (due_ms, next(self._numbers), job))

    def split(self, job: Job) -> None:
        """Handle a batch's records again at once, one by one, so that one does not fail them all."""
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
        """Take note that a job ended without an outcome: its records stay open and its lane stands still."""
        self.running -= 1
        job.waits = True

    def is_current(self, job: Job) -> bool:
        """Whether a job's outcome still matters: its partition has not been dropped since it began."""
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
        """Return how far each partition is finished: the offset to commit."""
        return {name: partition.position for name, partition in self._partitions.items()}

    def first_unfinished(self) -> dict[TopicPartition, int]:
        """Return the first offset that is not finished, of each partition that has one."""
        return {name: next(iter(each.open)) for name, each in self._partitions.items() if each.open}

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that records were taken in of."""
        return list(self._partitions)

    def busy(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether a job of these partitions is running (one that waits for its next attempt is not)."""
        return any(
            not job.waits
            for name in partitions
            if name in self._partitions
            for lane in self._partitions[name].lanes.values()
            for job in lane.jobs
        )

    def unfinished(self, partitions: Iterable[TopicPartition]) -> int:
        """Return how many records of these partitions are not finished."""
        return sum(
            len(self._partitions[name].open) for name in partitions if name in self._partitions
        )

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Start no more jobs of these partitions: what has not begun, and what waits for another attempt, is let go."""
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
        """Forget partitions; outcomes of their jobs that still run change nothing any more."""
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
