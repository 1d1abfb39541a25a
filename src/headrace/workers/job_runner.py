"""Runs the scheduler's jobs on one event loop, as many at once as the scheduler allows, and reports their outcomes."""

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
from headrace.workers.committing import Committer
from headrace.workers.counters import EventKind, Tally
from headrace.workers.failed_records import FailedRecordWriter
from headrace.workers.failure_policy import (
    FailurePolicy,
    FinishRecords,
    RetryInPlace,
    SplitBatch,
    StopWorker,
    WriteAgain,
    WriteDeadLetter,
    WriteRetry,
)
from headrace.workers.failures import Failures, place_in, trimmed
from headrace.workers.loop_watch import where_is
from headrace.workers.outbox import Outbox, Publisher
from headrace.workers.outcomes import DeadLetter, RetryLater, Skip
from headrace.workers.outlet import Outlet
from headrace.workers.processing import Processor
from headrace.workers.revocation import LOOK_AGAIN_S
from headrace.workers.scheduler import Job, Scheduler
from headrace.workers.settings import WorkerSettings

AWAY_MS: Final = 250
"""How long after its due time a record may need to arrive from a retry topic, in milliseconds."""
SLOW_WRITE_S: Final = 3.0
"""The time in seconds after which the write of a dead letter, or of a record for a retry topic, is logged as slow."""
SLOW_HANDLER_S: Final = 60.0
"""The time in seconds after which a running handler is logged as slow: then after twice the time, and so on."""
LOOK_SLOW_S: Final = 10.0
"""The time in seconds between two searches for slow handlers."""
CANCEL_TIMEOUT_S: Final = 1.0
"""How long a cancelled handler may take to end, in seconds, before it counts as an overlap."""
YIELD_EVERY: Final = 32
"""The number of jobs that one task runs without a wait before it lets other tasks run."""

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
            scheduler: Hands out jobs and takes their outcomes.
            processor: Calls the handler.
            outlet: Writes dead letters and records for retry topics.
            committer: Finishes jobs, with what their handlers wrote.
            valid: Returns whether a partition belongs to this member at this moment.
            tally: Counts records and calls the hooks.
            ended: Called with a partition when a job of it has ended; with None when a task has no further job.
            failed: Called with the error for which the worker stops.
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
        self.failed_records = FailedRecordWriter(settings, outlet)
        self._failures = Failures()
        self._policy = FailurePolicy(settings.failure_rules(), self._origins, self._failures)
        self._jobs: dict[asyncio.Task[None], Job | None] = {}
        """The job that each task runs; None while the task only lets others run."""
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self.away_until_ms = 0
        """Until when, in milliseconds since 1970, records may be on the way from a retry topic back to this worker."""

    def start(self) -> None:
        """Begin what can begin now."""
        if self._timer is None and not self._closed:
            self._look()
        for job in self._scheduler.take(self._outlet.now_ms()):
            task = asyncio.create_task(self._work(job))
            self._jobs[task] = job
            task.add_done_callback(self._left)

    def _look(self) -> None:
        """Tell of handlers that run for long: what is behind their records waits."""
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
                    "%s: the handler of the record at %s has been running for %d s%s, and holds up what is behind it",
                    self._settings.name,
                    self._origins.text(job.records[0]),
                    running_s,
                    " in its thread" if job.in_thread else where_is(task.get_coro()),
                )

    async def let_go(self, partitions: Collection[TopicPartition]) -> None:
        """Cancel what runs of these partitions; what cannot be cancelled, or does not end by it, is counted."""
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
                "%s: %d calls of the handler run on although their partitions are given up",
                self._settings.name,
                overlaps,
            )

    async def close(self) -> None:
        """Wait for nothing any more."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        await _cancel(self._jobs)
        await self.failed_records.close()

    async def _work(self, first: Job) -> None:
        """Run one job after another, as long as there are any."""
        task = asyncio.current_task()
        assert task is not None
        job: Job | None = first
        count = 0
        while job is not None and not self._closed:
            self._jobs[task] = job
            await self._run(job, task)
            while task.cancelling():
                task.uncancel()  # that was about the job, and the handler took no notice
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
            self._scheduler.abandon(job)  # it may not even have begun
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
            await self._held(job)  # an attempt looks by itself, right before the handler is called
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
        """Wait while it is not known whether the partition still belongs to this member."""
        while not (self._valid(job.topic_partition) or job.let_go):  # noqa: ASYNC110 - nothing tells of time
            await asyncio.sleep(LOOK_AGAIN_S)

    def _discard(self, out: Publisher) -> None:
        if isinstance(out, Outbox):
            self._processor.written([out], False)  # noqa: FBT003 - as the parameter

    async def _attempt(
        self, job: Job, out: Publisher, task: asyncio.Task[None]
    ) -> list[ConsumerRecord]:
        """Call the handler and return the records that it handled; what it raises is the job's error."""
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
        except BaseException as error:  # noqa: BLE001 - the program's; `_failed` finds what becomes of it
            job.error = _as_exception(error)
        finally:
            job.began_s = None
            self._tally.counters.in_flight -= 1
        if not isinstance(job.error, Skip):
            self._count("failed", job)
            self._tell_of_failure(job, job.error)
        return []

    def _tell_of_failure(self, job: Job, error: Exception) -> None:
        """Log the first failure of each type at each place with its traceback; what a handler asks for is none."""
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
        """Do with a job's records what the policy decides."""
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
        """Handle a job's records again where they are."""
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
        """Keep a record elsewhere; only when that is safe it is finished here, and until then it is tried again."""
        record = job.records[0]
        out = self._new_out()
        place = self._origins.text(record)
        waiting = (
            "%s: the record at %s waits to be written to %s (%s), and holds up what is behind it"
        )
        told = asyncio.get_running_loop().call_later(
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
                "%s: the record at %s waits where it is: %s", self._settings.name, place, error
            )
            self._again(job, due_ms)
        except HeadraceError as error:
            self._refused(job, topic, error)
        else:
            self._count(kind, job)
            if kind == "dead_lettered":
                self._tell_of_letter(place, topic, job)
            if self._scheduler.is_current(job):
                self._finish(job, out)
            else:
                self._scheduler.finish(job)
        finally:
            told.cancel()

    def _refused(self, job: Job, topic: str, error: HeadraceError) -> None:
        """Write a record again after a pause, or stop the worker, as the policy decides."""
        self._outlet.forget(topic)
        match self._policy.on_refused(job, topic, error, self._outlet.now_ms()):
            case StopWorker(failure):
                self._stop_at(job, failure)
            case WriteAgain(due_ms, advice):
                if advice is not None:
                    _log.warning(
                        "%s: a record cannot be written to %s, and it is tried again: %s%s",
                        self._settings.name,
                        topic,
                        error,
                        advice,
                    )
                self._scheduler.retry(job, due_ms)
                self._ended(None)

    def _tell_of_letter(self, place: str, topic: str, job: Job) -> None:
        """Log the first dead letter, the second, the fourth and so on."""
        count = self._tally.counters.dead_lettered
        if not count & (count - 1):
            text = "%s: the record at %s is in the dead letters, %s (%d so far): %s"
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
    """Return an exception that fails a record and nothing else: `sys.exit()` in a handler ends no event loop."""
    if isinstance(error, Exception):
        return error
    failure = RuntimeError(f"the handler raised {repr_of(error)}")
    failure.__cause__ = error
    return failure


async def _cancel(tasks: Iterable[asyncio.Task[None]]) -> int:
    """Cancel tasks; return how many have not ended soon after."""
    cancelled = list(tasks)
    for task in cancelled:
        task.cancel()
    if not cancelled:
        return 0
    return len((await asyncio.wait(cancelled, timeout=CANCEL_TIMEOUT_S))[1])
