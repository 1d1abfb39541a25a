"""The committer that commits offsets and results in transactions: exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from headrace.errors import HeadraceError
from headrace.types import TopicPartition
from headrace.workers.committing.committer import Check, Commit, commit_repeatedly
from headrace.workers.committing.transactor import Transactor
from headrace.workers.core.scheduler import Job
from headrace.workers.core.worker_core import SourceAction, WorkerCore
from headrace.workers.output.outbox import Outbox, Publisher
from headrace.workers.output.outlet import Outlet
from headrace.workers.source import RecordSource


class TransactionCommitter:
    """The committer for exactly once. Transactions commit offsets and results; each attempt has an `Outbox`."""

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
            core: Decides which offsets to commit.
            source: Has the positions of this member.
            outlet: Encodes results.
            transactor: Writes the transactions.
            perform: Performs actions of the core on the source after a commit.
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

    async def run(self, commit: Commit) -> None:
        """Commit a transaction after each interval, and earlier if there are many results."""
        await commit_repeatedly(commit, self._wait)

    async def _wait(self, error: HeadraceError | None) -> None:
        if error is None or self.transactor.set_aside:
            await self.transactor.wait(self._transaction_s)
        else:
            await asyncio.sleep(self._interval_s)

    async def commit(self, partitions: Collection[TopicPartition] | None) -> None:
        """Commit finished records of some partitions, or of all partitions if the argument is None.

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

        Results of the last commit may be input of another worker as soon as that worker can read them.
        """
        if error is not None or has_changed or not self.transactor.empty:
            return False
        return await self._outlet.settled(self.transactor.written_to)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the results for partitions that belong to other members now."""
        self.transactor.drop(partitions)

    async def close(self) -> None:
        """Close the producer. Results that are not committed are lost, and their records are handled again."""
        await self.transactor.close()
