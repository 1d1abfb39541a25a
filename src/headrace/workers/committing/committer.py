"""The interface of committers, and the loop in which two of them commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Protocol

from headrace.errors import FatalTransactionError, HeadraceError, WorkerFailedError
from headrace.types import TopicPartition
from headrace.workers.core.scheduler import Job
from headrace.workers.output.outbox import Publisher

Check = Callable[[], Awaitable[object]]
Commit = Callable[[Collection[TopicPartition] | None], Awaitable[HeadraceError | None]]
"""Commits finished records of some partitions, or of all partitions if the argument is None; returns the error."""


class Committer(Protocol):
    """Commits the finished records of a worker, as its delivery mode requires."""

    @property
    def checks(self) -> list[Check]:
        """The checks that run before the worker joins its group. They take nothing from other processes."""

    @property
    def takeovers(self) -> list[Check]:
        """The steps that take something from another process. They run when all checks have succeeded."""

    def new_out(self) -> Publisher:
        """Return the object to which one attempt of a handler writes."""

    def finish(self, job: Job, out: Publisher) -> None:
        """Finish a job's records, with what the attempt has written."""

    async def run(self, commit: Commit) -> None:
        """Commit again and again until the task is cancelled. A committer that need not do so returns.

        Args:
            commit: Calls the method `commit` of this object, for one commit at a time.

        Raises:
            FatalTransactionError: No further transaction can succeed.
            WorkerFailedError: A result can never be written.
        """

    async def commit(self, partitions: Collection[TopicPartition] | None) -> None:
        """Commit finished records of some partitions, or of all partitions if the argument is None.

        The worker makes one call at a time.

        Raises:
            HeadraceError: The commit failed, or its result is not known.
        """

    async def is_settled(self, error: HeadraceError | None, *, has_changed: bool) -> bool:
        """Return, for tests, whether nothing is left to commit.

        Args:
            error: Why the last commit failed; None if it did not.
            has_changed: Whether the last commit changed any committed offset.
        """

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that belong to other members now."""

    async def close(self) -> None:
        """Close the producer of the committer, if it has one, without a further commit."""


async def commit_repeatedly(
    commit: Commit, wait: Callable[[HeadraceError | None], Awaitable[None]]
) -> None:
    """Commit all partitions again and again.

    Args:
        commit: Commits, and returns the error if the commit failed.
        wait: Waits until the next commit is due. Its argument is the error of the last commit, or None.

    Raises:
        FatalTransactionError: No further transaction can succeed.
        WorkerFailedError: A result can never be written.
    """
    error = None
    while True:
        await wait(error)
        error = await commit(None)
        if isinstance(error, FatalTransactionError | WorkerFailedError):
            raise error
