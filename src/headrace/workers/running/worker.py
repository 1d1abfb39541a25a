"""A worker: it reads records from a source, calls the handler, and commits the offsets of finished records.

`WorkerCore` decides and the modules of this package act: they poll, run handlers, commit and release partitions, all on
one event loop.

* A poll never waits for a handler. So the member stays in its group however long a handler takes. A partition with many
  unfinished records is paused.
* An offset is committed only if all records before it are finished.
* Revoked partitions are released in the steps of `core/revocation.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from headrace.dead_letters.error_text import message_of
from headrace.errors import HeadraceError, StartError, TransportError, WorkerFailedError
from headrace.types import TopicPartition
from headrace.workers.committing.committer import Committer
from headrace.workers.committing.offsets import EarlyOffsetCommitter, OffsetCommitter
from headrace.workers.committing.transactions import TransactionCommitter
from headrace.workers.committing.transactor import new_transactor
from headrace.workers.core.scheduler import Scheduler
from headrace.workers.core.worker_core import Pause, Resume, Seek, SourceAction, WorkerCore
from headrace.workers.handler.threads import HandlerThreads
from headrace.workers.monitoring.counters import Counters, Hook, Tally
from headrace.workers.monitoring.status import WorkerState, WorkerStatus
from headrace.workers.output.outlet import Outlet
from headrace.workers.running.handovers import Handovers
from headrace.workers.running.job_runner import JobRunner
from headrace.workers.running.partition_releaser import PartitionReleaser
from headrace.workers.running.pollers import CommitFirstPoller, Poller, TransactionalPoller
from headrace.workers.running.processor import Processor
from headrace.workers.running.start_checks import problems_of
from headrace.workers.settings import WorkerSettings
from headrace.workers.source import RecordSource
from headrace.workers.topic_source import open_source

CLOSE_TIMEOUT_S: Final = 10.0
"""The time for leaving the group, in seconds, besides the time for handlers."""

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
        """Set when all records of a partition are finished, if a commit costs no request."""
        self._core, self._committer, poller_type = self._strategies()
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
        """Resolved when the worker must end. It has the error if the worker fails."""
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
        self._poller = self._new_poller(poller_type)
        self._timer: asyncio.TimerHandle | None = None
        """Calls `_start` when the next record is due; None if no record waits for a time."""
        self._closed = False

    def _strategies(self) -> tuple[WorkerCore, Committer, type[Poller]]:
        """Return the parts that depend on the delivery mode. The core gets its mode from the settings."""
        settings, outlet, source = self.settings, self._outlet, self._source
        interval_s = settings.commit_interval_s
        match settings.delivery:
            case "at_least_once":
                core = self._new_core(None)
                return (
                    core,
                    OffsetCommitter(core, source, outlet, self._at_rest, interval_s),
                    Poller,
                )
            case "at_most_once":
                core = self._new_core(None)
                early = EarlyOffsetCommitter(core, source, outlet, self._at_rest, interval_s)
                return core, early, CommitFirstPoller
            case "exactly_once":
                on_end, restore = self._processor.written, self._restore
                transactor = new_transactor(settings, outlet, source, on_end, restore)
                core = self._new_core(transactor.waiting_calls)
                committer = TransactionCommitter(
                    core,
                    source,
                    outlet,
                    transactor,
                    self._perform,
                    transaction_s=settings.transaction_ms / 1000,
                    interval_s=interval_s,
                )
                return core, committer, TransactionalPoller

    def _new_core(self, waiting_calls: Callable[[TopicPartition], int] | None) -> WorkerCore:
        return WorkerCore(
            self.settings.mode,
            self._scheduler,
            self.settings.origins(),
            max_buffered=self.settings.max_buffered,
            waiting_calls=waiting_calls,
        )

    def _new_poller(self, poller_type: type[Poller]) -> Poller:
        return poller_type(
            self.settings,
            self._core,
            self._source,
            self._outlet,
            counters=self._counters,
            handovers=self._handovers,
            perform=self._perform,
            start_jobs=self._start,
            commit=self._commit,
        )

    # Start and end

    async def prepare(self) -> list[HeadraceError]:
        """Check whether the worker can read and write its topics, before it joins its group.

        The checks take nothing from other processes.

        Returns:
            The problems that prevent a start.
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
        """Take the transactional id from a process that has it. Call this if no worker of the app has a problem.

        Returns:
            The problems that prevent a start.
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
        """Close what `prepare` has opened. Call this if the worker does not run."""
        with contextlib.suppress(HeadraceError):
            await self._source.leave(CLOSE_TIMEOUT_S)
        await self._committer.close()
        await self._runner.close()
        await self._processor.close()

    async def run(self) -> None:
        """Work until `stop` is called.

        Raises:
            WorkerFailedError: A record could not be handled, and the worker stops on failures; or finished records
                could not be committed when their partition was revoked.
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
            tasks.append(asyncio.create_task(self._poll()))
            tasks.append(asyncio.create_task(self._committer.run(self._commit)))
            for task in tasks:
                task.add_done_callback(self._task_ended)
            await self._done
        finally:
            refused = await self._end(tasks)
        if refused is not None:
            raise refused

    def stop(self) -> None:
        """End `run`. Running handlers may finish within `drain_timeout_s`. Other members handle the other records."""
        if not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> WorkerFailedError | None:
        """Wait for handlers, commit and leave the group. Return the error if finished records were not committed."""
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
        await self._poller.run()
        self.stop()

    def _perform(self, actions: Iterable[SourceAction]) -> None:
        """Perform actions of the core on the source."""
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
        if (wait_ms := self._poller.wait_ms()) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait_ms / 1000, self._start)

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

    async def _commit(self, partitions: Collection[TopicPartition] | None) -> HeadraceError | None:
        """Commit finished records of some partitions (None: all). Return the error if the commit failed."""
        async with self._committing:
            try:
                await self._committer.commit(partitions)
            except HeadraceError as error:
                _log.warning("%s: offsets are not committed: %s", self.settings.name, error)
                return error
            return None

    async def _restore(self, topic: str) -> None:
        await self._runner.failed_records.restore(topic)
        await self._processor.restore(topic)

    # Status

    def status(self) -> WorkerStatus:
        """Return the status of the worker. Call this on the worker's event loop."""
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
        """Whether no record is unfinished, and none is between the source and the scheduler."""
        return self._scheduler.idle and not self._handovers.running

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
