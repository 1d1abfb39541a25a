"""A worker at work: records from a source to the handler, positions back to the group.

The poller never waits for a handler, so the group keeps this member however long one takes. A partition with much open
work is paused. Only what is finished without a gap is committed. When a partition goes, what runs there is waited for,
within a bound, then its position is committed, and only then the consumer lets it go.

A worker that cannot commit then ends, and says why. The partition goes all the same, or the group would stand still:
with the next heartbeat (KIP-848), or when the worker leaves. Whoever has it next goes on from what is committed, so
what was finished since is handled again. Exactly once, it first waits for how the last transaction ends, and what that
has written counts once or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from headrace.clients.consumer.records import ConsumerRecord
from headrace.dead_letters import letter_headers
from headrace.dead_letters.error_text import message_of
from headrace.errors import (
    ApiError,
    ErrorCode,
    FatalTransactionError,
    HeadraceError,
    StartError,
    TransportError,
    WorkerFailedError,
)
from headrace.types import TopicPartition
from headrace.workers.checking import problems_of
from headrace.workers.counters import Counters, Hook, Tally
from headrace.workers.handovers import Handovers
from headrace.workers.outlet import Outlet
from headrace.workers.pausing import Pauses
from headrace.workers.processing import LOOK_AGAIN_S, Processor
from headrace.workers.scheduler import Scheduler
from headrace.workers.settings import WorkerSettings
from headrace.workers.slots import Slots
from headrace.workers.source import RecordSource
from headrace.workers.status import WorkerState, WorkerStatus
from headrace.workers.threads import HandlerThreads
from headrace.workers.topics import open_source
from headrace.workers.transacting import Transactor, new_transactor

POLL_MS: Final = 1_000
CLOSE_TIMEOUT_S: Final = 10.0
COMMIT_AGAIN_S: Final = 0.2
"""The pause before a transaction is made again while a partition waits to go."""
AT_REST_S: Final = 0.005
"""How long it is waited for other partitions to be at rest, too, so that many are committed at once."""
NOT_OURS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""Why a last commit may fail without harm: the group went on without this member, or the topic is gone."""

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
        self._threads = HandlerThreads(settings.concurrency, f"headrace-{settings.name}")
        self._at_most_once = settings.delivery == "at_most_once"
        self._scheduler = Scheduler(
            ordering=settings.ordering,
            concurrency=settings.concurrency,
            batch=settings.batch,
            max_buffered=settings.max_buffered,
        )
        self._source: RecordSource = open_source(settings, outlet)
        self._processor = processor = Processor(
            settings, outlet, self._threads, self._source, self._scheduler
        )
        self._transactor: Transactor | None = None
        if settings.delivery == "exactly_once":
            self._transactor = new_transactor(
                settings, outlet, self._source, processor.written, self._restore
            )
        self._pauses = Pauses(settings, self._source, self._scheduler, self._transactor)
        self._slots = Slots(
            settings,
            self._scheduler,
            processor,
            outlet,
            transactor=self._transactor,
            valid=self._source.valid,
            tally=Tally(settings.name, counters, hooks),
            ended=self._job_ended,
            failed=self._fail,
        )
        self._state: WorkerState = "starting"
        self._error: str | None = None
        self._counters = counters
        self._commits_at_rest = self._source.commits_at_rest
        self._committed: dict[TopicPartition, int] = {}
        self._ended = asyncio.Event()
        """Something came to an end: a handler, or the wait for one."""
        self._at_rest_now = asyncio.Event()
        """All of a partition is finished."""
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._committing = asyncio.Lock()
        self._handovers = Handovers()
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._closed = False

    # Life

    async def prepare(self) -> list[HeadraceError]:
        """Look whether there is what is to be read and written, and whether it may be, before the group is joined.

        Nothing is taken from other processes.

        Returns:
            Why the worker cannot start.
        """
        checks = [
            self._source.prepare,
            self._check,
            self._slots.aside.prepare,
            self._processor.prepare,
        ]
        if self._transactor is not None and self._transactor.is_new_id:
            checks.append(self._transactor.prepare)
        return await self._problems(checks)

    async def take_over(self) -> list[HeadraceError]:
        """Take the transactional id from a process that has it; called when no worker of the app has a problem.

        Returns:
            Why the worker cannot start.
        """
        if self._transactor is None or self._transactor.is_new_id:
            return []
        return await self._problems([self._transactor.prepare])

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
                    break  # others would wait for the same broker
        if problems:
            self._state, self._error = "failed", "; ".join(map(message_of, problems))
        return problems

    async def _check(self) -> None:
        if problems := await problems_of(self.settings, self._outlet):
            raise StartError(problems)

    async def give_up(self) -> None:
        """Close what `prepare` has opened: the worker does not run."""
        with contextlib.suppress(HeadraceError):
            await self._source.leave(CLOSE_TIMEOUT_S)
        if self._transactor is not None:
            await self._transactor.close()
        await self._slots.close()
        await self._processor.close()

    async def run(self) -> None:
        """Work until `stop`.

        Raises:
            WorkerFailedError: A record could not be handled, and nothing says what to do with such records; or what was
                finished could not be committed when its partition had to go.
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
            await self._source.begin(self)
            self._state = "running"
            tasks = [asyncio.create_task(self._poll()), asyncio.create_task(self._commit_often())]
            for task in tasks:
                task.add_done_callback(self._task_ended)
            await self._done
        finally:
            refused = await self._end(tasks)
        if refused is not None:
            raise refused

    def stop(self) -> None:
        """Have `run` end: what runs is finished within the bound, what has not begun is left to others."""
        if not self._done.done():
            self._done.set_result(None)

    def _fail(self, error: BaseException) -> None:
        if not self._done.done():
            self._done.set_exception(error)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> WorkerFailedError | None:
        """Drain, commit and leave; return why what was finished could not be committed, if so."""
        self._stopping = True
        self._state = "stopping"
        if not self._at_most_once:
            self._scheduler.stop(self._scheduler.partitions)
        await self._handovers.none()  # a partition that is being given up is given up in order
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            # All partitions are given up: `on_revoked` waits for handlers and commits.
            await self._source.leave(self.settings.drain_timeout_s + CLOSE_TIMEOUT_S)
        except WorkerFailedError as error:
            return error
        except HeadraceError as error:
            _log.warning("%s: leaving the group failed: %s", self.settings.name, error)
        finally:
            self._closed = True
            await self._slots.close()
            if self._transactor is not None:
                await self._transactor.close()
            if self._timer is not None:
                self._timer.cancel()
            await self._processor.close()
            self._threads.close()
        return None

    # Records in

    async def _poll(self) -> None:
        limit = self.settings.concurrency * (self.settings.batch or 1)
        while not self._stopping:
            wait_ms = self._wait_ms()
            timeout_s = (POLL_MS if wait_ms is None else min(POLL_MS, wait_ms)) / 1000
            if self._at_most_once:
                records = await self._source.poll(timeout_s, limit)
                async with self._handovers:  # what is committed is handled, also if the end comes
                    self._take_in(await self._committed_before(records))
                    self._start()
            else:
                records = await self._next(timeout_s)
                # Nothing may wait between taking records and adding them: positions count on it.
                self._take_in(records)
                if records and self._source.begins_late:
                    await self._commit_beginnings()
                self._start()
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

    async def _next(self, timeout_s: float) -> Sequence[ConsumerRecord]:
        try:
            return await self._source.poll(timeout_s)
        except TransportError as error:
            # A consumer that nobody has answered yet may have a wrong address; its worker's producer was answered.
            if self._transactor is None:
                raise
            _log.warning(
                "%s: no broker answers, and it is tried again: %s", self.settings.name, error
            )
            return []

    def _take_in(self, records: Sequence[ConsumerRecord]) -> None:
        if self._stopping and not self._at_most_once:
            return
        now_ms = self._outlet.now_ms()
        wanted: list[ConsumerRecord] = []
        for record in records:
            if self._pauses.may_hold and self._pauses.hold(record, now_ms):
                continue
            if record.headers and not letter_headers.is_for(record, self.settings.group):
                self._scheduler.add(wanted)
                wanted = []
                self._scheduler.skip(record)
                self._counters.passed_over += 1
            else:
                wanted.append(record)
        self._scheduler.add(wanted)
        self._pauses.look(TopicPartition(*place) for place in {record[:2] for record in records})

    async def _committed_before(
        self, records: Sequence[ConsumerRecord]
    ) -> Sequence[ConsumerRecord]:
        """Return records whose offsets are committed, for at most once; others are read again."""
        after = {
            TopicPartition(record.topic, record.partition): record.offset + 1 for record in records
        }
        if not after:
            return []
        try:
            await self._source.commit(after)
        except HeadraceError as error:
            _log.warning(
                "%s: records wait until their offsets are committed: %s", self.settings.name, error
            )
        else:
            return records
        first: dict[TopicPartition, int] = {}
        for record in records:
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        assigned = self._source.positions()
        for name, offset in first.items():
            if name in assigned:
                self._source.seek(name, offset)
        return []

    # Work

    def _start(self) -> None:
        """Begin what can begin now, and come back when more is due."""
        if self._closed:
            return
        now_ms = self._outlet.now_ms()
        self._pauses.release(now_ms)
        self._slots.start()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (wait_ms := self._wait_ms()) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(wait_ms / 1000, self._start)

    def _wait_ms(self) -> int | None:
        """Return how long it is until something is due; None where nothing is."""
        moments = list(self._pauses.held.values())
        if (
            not self._scheduler.saturated
            and (due_ms := self._scheduler.next_deadline_ms) is not None
        ):
            moments.append(due_ms)
        return max(1, min(moments) - self._outlet.now_ms()) if moments else None

    def _job_ended(self, name: TopicPartition | None) -> None:
        self._ended.set()
        if name is None:
            self._start()
        else:
            self._pauses.make_room(name)
            if self._commits_at_rest and not self._scheduler.unfinished([name]):
                self._at_rest_now.set()

    # Positions

    async def _commit_often(self) -> None:
        error = None
        while not self._at_most_once:
            # What can be committed without what was refused is committed soon.
            soon = self._transactor is not None and (error is None or self._transactor.set_aside)
            if self._transactor is not None and soon:
                await self._transactor.wait(self.settings.transaction_ms / 1000)
            else:
                await self._time_to_commit()
            error = await self._commit(None)
            if isinstance(error, FatalTransactionError | WorkerFailedError):
                raise error

    async def _time_to_commit(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.commit_interval_s):
                await self._at_rest_now.wait()
                await asyncio.sleep(AT_REST_S)
        self._at_rest_now.clear()

    async def _commit(self, partitions: Collection[TopicPartition] | None) -> HeadraceError | None:
        """Commit how far partitions (None: all) are finished; return why they could not be, if so."""
        async with self._committing:
            try:
                if self._transactor is not None:
                    self._note(await self._transactor.settle())
                wanted = self._news(partitions)
                if wanted and self._transactor is not None:
                    self._note(await self._transactor.commit(wanted))
                elif wanted:
                    await self._source.commit(wanted)
                    self._committed.update(wanted)
            except HeadraceError as error:
                _log.warning("%s: positions are not committed: %s", self.settings.name, error)
                return error
            return None

    async def _restore(self, topic: str) -> None:
        await self._slots.aside.restore(topic)
        await self._processor.restore(topic)

    async def _commit_at_last(self, partitions: Collection[TopicPartition]) -> HeadraceError | None:
        """Commit before partitions go: until it is done, or cannot be, or `request.timeout.ms` is over."""
        error = await self._commit(partitions)
        if self._transactor is None:
            return error
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._source.commit_timeout_s):
                while error is not None and not _is_final(error):
                    await asyncio.sleep(COMMIT_AGAIN_S)
                    error = await self._commit(partitions)
        return error

    def _note(self, committed: Mapping[TopicPartition, int]) -> None:
        """Take note of what a transaction has committed."""
        assigned = self._source.positions()
        self._committed.update((name, at) for name, at in committed.items() if name in assigned)
        for name in committed:
            self._pauses.make_room(name)

    async def _commit_beginnings(self) -> None:
        """Commit where reading began: a restart would else begin at the end, behind what is being handled now."""
        began = [name for name in self._scheduler.partitions if name not in self._committed]
        if began:
            await self._commit(began)

    def _news(self, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, int]:
        positions = self._source.positions()
        wanted: dict[TopicPartition, int] = {}
        for name, finished in self._scheduler.positions().items():
            if name not in positions or (partitions is not None and name not in partitions):
                continue
            at = finished
            if not self._stopping and not self._scheduler.unfinished([name]):
                at = max(at, positions[name] or 0)  # what lies between are marks of transactions
            if self._committed.get(name) != at:
                wanted[name] = at
        return wanted

    # What the group says

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """Finish what runs in these partitions, within the bound, and commit: then they may go.

        Raises:
            WorkerFailedError: The commit failed until `request.timeout.ms` was over. They go all the same, and the
                worker ends.
        """
        async with self._handovers:
            if not self._at_most_once:
                self._scheduler.stop(partitions)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.drain_timeout_s):
                    await self._drained(partitions)
            await self._slots.let_go(set(partitions))
            error = None if self._at_most_once else await self._commit_at_last(partitions)
            self._forget(partitions)
        if error is not None and _refusal(error) not in NOT_OURS:
            raise self._unconfirmed(partitions, error)

    def _unconfirmed(
        self, partitions: Collection[TopicPartition], error: HeadraceError
    ) -> WorkerFailedError:
        failure = WorkerFailedError(
            f"the worker {self.settings.name!r} stopped: {', '.join(map(str, partitions))} had to go to other members "
            f"of the group {self.settings.group!r}, and what was finished there could not be committed: {error}. It "
            "is handled again. Look to the brokers, and start the worker again"
        )
        failure.__cause__ = error
        return failure

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        """These are others' already: end what runs there, and commit nothing."""
        async with self._handovers:
            self._scheduler.stop(partitions)
            await self._slots.let_go(set(partitions))
            self._forget(partitions)

    async def _drained(self, partitions: Collection[TopicPartition]) -> None:
        """Wait until nothing runs in partitions, or until they may belong to others."""
        while self._scheduler.busy(partitions) or (
            self._at_most_once and self._scheduler.unfinished(partitions)
        ):
            if not all(map(self._source.valid, partitions)):
                return
            self._ended.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._ended.wait()

    def _forget(self, partitions: Collection[TopicPartition]) -> None:
        self._scheduler.drop(partitions)
        if self._transactor is not None:
            self._transactor.drop(partitions)
        self._processor.forget(partitions)
        self._pauses.forget(partitions)
        for name in partitions:
            self._committed.pop(name, None)

    # What is asked

    def status(self) -> WorkerStatus:
        """Return how it is getting on; on its event loop."""
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
    def _at_rest(self) -> bool:
        """Whether nothing is open, nor on its way from the consumer to the scheduler."""
        return self._scheduler.idle and not self._handovers.under_way

    async def idle(self) -> bool:
        """Whether every record that is there now is finished; then positions are committed too."""
        if self._source.stopped:
            return True
        if self._pauses.held or not self._at_rest:
            return False
        if self._outlet.now_ms() < self._slots.away_until_ms:
            return False
        if not await self._source.caught_up() or not self._at_rest:
            return False
        before = dict(self._committed)
        error = await self._commit(None)
        if self._transactor is not None:
            # What was committed just now may be another worker's work, as soon as it can be read.
            news = error is not None or self._committed != before or not self._transactor.empty
            return not news and await self._outlet.settled(self._transactor.written_to)
        return True


def _refusal(error: HeadraceError) -> ErrorCode | None:
    """Return the broker's word behind an error."""
    cause = error if isinstance(error, ApiError) else error.__cause__
    return cause.code if isinstance(cause, ApiError) else None


def _is_final(error: HeadraceError) -> bool:
    final = isinstance(error, FatalTransactionError | WorkerFailedError)
    return final or _refusal(error) in NOT_OURS
