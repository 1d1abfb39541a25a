"""How a worker commits: to its group, or with the results of its handlers in transactions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from headrace.errors import HeadraceError
from headrace.types import TopicPartition
from headrace.workers.core import SourceAction, WorkerCore
from headrace.workers.outbox import Outbox, Publisher
from headrace.workers.outlet import Outlet
from headrace.workers.scheduler import Job
from headrace.workers.source import RecordSource
from headrace.workers.transacting import Transactor

AT_REST_S: Final = 0.005
"""How long to wait in seconds until other partitions have no unfinished records either, to commit them together."""

Check = Callable[[], Awaitable[object]]


class Committer(Protocol):
    """Commits what the worker has finished. The worker calls `commit` for one commit at a time."""

    @property
    def checks(self) -> list[Check]:
        """The checks that run before the worker joins its group. They take nothing from other processes."""

    @property
    def takeovers(self) -> list[Check]:
        """The steps that take something from another process. They run when all checks have succeeded."""

    def new_out(self) -> Publisher:
        """Return where one attempt of a handler writes to."""

    def finish(self, job: Job, out: Publisher) -> None:
        """Finish a job's records, with what the attempt has written."""

    async def wait(self, error: HeadraceError | None) -> None:
        """Wait until the next commit is due.

        Args:
            error: Why the last commit failed; None if it did not.
        """

    async def commit(self, partitions: Collection[TopicPartition] | None) -> None:
        """Commit what is finished in partitions; None for all.

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
        """Close what was opened, without a further commit."""


class OffsetCommitter:
    """Commits offsets to the group, at intervals. The handlers write their results at once."""

    checks: Final[list[Check]] = []
    takeovers: Final[list[Check]] = []

    def __init__(
        self,
        core: WorkerCore,
        source: RecordSource,
        outlet: Outlet,
        at_rest: asyncio.Event,
        interval_s: float,
    ) -> None:
        """Prepare commits.

        Args:
            core: Decides what to commit.
            source: Commits offsets.
            outlet: Writes results.
            at_rest: Set when all records of a partition are finished and a commit costs little.
            interval_s: The time between two commits, in seconds.
        """
        self._core = core
        self._scheduler = core.scheduler
        self._source = source
        self._outlet = outlet
        self._at_rest = at_rest
        self._interval_s = interval_s

    def new_out(self) -> Publisher:
        """Return the outlet, which writes at once."""
        return self._outlet

    def finish(self, job: Job, out: Publisher) -> None:  # noqa: ARG002 - the results are written already
        """Finish a job's records."""
        self._scheduler.finish(job)

    async def wait(self, error: HeadraceError | None) -> None:  # noqa: ARG002 - the interval is the same
        """Wait for the interval, or until a partition has no unfinished records."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._interval_s):
                await self._at_rest.wait()
                await asyncio.sleep(AT_REST_S)
        self._at_rest.clear()

    async def commit(self, partitions: Collection[TopicPartition] | None) -> None:
        """Commit what is finished in partitions; None for all.

        Raises:
            HeadraceError: The commit failed, or its result is not known.
        """
        if wanted := self._core.to_commit(partitions, self._source.positions()):
            await self._source.commit(wanted)
            self._core.on_committed(wanted)

    async def is_settled(
        self,
        error: HeadraceError | None,  # noqa: ARG002 - a failed commit is repeated later
        *,
        has_changed: bool,  # noqa: ARG002 - a further commit needs no wait
    ) -> bool:
        """Return true: the results were written before."""
        return True

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Do nothing: nothing is kept by partition."""

    async def close(self) -> None:
        """Do nothing: the app closes the outlet."""


class TransactionCommitter:
    """Commits offsets and results in transactions. Results wait in an `Outbox` for each attempt."""

    def __init__(
        self,
        core: WorkerCore,
        source: RecordSource,
        outlet: Outlet,
        transactor: Transactor,
        perform: Callable[[Iterable[SourceAction]], None],
        *,
        transaction_s: float,
        interval_s: float,
    ) -> None:
        """Prepare transactions.

        Args:
            core: Decides what to commit.
            source: Knows the positions of this member.
            outlet: Encodes results.
            transactor: Writes the transactions.
            perform: Performs what the core asks of the source after a commit.
            transaction_s: The time between two transactions, in seconds.
            interval_s: The pause after a transaction that failed, in seconds.
        """
        self._core = core
        self._scheduler = core.scheduler
        self._source = source
        self._outlet = outlet
        self.transactor = transactor
        self._perform = perform
        self._transaction_s = transaction_s
        self._interval_s = interval_s

    @property
    def checks(self) -> list[Check]:
        """The transactional id, if no other process can be using it."""
        return [self.transactor.prepare] if self.transactor.is_new_id else []

    @property
    def takeovers(self) -> list[Check]:
        """The transactional id, if another process may be using it: that process is fenced."""
        return [] if self.transactor.is_new_id else [self.transactor.prepare]

    def new_out(self) -> Publisher:
        """Return an outbox, whose content is written when the attempt's records are committed."""
        return Outbox(self._outlet)

    def finish(self, job: Job, out: Publisher) -> None:
        """Keep what the attempt wrote for the next transaction, then finish the job's records."""
        if isinstance(out, Outbox):
            self.transactor.keep(job, out)
        self._scheduler.finish(job)

    async def wait(self, error: HeadraceError | None) -> None:
        """Wait until there is enough to write for a transaction, or for the time between two transactions."""
        if error is None or self.transactor.set_aside:
            await self.transactor.wait(self._transaction_s)
        else:
            await asyncio.sleep(self._interval_s)

    async def commit(self, partitions: Collection[TopicPartition] | None) -> None:
        """Commit what is finished in partitions; None for all.

        Raises:
            HeadraceError: The transaction failed, or its result is not known.
        """
        self._note(await self.transactor.settle())
        if wanted := self._core.to_commit(partitions, self._source.positions()):
            self._note(await self.transactor.commit(wanted))

    def _note(self, committed: Mapping[TopicPartition, int]) -> None:
        self._perform(self._core.on_transaction(committed, self._source.positions()))

    async def is_settled(self, error: HeadraceError | None, *, has_changed: bool) -> bool:
        """Return whether all results are committed and readable.

        What was committed a moment ago may be input of another worker as soon as that worker can read it.
        """
        if error is not None or has_changed or not self.transactor.empty:
            return False
        return await self._outlet.settled(self.transactor.written_to)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget what was to be written for partitions that belong to other members now."""
        self.transactor.drop(partitions)

    async def close(self) -> None:
        """Close the producer. What is not committed is lost, and its records are handled again."""
        await self.transactor.close()
