"""Runs the jobs of the scheduler on one event loop, and gives the scheduler their outcomes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters.error_text import repr_of
from headrace.dead_letters.letter_headers import Headers
from headrace.errors import HeadraceError, MessageTooLargeError, WorkerFailedError
from headrace.types import TopicPartition
from headrace.workers.committing.committer import Committer
from headrace.workers.core.revocation import LOOK_AGAIN_S
from headrace.workers.core.scheduler import Job, Scheduler
from headrace.workers.failure.outcomes import DeadLetter, RetryLater, Skip
from headrace.workers.failure.policy import (
    FailurePolicy,
    FinishRecords,
    RetryInPlace,
    SplitBatch,
    StopWorker,
    WriteAgain,
    WriteDeadLetter,
    WriteRetry,
)
from headrace.workers.failure.tracebacks import Failures, place_in, trimmed
from headrace.workers.failure.writer import FailedRecordWriter
from headrace.workers.monitoring.counters import EventKind, Tally
from headrace.workers.monitoring.loop_watch import where_is
from headrace.workers.output.outbox import Outbox, Publisher
from headrace.workers.output.outlet import Outlet
from headrace.workers.running.processor import Processor
from headrace.workers.settings import WorkerSettings

AWAY_MS: Final = 250
"""The longest time from a record's due time until the worker reads it from a retry topic, in milliseconds."""
SLOW_WRITE_S: Final = 3.0
"""The time in seconds after which the write of a dead letter, or of a record for a retry topic, is logged as slow."""
SLOW_HANDLER_S: Final = 60.0
"""The time in seconds after which a running handler is logged as slow, then after twice the time, and so on."""
LOOK_SLOW_S: Final = 10.0
"""The time in seconds between two searches for slow handlers."""
CANCEL_TIMEOUT_S: Final = 1.0
"""The time in seconds in which a cancelled handler must end. Then it counts as an overlap."""
YIELD_EVERY: Final = 32
"""The number of jobs after which a task lets other tasks run, even if no job has waited."""

_log: Final = logging.getLogger("headrace.workers")


