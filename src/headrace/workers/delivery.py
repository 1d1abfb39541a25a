"""The three delivery modes, one object each: when offsets are committed, and what happens to records at the end."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Final, Literal, Protocol

from headrace.types import TopicPartition
from headrace.workers.scheduler import Job, Scheduler

Delivery = Literal["at_least_once", "at_most_once", "exactly_once"]


class DeliveryMode(Protocol):
    """The decisions that differ between the delivery modes."""

    commits_first: ClassVar[bool]
    """Whether the worker commits the offsets of records before it calls the handler."""
    is_transactional: ClassVar[bool]
    """Whether the worker writes results and offsets in one transaction."""
    fate: ClassVar[str]
    """A sentence for messages: what happens to the record at which the worker stops."""

    def stop(self, scheduler: Scheduler, partitions: Collection[TopicPartition]) -> None:
        """Decide which jobs still begin in partitions that are revoked, or in all partitions when the worker stops."""

    def is_drained(self, scheduler: Scheduler, partitions: Collection[TopicPartition]) -> bool:
        """Return whether all handlers have ended that must end before partitions are released."""

    def stop_at(self, scheduler: Scheduler, job: Job) -> None:
        """Give the scheduler the outcome of the job that makes the worker stop."""


class AtLeastOnce:
    """Offsets are committed after the handler: a record that was handled but not committed is handled again."""

    commits_first: ClassVar[bool] = False
    is_transactional: ClassVar[bool] = False
    fate: ClassVar[str] = "It is not committed and comes again at the next start."

    def stop(self, scheduler: Scheduler, partitions: Collection[TopicPartition]) -> None:
        """Begin no further job: the next owner of the partition handles those records."""
        scheduler.stop(partitions)

    def is_drained(self, scheduler: Scheduler, partitions: Collection[TopicPartition]) -> bool:
        """Wait for the jobs that run."""
        return not scheduler.busy(partitions)

    def stop_at(self, scheduler: Scheduler, job: Job) -> None:
        """Leave the record unfinished, so that its offset is not committed."""
        scheduler.abandon(job)


class ExactlyOnce(AtLeastOnce):
    """Results and offsets are committed in one transaction, after the handler."""

    is_transactional: ClassVar[bool] = True


class AtMostOnce:
    """Offsets are committed before the handler: a record whose handler fails is lost."""

    commits_first: ClassVar[bool] = True
    is_transactional: ClassVar[bool] = False
    fate: ClassVar[str] = "It was committed before, and does not come again."

    def stop(self, scheduler: Scheduler, partitions: Collection[TopicPartition]) -> None:
        """Let all jobs begin: their records are committed, so nobody else will handle them."""

    def is_drained(self, scheduler: Scheduler, partitions: Collection[TopicPartition]) -> bool:
        """Wait for all records that were read."""
        return not (scheduler.busy(partitions) or scheduler.unfinished(partitions))

    def stop_at(self, scheduler: Scheduler, job: Job) -> None:
        """Finish the record: it is lost, and the records behind it are handled before the worker stops."""
        scheduler.finish(job)


MODES: Final[dict[Delivery, DeliveryMode]] = {
    "at_least_once": AtLeastOnce(),
    "at_most_once": AtMostOnce(),
    "exactly_once": ExactlyOnce(),
}
"""The mode for each value of `delivery=`."""
