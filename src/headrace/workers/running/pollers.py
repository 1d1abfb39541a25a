"""The loop that reads records for a worker, with one class for each delivery mode."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from headrace.clients.consumer.records import ConsumerRecord
from headrace.errors import HeadraceError, TransportError
from headrace.workers.committing.committer import Commit
from headrace.workers.core.worker_core import SourceAction, WorkerCore, offsets_after
from headrace.workers.monitoring.counters import Counters
from headrace.workers.output.outlet import Outlet
from headrace.workers.running.handovers import Handovers
from headrace.workers.settings import WorkerSettings
from headrace.workers.source import RecordSource

POLL_MS: Final = 1_000
"""The longest time in milliseconds that one poll waits for records."""

_log: Final = logging.getLogger("headrace.workers")


class Poller:
    """The poller for at least once: it reads records, which are then handled and then committed."""

    def __init__(
        self,
        settings: WorkerSettings,
        core: WorkerCore,
        source: RecordSource,
        outlet: Outlet,
        *,
        counters: Counters,
        handovers: Handovers,
        perform: Callable[[Iterable[SourceAction]], None],
        start_jobs: Callable[[], None],
        commit: Commit,
    ) -> None:
        """Prepare to read records.

        Args:
            settings: The worker's settings.
            core: Decides which records are handled.
            source: Returns records.
            outlet: Has the clock.
            counters: The counters of the worker.
            handovers: Counts the steps that the end of the worker must not interrupt.
            perform: Performs actions of the core on the source.
            start_jobs: Begins the jobs that can begin now.
            commit: Commits finished records of partitions.
        """
        self._settings = settings
        self._core = core
        self._source = source
        self._outlet = outlet
        self._counters = counters
        self._handovers = handovers
        self._perform = perform
        self._start_jobs = start_jobs
        self._commit = commit

    async def run(self) -> None:
        """Read records until the worker stops, or until an administrator stops this member of the group."""
        while not self._core.stopping:
            wait_ms = self.wait_ms()
            timeout_s = (POLL_MS if wait_ms is None else min(POLL_MS, wait_ms)) / 1000
            records = await self._poll(timeout_s)
            if self._source.stopped:
                _log.info(
                    "%s: an administrator has stopped this member of group %s, and it has left",
                    self._settings.name,
                    self._settings.group,
                )
                return
            if records:
                await asyncio.sleep(0)

    def wait_ms(self) -> int | None:
        """Return the milliseconds until a record is due, at least 1; None if no record waits for a time."""
        due_ms = self._core.due_ms()
        return None if due_ms is None else max(1, due_ms - self._outlet.now_ms())

    async def _poll(self, timeout_s: float) -> Sequence[ConsumerRecord]:
        records = await self._next(timeout_s)
        # No `await` between `poll` and `_take_in`: the source's positions count these records as taken in.
        self._take_in(records)
        if records and self._source.begins_late and (began := self._core.beginnings()):
            # So that a restart does not begin at the end of the partition.
            await self._commit(began)
        self._start_jobs()
        return records

    async def _next(self, timeout_s: float) -> Sequence[ConsumerRecord]:
        return await self._source.poll(timeout_s)

    def _take_in(self, records: Sequence[ConsumerRecord]) -> None:
        actions, skipped = self._core.on_records(records, self._outlet.now_ms())
        self._counters.passed_over += skipped
        self._perform(actions)


class TransactionalPoller(Poller):
    """The poller for exactly once. It keeps the order of `Poller`, but a missing answer does not stop the worker."""

    async def _next(self, timeout_s: float) -> Sequence[ConsumerRecord]:
        try:
            return await self._source.poll(timeout_s)
        except TransportError as error:
            # A consumer that has never had a response may have a wrong address. But the producer of this worker has had
            # a response from these brokers.
            _log.warning(
                "%s: no broker answers; the worker polls again: %s", self._settings.name, error
            )
            return []


class CommitFirstPoller(Poller):
    """The poller for at most once: it reads records and commits their offsets before they are handled."""

    async def _poll(self, timeout_s: float) -> Sequence[ConsumerRecord]:
        """Read at most as many records as handlers can begin, and commit their offsets."""
        limit = self._settings.concurrency * (self._settings.batch or 1)
        records = await self._source.poll(timeout_s, limit)
        async with self._handovers:  # committed records are handled even if the worker ends now
            self._take_in(await self._commit_offsets(records))
            self._start_jobs()
        return records

    async def _commit_offsets(self, records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
        """Return the records if their offsets are committed. Otherwise they are read again."""
        if not records:
            return []
        try:
            await self._source.commit(offsets_after(records))
        except HeadraceError as error:
            _log.warning(
                "%s: %d records wait until their offsets are committed: %s",
                self._settings.name,
                len(records),
                error,
            )
            self._perform(self._core.read_again(records, self._source.positions()))
            return []
        return records