class JobRunner:
    """The running handlers of one worker."""

    def __init__(
        self,
        settings: WorkerSettings,
        scheduler: Scheduler,
        processor: Processor,
        outlet: Outlet,
        *,
        committer: Committer,
        valid: Callable[[TopicPartition], bool],
        tally: Tally,
        ended: Callable[[TopicPartition | None], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        """Prepare to run jobs.

        Args:
            settings: The worker's settings.
            scheduler: Selects jobs and receives their outcomes.
            processor: Calls the handler.
            outlet: Writes dead letters and records for retry topics.
            committer: Finishes jobs with the results of their handlers.
            valid: Returns whether a partition belongs to this member at this moment.
            tally: Counts records and calls the hooks.
            ended: Called with a partition when one of its jobs has ended, and with None when a task has no further job.
            failed: Called with the error with which the worker stops.
        """
        self._settings = settings
        self._scheduler = scheduler
        self._processor = processor
        self._outlet = outlet
        self._new_out = committer.new_out
        self._finish = committer.finish
        self._valid = valid
        self._tally = tally
        self._ended = ended
        self._fail = failed
        self._sources = settings.retry_topics()
        self._origins = settings.origins()
        self.failed_records = FailedRecordWriter(
            settings.name,
            outlet,
            self._origins,
            settings.open_letters(),
            reads_streams=settings.streams is not None,
        )
        self._failures = Failures()
        self._policy = FailurePolicy(settings.failure_rules(), self._origins, self._failures)
        self._jobs: dict[asyncio.Task[None], Job | None] = {}
        """The job that each task runs; None while the task lets other tasks run."""
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self.away_until_ms = 0
        """The time in milliseconds since 1970 until which records of this worker may wait in retry topics."""

    def start(self) -> None:
        """Begin the jobs that can begin now."""
        if self._timer is None and not self._closed:
            self._look()
        for job in self._scheduler.take(self._outlet.now_ms()):
            task = asyncio.create_task(self._work(job))
            self._jobs[task] = job
            task.add_done_callback(self._left)

    def _look(self) -> None:
        """Log handlers that run for a long time: later records of their lanes wait."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_SLOW_S, self._look)
        now_s = loop.time()
        for task, job in self._jobs.items():
            if job is None or job.began_s is None:
                continue
            running_s = now_s - job.began_s
            if running_s > max(SLOW_HANDLER_S, 2 * job.slow_s):
                job.slow_s = running_s
                _log.warning(
                    "%s: the handler of the record at %s has been running for %d s%s; the records behind it wait",
                    self._settings.name,
                    self._origins.text(job.records[0]),
                    running_s,
                    " in its thread" if job.in_thread else where_is(task.get_coro()),
                )

    async def let_go(self, partitions: Collection[TopicPartition]) -> None:
        """Cancel the running handlers of partitions. Count those that cannot be cancelled or do not end."""
        concerned = {
            task: job
            for task, job in self._jobs.items()
            if job is not None and job.topic_partition in partitions and not job.let_go
        }
        for job in concerned.values():
            job.let_go = True
        overlaps = sum(job.in_thread for job in concerned.values())
        overlaps += await _cancel(task for task, job in concerned.items() if not job.in_thread)
        if overlaps:
            self._tally.counters.overlaps += overlaps
            _log.warning(
                "%s: %d calls of the handler continue although their partitions are revoked",
                self._settings.name,
                overlaps,
            )

    async def close(self) -> None:
        """Cancel all handlers, and close the writer of failed records."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await _cancel(self._jobs)
        await self.failed_records.close()

    async def _work(self, first: Job) -> None:
        """Run a job, and then further jobs as long as one can begin."""
        task = asyncio.current_task()
        assert task is not None
        job: Job | None = first
        count = 0
        while job is not None and not self._closed:
            self._jobs[task] = job
            await self._run(job, task)
            while task.cancelling():
                task.uncancel()  # the handler ignored its cancellation; the task itself continues
            self._ended(job.topic_partition)
            count += 1
            if count % YIELD_EVERY == 0:
                self._jobs[task] = None
                await asyncio.sleep(0)
            job = self._scheduler.take_one(self._outlet.now_ms())

    def _left(self, task: asyncio.Task[None]) -> None:
        job = self._jobs.pop(task)
        error = None if task.cancelled() else task.exception()
        if job is not None and (task.cancelled() or error is not None):
            # A task that was cancelled before its first step has not run the job.
            self._scheduler.abandon(job)
        if error is not None:
            self._fail(error if job is None else self._policy.broken(job, error))
        self._ended(None)

    # One job

    async def _run(self, job: Job, task: asyncio.Task[None]) -> None:
        """Run a job to an outcome. A cancelled one has none: `_left` abandons it."""
        scheduler = self._scheduler
        out = self._new_out()
        handled: list[ConsumerRecord] = []
        if job.error is not None:
            # Without an error the processor waits itself, right before it calls the handler.
            await self._held(job)
        elif not job.let_go:
            handled = await self._attempt(job, out, task)
        if job.let_go or not scheduler.is_current(job):
            self._discard(out)
            scheduler.abandon(job)
        elif job.error is None:
            self._count_handled(job, handled)
            self._finish(job, out)
        else:
            await self._failed(job, job.error)

    async def _held(self, job: Job) -> None:
        """Wait until it is certain whether the partition still belongs to this member."""
        while not (self._valid(job.topic_partition) or job.let_go):  # noqa: ASYNC110 - no event announces the end
            await asyncio.sleep(LOOK_AGAIN_S)

    def _discard(self, out: Publisher) -> None:
        if isinstance(out, Outbox):
            self._processor.written([out], False)  # noqa: FBT003 - the parameter is positional

    async def _attempt(
        self, job: Job, out: Publisher, task: asyncio.Task[None]
    ) -> list[ConsumerRecord]:
        """Call the handler and return the records that it handled. An exception becomes the job's error."""
        if job.attempt == 1 and job.topic_partition.topic in self._sources:
            job.attempt = self._origins.attempt(job.records[0])
        self._tally.counters.in_flight += 1
        job.began_s, job.slow_s = asyncio.get_running_loop().time(), 0.0
        try:
            return await self._processor.process(job, out)
        except asyncio.CancelledError:
            if task.cancelling():
                raise
            job.error = RuntimeError("the handler was cancelled, and not by its worker")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - the handler's error; the policy decides what happens
            job.error = _as_exception(error)
        finally:
            job.began_s = None
            self._tally.counters.in_flight -= 1
        if not isinstance(job.error, Skip):
            self._count("failed", job)
            self._log_failure(job, job.error)
        return []

    def _log_failure(self, job: Job, error: Exception) -> None:
        """Log the first failure of each type at each place with its traceback, except `DeadLetter` and `RetryLater`."""
        if isinstance(error, DeadLetter | RetryLater) or not self._failures.is_new(error):
            return
        _log.warning(
            "%s: the record at %s failed in attempt %d with %s%s (logged once for each type and place)",
            self._settings.name,
            self._origins.text(job.records[0]),
            job.attempt,
            repr_of(error),
            place_in(error),
            exc_info=(type(error), error, trimmed(error)),
        )

    async def _failed(self, job: Job, error: Exception) -> None:
        """Perform the decision of the policy about a job's records."""
        match self._policy.on_failure(job, error, self._outlet.now_ms()):
            case RetryInPlace(due_ms):
                self._again(job, due_ms)
            case WriteRetry(topic, headers, due_ms):
                self.away_until_ms = max(self.away_until_ms, due_ms + AWAY_MS)
                await self._write(job, topic, headers, "retried", due_ms)
            case WriteDeadLetter(topic, headers):
                await self._write(job, topic, headers, "dead_lettered")
            case FinishRecords():
                self._count("skipped", job)
                self._scheduler.finish(job)
            case SplitBatch():
                job.error = None
                self._scheduler.split(job)
            case StopWorker(failure):
                self._stop_at(job, failure)

    def _stop_at(self, job: Job, failure: WorkerFailedError) -> None:
        """Stop the worker because of a job."""
        self._settings.mode.stop_at(self._scheduler, job)
        self._fail(failure)

    def _again(self, job: Job, due_ms: int) -> None:
        """Handle a job's records again later, without a retry topic."""
        self._count("retried", job)
        job.error = None
        self._scheduler.retry(job, due_ms)
        self._ended(None)

    async def _write(
        self,
        job: Job,
        topic: str,
        headers: Headers,
        kind: EventKind,
        due_ms: int = 0,
    ) -> None:
        """Write a record to a dead-letter topic or retry topic, and finish it when the write is acknowledged."""
        record = job.records[0]
        out = self._new_out()
        place = self._origins.text(record)
        waiting = (
            "%s: the record at %s waits to be written to %s (%s); the records behind it wait, too"
        )
        slow_warning = asyncio.get_running_loop().call_later(
            SLOW_WRITE_S, _log.warning, waiting, self._settings.name, place, topic, _reason(job)
        )
        write = (
            self.failed_records.write_retry
            if kind == "retried"
            else self.failed_records.write_letter
        )
        try:
            await write(out, topic, record, headers)
        except MessageTooLargeError as error:
            if kind != "retried":
                self._refused(job, topic, error)
                return
            _log.warning(
                "%s: the record at %s is too large for its retry topic and is retried in place: %s",
                self._settings.name,
                place,
                error,
            )
            self._again(job, due_ms)
        except HeadraceError as error:
            self._refused(job, topic, error)
        else:
            self._count(kind, job)
            if kind == "dead_lettered":
                self._log_letter(place, topic, job)
            if self._scheduler.is_current(job):
                self._finish(job, out)
            else:
                self._scheduler.finish(job)
        finally:
            slow_warning.cancel()

    def _refused(self, job: Job, topic: str, error: HeadraceError) -> None:
        """Write a record again after a pause, or stop the worker, as the policy decides."""
        self._outlet.forget(topic)
        match self._policy.on_refused(job, topic, error, self._outlet.now_ms()):
            case StopWorker(failure):
                self._stop_at(job, failure)
            case WriteAgain(due_ms, advice):
                if advice is not None:
                    _log.warning(
                        "%s: a record cannot be written to %s; the worker retries: %s%s",
                        self._settings.name,
                        topic,
                        error,
                        advice,
                    )
                self._scheduler.retry(job, due_ms)
                self._ended(None)

    def _log_letter(self, place: str, topic: str, job: Job) -> None:
        """Log the first dead letter, the second, the fourth and so on."""
        count = self._tally.counters.dead_lettered
        if not count & (count - 1):
            text = "%s: the record at %s is in the dead-letter topic %s (%d so far): %s"
            _log.info(text, self._settings.name, place, topic, count, _reason(job))

    def _count(self, kind: EventKind, job: Job) -> None:
        self._tally.add(kind, job.records, job.attempt, job.error)

    def _count_handled(self, job: Job, handled: list[ConsumerRecord]) -> None:
        if handled:
            self._tally.add("handled", handled, job.attempt, None)
        if len(handled) < len(job.records):
            duplicates = [record for record in job.records if record not in handled]
            self._tally.add("skipped", duplicates, job.attempt, None)
            self._tally.counters.duplicates += len(duplicates)


def _reason(job: Job) -> str:
    return "" if job.error is None else repr_of(job.error)


def _as_exception(error: BaseException) -> Exception:
    """Return an `Exception` for any error of a handler, so that `sys.exit()` does not end the event loop."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"the handler raised {repr_of(error)}")
    failure.__cause__ = error
    return failure


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> int:
    """Cancel tasks, and return how many have not ended after `CANCEL_TIMEOUT_S`."""
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    if not cancelled:
        return 0
    return len((await asyncio.wait(cancelled, timeout=CANCEL_TIMEOUT_S))[1])
