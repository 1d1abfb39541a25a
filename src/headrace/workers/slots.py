"""Runs a scheduler's jobs, as many at once as it allows, and sees to what becomes of those that fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from typing import Final

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters import letter_headers
from headrace.dead_letters.error_text import repr_of
from headrace.errors import (
    HeadraceError,
    MessageTooLargeError,
    TransportError,
    WorkerFailedError,
)
from headrace.types import TopicPartition
from headrace.workers.aside import Aside
from headrace.workers.counters import EventKind, Tally
from headrace.workers.failures import Failures, place_in, trimmed
from headrace.workers.loop_watch import where_is
from headrace.workers.origins import Origins
from headrace.workers.outbox import Outbox, Publisher
from headrace.workers.outcomes import (
    MAX_PAUSE_S,
    DeadLetter,
    FailureOutcome,
    RetryLater,
    Skip,
    UnusableHandlerError,
    failure_outcome,
)
from headrace.workers.outlet import Outlet
from headrace.workers.processing import LOOK_AGAIN_S, Processor
from headrace.workers.refusals import is_over, remedy
from headrace.workers.scheduler import Job, Scheduler
from headrace.workers.seen.keys import UnkeptError
from headrace.workers.settings import WorkerSettings
from headrace.workers.transacting import Transactor

WRITE_AGAIN_MS: Final = 1_000
"""The pause before a dead letter, or a record for a retry topic, is written again that could not be."""
REFUSALS_EVERY_MS: Final = 30_000
"""How often a topic to which nothing can be written is a warning."""
AWAY_MS: Final = 250
"""How much longer than until it is due a record may be on its way out of a retry topic."""
SLOW_WRITE_S: Final = 3.0
"""After so long it is told that a dead letter, or a record for a retry topic, is still being written."""
SLOW_HANDLER_S: Final = 60.0
"""After so long it is told that a handler is still running; then again after twice as long, and so on."""
LOOK_SLOW_S: Final = 10.0
"""How often it is looked for such handlers."""
CANCEL_TIMEOUT_S: Final = 1.0
"""How long a cancelled handler may take to end before it counts as running on."""
YIELD_EVERY: Final = 32
"""Jobs that end without waiting before others get the event loop."""

_log: Final = logging.getLogger("headrace.workers")


class Slots:
    """The handlers of one worker that run at the moment."""

    def __init__(
        self,
        settings: WorkerSettings,
        scheduler: Scheduler,
        processor: Processor,
        outlet: Outlet,
        *,
        transactor: Transactor | None,
        valid: Callable[[TopicPartition], bool],
        tally: Tally,
        ended: Callable[[TopicPartition | None], object],
        failed: Callable[[BaseException], object],
    ) -> None:
        """Prepare to run jobs.

        Args:
            settings: The worker's.
            scheduler: Where jobs come from and outcomes go.
            processor: What calls the handler.
            outlet: Where dead letters go.
            transactor: Where goes what is written with the records' positions; None writes at once.
            valid: Whether a partition's records may be handled at this moment.
            tally: What counts.
            ended: Called when a job of a partition has ended, and (with None) when there is none to begin.
            failed: Called with what the worker has to stop for.
        """
        self._settings = settings
        self._scheduler = scheduler
        self._processor = processor
        self._outlet = outlet
        self._transactor = transactor
        self._valid = valid
        self._tally = tally
        self._ended = ended
        self._fail = failed
        self._sources = settings.retry_topics()
        self._pauses_s = settings.pauses_s
        self._origins = Origins(settings)
        self.aside = Aside(settings, outlet)
        self._failures = Failures()
        self._jobs: dict[asyncio.Task[None], Job | None] = {}
        self._closed = False
        self._warn_of_refusals_ms: dict[str, int] = {}
        """By topic, when the next refusal is a warning."""
        self._timer: asyncio.TimerHandle | None = None
        self.away_until_ms = 0
        """Until when records may be nowhere to be seen that were sent to a retry topic: the broker has them."""

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
        await self.aside.close()

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
            self._fail(error if job is None else self._broken(job, error))
        self._ended(None)

    def _broken(self, job: Job, error: BaseException) -> WorkerFailedError:
        """Return what to say of an error that is neither the handler's nor a broker's."""
        failure = WorkerFailedError(
            f"the worker {self._settings.name!r} stopped at the record at {self._origins.text(job.records[0])}, which "
            f"is not committed: {repr_of(error)}"
        )
        failure.__cause__ = error
        return failure

    # One job

    async def _run(self, job: Job, task: asyncio.Task[None]) -> None:
        """Run a job to an outcome. A cancelled one has none: `_left` abandons it."""
        scheduler = self._scheduler
        out = self._out()
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
        """Wait while it is not known whose a partition is: it is lost in a moment, or was not told that it is not."""
        while not (self._valid(job.topic_partition) or job.let_go):  # noqa: ASYNC110 - nothing tells of time
            await asyncio.sleep(LOOK_AGAIN_S)

    def _out(self) -> Publisher:
        return self._outlet if self._transactor is None else Outbox(self._outlet)

    def _finish(self, job: Job, out: Publisher) -> None:
        """Take a job for finished, with what it has led to."""
        if self._transactor is not None and isinstance(out, Outbox):
            self._transactor.keep(job, out)
        self._scheduler.finish(job)

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
            "%s: the record at %s failed in attempt %d with %s%s (told once for each type and place)",
            self._settings.name,
            self._origins.text(job.records[0]),
            job.attempt,
            repr_of(error),
            place_in(error),
            exc_info=(type(error), error, trimmed(error)),
        )

    async def _failed(self, job: Job, error: Exception) -> None:
        settings = self._settings
        outcome = failure_outcome(
            error,
            job.attempt,
            settings.retry,
            dead_letters=settings.dead_letter is not False,
            on_failure=settings.on_failure,
        )
        if outcome is FailureOutcome.RETRY:
            await self._retry(job, error)
        elif len(job.records) > 1 and not isinstance(error, Skip | UnusableHandlerError):
            job.error = None
            self._scheduler.split(job)
        elif outcome is FailureOutcome.SKIP:
            self._count("skipped", job)
            self._scheduler.finish(job)
        elif outcome is FailureOutcome.DEAD_LETTER:
            record = job.records[0]
            topic = settings.dead_letter_topic(self._origins.home(record))
            traceback = self._failures.text(error)
            place = self._origins.of(record)
            headers = letter_headers.dead_letter_headers(
                record, place, settings.group, job.attempt, error, traceback=traceback
            )
            await self._write(job, topic, headers, "dead_lettered")
        else:
            self._give_up(job)
            self._fail(self._last_words(job, error))

    def _give_up(self, job: Job) -> None:
        """Take note that the worker stops at a job."""
        # For at most once the record is lost already, and those behind it are to be handled before the end.
        lost = self._settings.delivery == "at_most_once"
        (self._scheduler.finish if lost else self._scheduler.abandon)(job)

    async def _retry(self, job: Job, error: Exception) -> None:
        pause_s = _asked_for(error)
        if pause_s is None:
            pause_s = self._settings.retry.pause_s(job.attempt)
        due_ms = self._outlet.now_ms() + round(pause_s * 1000)
        if not self._settings.retry.topics:
            self._again(job, due_ms)
            return
        record = job.records[0]
        long_enough = [pause for pause in self._pauses_s if pause >= pause_s]
        seconds = min(long_enough, default=self._pauses_s[-1])
        topic = letter_headers.retry_topic(self._origins.source(record), seconds)
        headers = letter_headers.retry_headers(
            record,
            self._origins.of(record),
            self._settings.group,
            job.attempt + 1,
            due_ms,
            delayed=self._settings.delivery != "exactly_once",  # transactions do not delay
        )
        self.away_until_ms = max(self.away_until_ms, due_ms + AWAY_MS)
        await self._write(job, topic, headers, "retried", due_ms)

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
        headers: letter_headers.Headers,
        kind: EventKind,
        due_ms: int = 0,
    ) -> None:
        """Keep a record elsewhere; only when that is safe it is finished here, and until then it is tried again."""
        record = job.records[0]
        out = self._out()
        place = self._origins.text(record)
        waiting = (
            "%s: the record at %s waits to be written to %s (%s), and holds up what is behind it"
        )
        told = asyncio.get_running_loop().call_later(
            SLOW_WRITE_S, _log.warning, waiting, self._settings.name, place, topic, _reason(job)
        )
        write = self.aside.write_retry if kind == "retried" else self.aside.write_letter
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
        """Write a record again in a moment that could not be written, as long as that may help."""
        now_ms = self._outlet.now_ms()
        if job.refused_ms is None:
            job.refused_ms = now_ms
        self._outlet.forget(topic)
        if is_over(error, job.refused_ms, now_ms):
            self._give_up(job)
            self._fail(self._unwritten(job, topic, error))
            return
        if now_ms >= self._warn_of_refusals_ms.get(topic, 0):  # many records may wait for one topic
            self._warn_of_refusals_ms[topic] = now_ms + REFUSALS_EVERY_MS
            _log.warning(
                "%s: a record cannot be written to %s, and it is tried again: %s%s",
                self._settings.name,
                topic,
                error,
                self._remedy(error),
            )
        self._scheduler.retry(job, now_ms + WRITE_AGAIN_MS)
        self._ended(None)

    def _unwritten(self, job: Job, topic: str, error: HeadraceError) -> WorkerFailedError:
        failure = WorkerFailedError(
            f"the worker {self._settings.name!r} stopped: the record at {self._origins.text(job.records[0])} failed "
            f"with {_reason(job)} and cannot be written to {topic!r}: {error}. {remedy(error)}, and start the worker "
            f"again. {self._fate}"
        )
        failure.__cause__ = error
        return failure

    def _remedy(self, error: HeadraceError) -> str:
        """Return what to do where streams are read, and there may be no broker at all."""
        if self._settings.streams is None or not isinstance(error, TransportError):
            return ""
        return '. Is a broker running there? dead_letter="kinesis://STREAM" needs none'

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

    @property
    def _fate(self) -> str:
        """What becomes of a record at which the worker stops."""
        if self._settings.delivery == "at_most_once":
            return "It was committed before, and does not come again."
        return "It is not committed and comes again at the next start."

    def _last_words(self, job: Job, error: Exception) -> WorkerFailedError:
        record = job.records[0]
        place, advice = self._origins.text(record), ""
        if isinstance(error, UnkeptError):
            what = f"the record at {place} {error}"
        elif isinstance(error, UnusableHandlerError):
            what = f"the record at {place} was not handled: {error}"
        else:
            what = (
                f"the record at {place} failed in attempt {job.attempt} of {self._settings.retry.attempts} with "
                f"{repr_of(error)}{place_in(error)}"
            )
            advice = ' dead_letter=True keeps such records aside, on_failure="skip" drops them'
        failure = WorkerFailedError(
            f"the worker {self._settings.name!r} stopped: {what}. {self._fate}{advice}"
        )
        failure.__cause__ = error
        return failure


def _reason(job: Job) -> str:
    return "" if job.error is None else repr_of(job.error)


def _asked_for(error: Exception) -> float | None:
    """Return the pause that a handler asked for; None where it asked for none that is possible."""
    delay_s = getattr(error, "delay_s", None) if isinstance(error, RetryLater) else None
    if isinstance(delay_s, int | float) and 0 <= delay_s <= MAX_PAUSE_S:
        return delay_s
    return None


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
