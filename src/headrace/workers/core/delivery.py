"""The three delivery modes, one object each: the decisions about commits, revocations and failures that differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, Final, Literal, Protocol

from headrace.types import TopicPartition
from headrace.workers.core.scheduler import Job, Scheduler

Delivery = Literal["at_least_once", "at_most_once", "exactly_once"]


class DeliveryMode(Protocol):
    """The decisions that differ between the delivery modes."""

    consumer_properties: ClassVar[Mapping[str, str]]
    """Properties that the worker's consumer must have."""
    drops_late_records: ClassVar[bool]
    """Whether a worker that stops ignores the records that it still reads. Their next owner reads them again."""
    commits_when_revoked: ClassVar[bool]
    """Whether the worker commits finished records when their partitions are revoked."""
    can_schedule_records: ClassVar[bool]
    """Whether a record for a retry topic can be a scheduled record."""
    fate: ClassVar[str]
    """A sentence for messages: what happens to the record at which the worker stops."""

    def repeat_commit_until_s(self, now_s: float, timeout_s: float) -> float | None:
        """Return until when a commit during a revocation is repeated; None if it is not repeated.

        Args:
            now_s: The time at which the commit failed.
            timeout_s: The longest time for repeated commits, in seconds.
        """

    def stop(self, scheduler: Scheduler, partitions: Collection[TopicPartition]) -> None:
        """Decide which jobs still begin in partitions that are revoked, or in all partitions when the worker stops."""

    def is_drained(self, scheduler: Scheduler, partitions: Collection[TopicPartition]) -> bool:
        """Return whether all handlers have ended that must end before partitions are released."""

    def stop_at(self, scheduler: Scheduler, job: Job) -> None:
        """Give the scheduler the outcome of the job that makes the worker stop."""


class AtLeastOnce:
    """Offsets are committed after the handler: a record that was handled but not committed is handled again."""

    consumer_properties: ClassVar[Mapping[str, str]] = {}
    drops_late_records: ClassVar[bool] = True
    commits_when_revoked: ClassVar[bool] = True
    can_schedule_records: ClassVar[bool] = True
    fate: ClassVar[str] = "It is not committed and comes again at the next start."

    def repeat_commit_until_s(self, now_s: float, timeout_s: float) -> float | None:  # noqa: ARG002 - no repetition
        """Return None: records whose commit failed are handled again."""
        return None

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

    consumer_properties: ClassVar[Mapping[str, str]] = {"isolation_level": "read_committed"}
    can_schedule_records: ClassVar[bool] = False  # a transaction cannot contain scheduled records

    def repeat_commit_until_s(self, now_s: float, timeout_s: float) -> float | None:
        """Repeat the transaction until the timeout: without it the results of finished records are lost."""
        return now_s + timeout_s


class AtMostOnce:
    """Offsets are committed before the handler: a record whose handler fails is lost."""

    consumer_properties: ClassVar[Mapping[str, str]] = {}
    drops_late_records: ClassVar[bool] = False
    commits_when_revoked: ClassVar[bool] = False
    can_schedule_records: ClassVar[bool] = True
    fate: ClassVar[str] = "It was committed before, and does not come again."

    def repeat_commit_until_s(self, now_s: float, timeout_s: float) -> float | None:  # noqa: ARG002 - no commit
        """Return None: there is no commit during a revocation."""
        return None

    def stop(self, scheduler: Scheduler, partitions: Collection[TopicPartition]) -> None:
        """Let all jobs begin: their records are committed, so no other member handles them."""

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
