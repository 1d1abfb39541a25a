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
from typing import Literal

from headrace.clients.consumer.records import ConsumerRecord
from headrace.types import TopicPartition

Ordering = Literal["partition", "key", "none"]


class Job:
    """One call of the handler: a record, or a batch of one partition's records that follow each other."""

    __slots__ = ("attempt", "lane", "records", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, lane: _Lane) -> None:
        self.topic_partition = topic_partition
        self.lane = lane
        self.records: list[ConsumerRecord] = []
        self.attempt = 1
        """Counts from 1."""


class _Lane:
    __slots__ = ("key", "queue", "retrying", "running", "topic_partition")

    def __init__(self, topic_partition: TopicPartition, key: Hashable) -> None:
        self.topic_partition = topic_partition
        self.key = key
        self.queue: deque[ConsumerRecord] = deque()
        self.running: Job | None = None
        self.retrying = False
        """Whether `running` waits for its next attempt."""


class _Partition:
    """What was taken in of one partition, and what of it is finished."""

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
        for record in records:
            name = TopicPartition(record.topic, record.partition)
            partition = self._partitions.get(name)
            if partition is None:
                partition = self._partitions[name] = _Partition()
            partition.open[record.offset] = None
            partition.next_offset = record.offset + 1
            key = self._lane_key(record)
            lane = partition.lanes.get(key)
            if lane is None:
                lane = partition.lanes[key] = _Lane(name, key)
            if not lane.queue and lane.running is None:
                self._runnable.append(lane)
            lane.queue.append(record)

    def _lane_key(self, record: ConsumerRecord) -> Hashable:
        if self._ordering == "partition":
            return None
        if self._ordering == "key" and record.key is not None:
            key: Hashable = record.key
            return key
        return record.offset

    def full(self, topic_partition: TopicPartition) -> bool:
        """Whether no more records of a partition should be taken in for now."""
        partition = self._partitions.get(topic_partition)
        return partition is not None and len(partition.open) >= self._max_buffered

    # Jobs out, outcomes in

    def take(self, now_ms: int) -> Iterator[Job]:
        """Yield the jobs that are to start now; each is running from then on."""
        while self.running < self._concurrency:
            job = self._due(now_ms) or self._next()
            if job is None:
                return
            self.running += 1
            yield job

    def _due(self, now_ms: int) -> Job | None:
        while self._later and self._later[0][0] <= now_ms:
            job = heapq.heappop(self._later)[2]
            if self._is_current(job):
                job.lane.retrying = False
                return job
        return None

    def _next(self) -> Job | None:
        while self._runnable:
            lane = self._runnable.popleft()
            if not lane.queue:
                continue  # its partition was dropped
            job = lane.running = Job(lane.topic_partition, lane)
            while lane.queue and len(job.records) < self._batch:
                job.records.append(lane.queue.popleft())
            return job
        return None

    @property
    def next_deadline_ms(self) -> int | None:
        """When the next retry is due; None when there is none."""
        while self._later and not self._is_current(self._later[0][2]):
            heapq.heappop(self._later)
        return self._later[0][0] if self._later else None

    def finish(self, job: Job) -> None:
        """Take note that a job's records need not be handled again, for whatever reason."""
        self.running -= 1
        if not self._is_current(job):
            return  # its partition is another's by now
        partition = self._partitions[job.topic_partition]
        for record in job.records:
            partition.open.pop(record.offset, None)
        self._free(partition, job.lane)

    def retry(self, job: Job, due_ms: int) -> None:
        """Handle a job's records again at a later time; their lane waits."""
        self.running -= 1
        if self._is_current(job):
            job.attempt += 1
            job.lane.retrying = True
            heapq.heappush(self._later, (due_ms, next(self._numbers), job))

    def _free(self, partition: _Partition, lane: _Lane) -> None:
        lane.running = None
        if lane.queue:
            self._runnable.append(lane)
        else:
            del partition.lanes[lane.key]

    def _is_current(self, job: Job) -> bool:
        partition = self._partitions.get(job.topic_partition)
        return (
            partition is not None
            and partition.lanes.get(job.lane.key) is job.lane
            and job.lane.running is job
        )

    # Partitions

    def positions(self) -> dict[TopicPartition, int]:
        """Return how far each partition is finished: the offset to commit."""
        return {name: partition.position for name, partition in self._partitions.items()}

    def busy(self, partitions: Iterable[TopicPartition]) -> bool:
        """Whether a job of these partitions is running (one that waits for its next attempt is not)."""
        return any(
            lane.running is not None and not lane.retrying
            for name in partitions
            if name in self._partitions
            for lane in self._partitions[name].lanes.values()
        )

    def stop(self, partitions: Iterable[TopicPartition]) -> None:
        """Start no more jobs of these partitions: what has not begun, and what waits for another attempt, is let go."""
        for name in partitions:
            partition = self._partitions.get(name)
            if partition is None:
                continue
            for lane in list(partition.lanes.values()):
                lane.queue.clear()
                if lane.running is None or lane.retrying:
                    del partition.lanes[lane.key]

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions; outcomes of their jobs that still run change nothing any more."""
        for name in partitions:
            partition = self._partitions.pop(name, None)
            if partition is not None:
                for lane in partition.lanes.values():
                    lane.queue.clear()

    @property
    def idle(self) -> bool:
        """Whether every record that was taken in is finished."""
        return not any(partition.open for partition in self._partitions.values())
