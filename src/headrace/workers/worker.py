"""A worker: it reads records from a source, calls the handler, and commits the offsets of what is finished.

`WorkerCore` decides, this module acts: it polls, commits and releases partitions on one event loop.

* Polling never waits for a handler, so the group keeps this member however long a handler takes. A partition with many
  unfinished records is paused.
* Only offsets without a gap before them are committed.
* Revoked partitions are released in the steps of `revocation.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters.error_text import message_of
from headrace.errors import (
    FatalTransactionError,
    HeadraceError,
    StartError,
    TransportError,
    WorkerFailedError,
)
from headrace.types import TopicPartition
from headrace.workers.checking import problems_of
from headrace.workers.committing import Committer, OffsetCommitter, TransactionCommitter
from headrace.workers.core import Pause, Resume, Seek, SourceAction, WorkerCore, offsets_after
from headrace.workers.counters import Counters, Hook, Tally
from headrace.workers.handovers import Handovers
from headrace.workers.job_runner import JobRunner
from headrace.workers.outlet import Outlet
from headrace.workers.processing import Processor
from headrace.workers.releasing import PartitionReleaser
from headrace.workers.scheduler import Scheduler
from headrace.workers.settings import WorkerSettings
from headrace.workers.source import RecordSource
from headrace.workers.status import WorkerState, WorkerStatus
from headrace.workers.threads import HandlerThreads
from headrace.workers.topics import open_source
from headrace.workers.transacting import new_transactor

POLL_MS: Final = 1_000
"""The longest time in milliseconds that one poll waits for records."""
CLOSE_TIMEOUT_S: Final = 10.0
"""How long leaving the group may take, in seconds, besides the time for handlers."""

_log: Final = logging.getLogger("headrace.workers")


class Worker:
    """Runs one `@app.worker` on one event loop, until it is stopped or fails."""

    def __init__(
        self,
        settings: WorkerSettings,
        outlet: Outlet,
        counters: Counters,
        hooks: Sequence[Hook] = (),
    ) -> None:
        self.settings = settings
        self._outlet = outlet
        self._counters = counters
        self._threads = HandlerThreads(settings.concurrency, f"headrace-{settings.name}")
        self._scheduler = Scheduler(
            ordering=settings.ordering,
            concurrency=settings.concurrency,
            batch=settings.batch,
            max_buffered=settings.max_buffered,
        )
        self._source: RecordSource = open_source(settings, outlet)
        self._commits_at_rest = self._source.commits_at_rest
        self._processor = Processor(settings, outlet, self._threads, self._source, self._scheduler)
        self._job_ended = asyncio.Event()
        """Set when a job has ended."""
        self._at_rest = asyncio.Event()
        """Set when all records of a partition are finished, if commits cost no request."""
        self._core, self._committer = self._new_core()
        self._runner = JobRunner(
            settings,
            self._scheduler,
            self._processor,
            outlet,
            committer=self._committer,
            valid=self._source.valid,
            tally=Tally(settings.name, counters, hooks),
            ended=self._on_job_ended,
            failed=self._fail,
        )
        self._state: WorkerState = "starting"
        self._error: str | None = None
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved when the worker is to end; with the error, if it fails."""
        self._committing = asyncio.Lock()
        self._handovers = Handovers()
        self._releaser = PartitionReleaser(
            settings,
            self._core,
            self._source,
            self._runner,
            processor=self._processor,
            committer=self._committer,
            commit=self._commit,
            handovers=self._handovers,
            job_ended=self._job_ended,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def _new_core(self) -> tuple[WorkerCore, Committer]:
        settings, outlet, source = self.settings, self._outlet, self._source
        transactor = None
        if settings.mode.is_transactional:
            transactor = new_transactor(
                settings, outlet, source, self._processor.written, self._restore
            )
        core = WorkerCore(
            settings.mode,
            self._scheduler,
            settings.origins(),
            max_buffered=settings.max_buffered,
            waiting_calls=None if transactor is None else transactor.waiting_calls,
        )
        interval_s = settings.commit_interval_s
        if transactor is None:
            return core, OffsetCommitter(core, source, outlet, self._at_rest, interval_s)
        return core, TransactionCommitter(
            core,
            source,
            outlet,
            transactor,
            self._perform,
            transaction_s=settings.transaction_ms / 1000,
            interval_s=interval_s,
        )

    # Start and end

    async def prepare(self) -> list[HeadraceError]:
        """Check before the worker joins its group whether everything it reads and writes exists and is permitted.

        Nothing is taken from other processes.

        Returns:
            Why the worker cannot start.
        """
        return await self._problems(
            [
                self._source.prepare,
                self._check,
                self._runner.failed_records.prepare,
                self._processor.prepare,
                *self._committer.checks,
            ]
        )

    async def take_over(self) -> list[HeadraceError]:
        """Take the transactional id from a process that has it. Call this when no worker of the app has a problem.

        Returns:
            Why the worker cannot start.
        """
        return await self._problems(self._committer.takeovers)

    async def _problems(
        self, checks: Sequence[Callable[[], Awaitable[object]]]
    ) -> list[HeadraceError]:
        problems: list[HeadraceError] = []
        for check in checks:
            try:
                await check()
            except StartError as error:
                problems += error.problems
            except HeadraceError as error:
                problems.append(error)
                if isinstance(error, TransportError):
                    break  # the other checks would wait for the same broker
        if problems:
            self._state, self._error = "failed", "; ".join(map(message_of, problems))
        return problems

    async def _check(self) -> None:
        if problems := await problems_of(self.settings, self._outlet):
            raise StartError(problems)

    async def give_up(self) -> None:
        """Close what `prepare` has opened, if the worker does not run."""
        with contextlib.suppress(HeadraceError):
            await self._source.leave(CLOSE_TIMEOUT_S)
        await self._committer.close()
        await self._runner.close()
        await self._processor.close()

    async def run(self) -> None:
        """Work until `stop` is called.

        Raises:
            WorkerFailedError: A record could not be handled, and the settings say that the worker stops then; or
                finished records could not be committed when their partition was revoked.
            HeadraceError: The group or the topics cannot be read.
        """
        try:
            await self._work()
        except Exception as error:
            self._state, self._error = "failed", message_of(error)
            raise
        finally:
            if self._state != "failed":
                self._state = "stopped"

    async def _work(self) -> None:
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._source.begin(self._releaser)
            self._state = "running"
            tasks = [asyncio.create_task(self._poll())]
            if not self._core.mode.commits_first:
                tasks.append(asyncio.create_task(self._commit_often()))
            for task in tasks:
                task.add_done_callback(self._task_ended)
            await self._done
        finally:
            refused = await self._end(tasks)
        if refused is not None:
            raise refused

    def stop(self) -> None:
        """End `run`: running handlers may finish within `drain_timeout_s`; other records are left to other members."""
        if not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> WorkerFailedError | None:
        """Wait for handlers, commit and leave; return the error if finished records could not be committed."""
        self._state = "stopping"
        self._core.stop()
        await self._handovers.none()  # a revocation that has begun is not interrupted
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            # The source revokes all partitions: `PartitionReleaser` waits for handlers and commits.
            await self._source.leave(self.settings.drain_timeout_s + CLOSE_TIMEOUT_S)
        except WorkerFailedError as error:
            return error
        except HeadraceError as error:
            _log.warning("%s: leaving the group failed: %s", self.settings.name, error)
        finally:
            self._closed = True
            await self._runner.close()
            await self._committer.close()
            if self._timer is not None:
                self._timer.cancel()
            await self._processor.close()
            self._threads.close()
        return None

    # Records in

    async def _poll(self) -> None:
        poll = self._poll_committed if self._core.mode.commits_first else self._poll_records
        while not self._core.stopping:
            wait_ms = self._wait_ms()
            timeout_s = (POLL_MS if wait_ms is None else min(POLL_MS, wait_ms)) / 1000
            records = await poll(timeout_s)
            if self._source.stopped:
                _log.info(
                    "%s: an administrator has stopped this member of group %s, and it has left",
                    self.settings.name,
                    self.settings.group,
                )
                self.stop()
                return
            if records:
                await asyncio.sleep(0)

    async def _poll_records(self, timeout_s: float) -> Sequence[ConsumerRecord]:
        records = await self._next(timeout_s)
        # Do not wait between reading records and taking them in: positions count records that were read as taken in.
        self._take_in(records)
        if records and self._source.begins_late:
            await self._commit_beginnings()
        self._start()
        return records

    async def _poll_committed(self, timeout_s: float) -> Sequence[ConsumerRecord]:
        """Read records, at most as many as handlers can begin, and commit their offsets before they are handled."""
        limit = self.settings.concurrency * (self.settings.batch or 1)
        records = await self._source.poll(timeout_s, limit)
        async with (
            self._handovers
        ):  # records that are committed are handled, also if the worker ends now
            self._take_in(await self._commit_first(records))
            self._start()
        return records

    async def _next(self, timeout_s: float) -> Sequence[ConsumerRecord]:
        try:
            return await self._source.poll(timeout_s)
        except TransportError as error:
            # A consumer that has never had an answer may have a wrong address. A transactional worker's producer
            # has had one.
            if not self._core.mode.is_transactional:
                raise
            _log.warning(
                "%s: no broker answers, and it is tried again: %s", self.settings.name, error
            )
            return []

    def _take_in(self, records: Sequence[ConsumerRecord]) -> None:
        actions, skipped = self._core.on_records(records, self._outlet.now_ms())
        self._counters.passed_over += skipped
        self._perform(actions)

    async def _commit_first(self, records: Sequence[ConsumerRecord]) -> Sequence[ConsumerRecord]:
        """Return the records whose offsets are committed; the others are read again."""
        if not records:
            return []
        try:
            await self._source.commit(offsets_after(records))
        except HeadraceError as error:
            _log.warning(
                "%s: records wait until their offsets are committed: %s", self.settings.name, error
            )
            self._perform(self._core.read_again(records, self._source.positions()))
            return []
        return records

    def _perform(self, actions: Iterable[SourceAction]) -> None:
        """Do what the core asks of the source."""
        for action in actions:
            match action:
                case Pause(name):
                    self._source.pause([name])
                case Resume(name):
                    self._source.resume([name])
                case Seek(name, offset):
                    self._source.seek(name, offset)

    # Jobs

    def _start(self) -> None:
        """Begin the jobs that can begin now, and set a timer for the next due record."""
        if self._closed:
            return
        self._perform(self._core.on_time(self._outlet.now_ms()))
        self._runner.start()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (wait_ms := self._wait_ms()) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait_ms / 1000, self._start)

    def _wait_ms(self) -> int | None:
        """Return the milliseconds until something is due, at least 1; None if nothing is."""
        due_ms = self._core.due_ms()
        return None if due_ms is None else max(1, due_ms - self._outlet.now_ms())

    def _on_job_ended(self, name: TopicPartition | None) -> None:
        self._job_ended.set()
        if name is None:
            self._start()
            return
        if name in self._core.full:
            self._perform(self._core.make_room(name))
        if self._commits_at_rest and not self._scheduler.unfinished([name]):
            self._at_rest.set()

    # Commits

    async def _commit_often(self) -> None:
        error = None
        while True:
            await self._committer.wait(error)
            error = await self._commit(None)
            if isinstance(error, FatalTransactionError | WorkerFailedError):
                raise error

    async def _commit(self, partitions: Collection[TopicPartition] | None) -> HeadraceError | None:
        """Commit what is finished in partitions (None: in all); return the error if that failed."""
        async with self._committing:
            try:
                await self._committer.commit(partitions)
            except HeadraceError as error:
                _log.warning("%s: positions are not committed: %s", self.settings.name, error)
                return error
            return None

    async def _commit_beginnings(self) -> None:
        """Commit the offset at which reading began, so that a restart does not begin at the end of the partition."""
        if began := self._core.beginnings():
            await self._commit(began)

    async def _restore(self, topic: str) -> None:
        await self._runner.failed_records.restore(topic)
        await self._processor.restore(topic)

    # Status

    def status(self) -> WorkerStatus:
        """Return the worker's state, on its event loop."""
        partitions = []
        state, error = self._state, self._error
        if state == "running":
            partitions = self._source.statuses(self._scheduler.first_unfinished())
            error = self._source.trouble()
            if error is not None:
                state = "waiting"
        return WorkerStatus(
            name=self.settings.name,
            group=self.settings.group,
            state=state,
            error=error,
            counters=replace(self._counters),
            partitions=partitions,
        )

    # For tests

    @property
    def _is_at_rest(self) -> bool:
        """Whether no record is unfinished, or is between the source and the scheduler."""
        return self._scheduler.idle and not self._handovers.under_way

    async def idle(self) -> bool:
        """Return whether every record that exists now is finished and committed."""
        if self._source.stopped:
            return True
        if self._core.held or not self._is_at_rest:
            return False
        if self._outlet.now_ms() < self._runner.away_until_ms:
            return False
        if not await self._source.caught_up() or not self._is_at_rest:
            return False
        before = dict(self._core.committed)
        error = await self._commit(None)
        return await self._committer.is_settled(error, has_changed=self._core.committed != before)
