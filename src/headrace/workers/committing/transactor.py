"""Exactly once: one transaction writes the results of handlers and commits the offsets of their records.

A handler does not write to the log. An `Outbox` keeps its results until all earlier records of the partition are
finished, too. Then one transaction writes the results and commits the offset behind the records. This has four effects:

* A transaction is open for a short time only.
* A failed attempt of a handler writes no results.
* An aborted transaction is repeated with the kept results. No record is handled again for it, and the order is kept.
* If a partition is revoked, its kept results are dropped.

The group coordinator refuses commits of former members (KIP-447), because each transaction contains the member's
generation. So one producer serves all partitions of the worker.

If a commit has no response, the transaction may be committed or not. `settle` determines this before any other step:
(1) The producer repeats the commit. (2) If the producer was fenced, a new producer takes over the transactional id,
which ends the transaction. (3) `settle` reads the committed offsets of the group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.clients.flows.transactions import GroupMember
from headrace.clients.producer.aio import Producer
from headrace.clients.producer.delivery import Delivery
from headrace.clients.producer.transaction_offsets import member_of
from headrace.dead_letters.letter_headers import origin_of, origin_text
from headrace.errors import (
    AbortableTransactionError,
    ApiError,
    ErrorCode,
    FatalTransactionError,
    HeadraceError,
    ProducerFencedError,
    TransactionStateError,
    TransportError,
    WorkerFailedError,
)
from headrace.types import TopicPartition
from headrace.workers.core.scheduler import Job
from headrace.workers.failure.refusals import is_over, remedy
from headrace.workers.output.outbox import Outbox
from headrace.workers.output.outlet import Outlet
from headrace.workers.topic_source import TopicSource

if TYPE_CHECKING:
    from headrace.clients.consumer.aio import Consumer
    from headrace.workers.settings import WorkerSettings
    from headrace.workers.source import RecordSource

UNAVOIDABLE_ERRORS: Final = frozenset(
    {
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.INVALID_REQUEST,
    }
)
"""Errors that no new producer with the same transactional id can avoid."""

ERRORS_OF_TRANSACTIONS: Final = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""Errors that refuse a record because of its transaction, and not because of the record."""
WRITE_AGAIN_MS: Final = 1_000
"""The pause before a refused result is written again, in milliseconds."""
TAKE_OVER_TIMEOUT_S: Final = 10.0
"""The longest wait of a new worker for its transactional id, in seconds: its predecessor's transaction must end."""

_log: Final = logging.getLogger("headrace.workers")

Offsets = Mapping[TopicPartition, int]


@dataclass(slots=True)
class _Kept:
    """The results of one job. Its records are committed together."""

    place: str
    """The origin of the first record, for messages."""
    first: int
    """The offset of the job's first record."""
    last: int
    """The offset of the job's last record."""
    box: Outbox
    not_before_ms: int = 0
    """The time before which refused results are not written again, in milliseconds since 1970. Later results of the
    partition wait, too. 0 if nothing was refused."""
    refused_ms: int | None = None
    """The time of the first refusal, in milliseconds since 1970; None without one."""


class Transactor:
    """The kept results of one worker, and the transactions that commit them."""

    def __init__(
        self,
        outlet: Outlet,
        consumer: Consumer,
        group: str,
        make_producer: Callable[[], Producer],
        *,
        shared_id: str | None = None,
        is_new_id: bool = True,
        max_records: int,
        on_end: Callable[[Iterable[Outbox], bool], object],
        restore: Callable[[str], Awaitable[object]] | None = None,
    ) -> None:
        """Prepare the first transaction.

        Args:
            outlet: Reads committed offsets, and has the clock.
            consumer: The consumer of the worker.
            group: The consumer group.
            make_producer: Returns a new producer with the worker's transactional id.
            shared_id: The transactional id from the settings, which other processes may have, too. None if the worker
                has made a unique id.
            is_new_id: Whether the id was made for this worker, so that no other process can have it.
            max_records: The number of new results at which a transaction begins at once.
            on_end: Called with outboxes that were committed (true) or dropped (false).
            restore: Creates a topic again if it was deleted. Called before refused results are written again. None if
                the worker creates no topics.
        """
        self._outlet = outlet
        self._consumer = consumer
        self._group = group
        self._make_producer = make_producer
        self._producer = make_producer()
        self._shared_id = shared_id
        self.is_new_id = is_new_id
        self._max_records = max_records
        self._on_end = on_end
        self._restore = restore
        self._refusing: set[str] = set()
        """Topics to which results could not be written. They may have been deleted."""
        self._stop_error: WorkerFailedError | None = None
        """The error of the last attempt, if no further attempt can write the kept results; else None."""
        self._kept: dict[TopicPartition, dict[int, _Kept]] = {}
        """The kept results, by partition and by the offset of the last record of their job."""
        self._at: dict[TopicPartition, int] = {}
        """The offset that was committed last, by partition."""
        self._count = 0
        """The number of results that were kept since the last `wait`."""
        self._many = asyncio.Event()
        """Set when there are so many results that a transaction should begin at once."""
        self._doubt: dict[TopicPartition, int] | None = None
        """The offsets of a transaction that may be committed or not; None if the result of the last one is known."""
        self._committing: set[TopicPartition] = set()
        """The partitions whose offsets the open transaction commits."""
        self._has_lost = False
        """Whether one of these partitions was revoked since the transaction began."""
        self.written_to: set[str] = set()
        """The topics to which results were written."""

    # Results

    def keep(self, job: Job, box: Outbox) -> None:
        """Keep the results of a job. Call this before the job's records count as finished."""
        if not (box.outputs or box.keys):
            return
        first, last = job.records[0].offset, job.records[-1].offset
        self._kept.setdefault(job.topic_partition, {})[last] = _Kept(
            origin_text(origin_of(job.records[0])), first, last, box
        )
        self._count += len(box.outputs)
        if self._count >= self._max_records:
            self._many.set()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop the kept results of partitions that belong to other members now."""
        for name in partitions:
            self._has_lost |= name in self._committing
            self._end(self._kept.pop(name, {}).values(), written=False)
            self._at.pop(name, None)
            if self._doubt is not None:
                self._doubt.pop(name, None)  # from now on the next owner commits its offsets

    def waiting_calls(self, name: TopicPartition) -> int:
        """Return the number of handler calls of a partition whose results wait for their transaction."""
        return len(self._kept.get(name, ()))

    @property
    def empty(self) -> bool:
        """Whether all results of handlers are committed."""
        return not any(self._kept.values())

    @property
    def set_aside(self) -> bool:
        """Whether refused results wait for their next attempt. Other partitions can be committed without them."""
        now_ms = self._outlet.now_ms()
        return any(
            each.not_before_ms > now_ms for kept in self._kept.values() for each in kept.values()
        )

    async def wait(self, timeout_s: float) -> None:
        """Wait until there are many new results, but for `timeout_s` seconds at most.

        Only results since the last `wait` count. Otherwise: (1) A handler runs for a long time. (2) Many results behind
        its record cannot be committed. (3) Each wait would return at once, and the handler would never run again.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._many.wait()
        self._many.clear()
        self._count = 0

    def _end(self, kept: Iterable[_Kept], *, written: bool) -> None:
        self._on_end([each.box for each in kept], written)

    # Transactions

    async def prepare(self) -> None:
        """Take over the transactional id. Call this before any record is read."""
        await self._producer.init_transactions(TAKE_OVER_TIMEOUT_S)

    async def commit(self, wanted: Offsets) -> Offsets:
        """Write the results before some offsets, and commit the offsets, in one transaction.

        Returns:
            The committed offsets. They are smaller than `wanted` where a batch would be committed in part, and where
            results were refused.

        Raises:
            WorkerFailedError: A result can never be written.
            HeadraceError: The commit failed, or its result is not known. Call `settle`, then `commit` again.
        """
        assert self._doubt is None, "`settle` is called before"
        await self._restore_topics()
        # No `await` between the next statements: member, offsets and kept results must be of one moment.
        member = member_of(self._consumer)
        whole = {name: self._whole(name, at) for name, at in wanted.items()}
        # Offsets go back if a topic was deleted and created again, or lost records. Then there are results before them.
        offsets = {
            name: at
            for name, at in whole.items()
            if at > self._at.get(name, -1) or self._before(name, at)
        }
        if not offsets:
            return {}
        kept = [each for name, at in offsets.items() for each in self._before(name, at)]
        try:
            await self._transact(offsets, kept, member)
        except FatalTransactionError as error:
            await self._renew(error)
            text = "the transaction was aborted with its producer; a new producer repeats it"
            raise AbortableTransactionError(text) from error
        except HeadraceError as error:
            raise (self._stop_error or error) from error
        self._committed(offsets)
        return offsets

    async def _transact(
        self, offsets: Offsets, kept: Collection[_Kept], member: GroupMember
    ) -> None:
        producer = self._producer
        self._stop_error = None  # the topic may exist again, or the partition may have been revoked
        await producer.begin_transaction()
        deliveries: list[tuple[_Kept, Delivery]] = []
        self._committing, self._has_lost = set(offsets), False
        try:
            for each in kept:
                deliveries += [(each, delivery) for delivery in await self._write(each)]
            await producer.send_offsets_to_transaction(offsets, member)
            self._check_partitions()
            self._doubt = dict(offsets)
            await producer.commit_transaction()
        except BaseException as error:
            # The producer sends records only with the commit. Before it, a record without a response is not late.
            late = self._doubt is not None and isinstance(error, TransportError)
            self._set_aside(deliveries, late=late)
            await self._abort()
            raise
        finally:
            self._committing = set()
        self._doubt = None
        self.written_to.update(delivery.topic_partition.topic for _, delivery in deliveries)

    def _check_partitions(self) -> None:
        """Refuse to commit the offsets of partitions that were revoked since the transaction began.

        The coordinator's check of the generation does not suffice: (1) The member leaves the group and joins again. (2)
        If the group has no other change, the member has the same epoch. (3) The member may read its committed offsets
        before the coordinator has the offsets of this transaction.

        Raises:
            AbortableTransactionError: A partition was revoked.
        """
        if self._has_lost:
            raise AbortableTransactionError("a partition was revoked during the transaction")

    async def _write(self, each: _Kept) -> list[Delivery]:
        try:
            return [
                await self._producer.send(
                    (topic := output.topic),
                    output.value,
                    key=output.key,
                    headers=output.headers,
                    timestamp_ms=output.timestamp_ms,
                    partition=output.partition,
                )
                for output in each.box.outputs
            ]
        except (ApiError, TransportError) as error:  # the topic was deleted, for example
            self._postpone(each, topic, error)
            raise

    def _set_aside(self, deliveries: Iterable[tuple[_Kept, Delivery]], *, late: bool) -> None:
        """Postpone results that the brokers refuse or do not accept in time, so that other partitions can commit."""
        for each, delivery in deliveries:
            error = delivery.exception()
            topic = delivery.topic_partition.topic
            if late and not delivery.done():
                self._postpone(each, topic, TransportError("it was not delivered in time"))
            elif isinstance(error, ApiError) and error.code not in ERRORS_OF_TRANSACTIONS:
                self._postpone(each, topic, error)

    def _postpone(self, each: _Kept, topic: str, error: HeadraceError) -> None:
        """Write refused results again after a pause. Record the error if they can never be written."""
        now_ms = self._outlet.now_ms()
        if each.refused_ms is None:
            each.refused_ms = now_ms
        each.not_before_ms = now_ms + WRITE_AGAIN_MS
        self._refusing.add(topic)
        self._outlet.forget(topic)
        if is_over(error, each.refused_ms, now_ms):
            self._stop_error = WorkerFailedError(
                f"a worker of the group {self._group!r} stopped: a result of the record at {each.place} cannot be "
                f"written to {topic!r}: {error}. {remedy(error)}, and start the worker again. The record is not "
                "committed and comes again"
            )

    async def _restore_topics(self) -> None:
        """Create deleted topics again: dead-letter topics, retry topics and the topic of `seen=`."""
        while self._refusing and self._restore is not None:
            await self._restore(self._refusing.pop())

    async def _abort(self) -> None:
        try:
            await self._producer.abort_transaction()
        except (TransactionStateError, FatalTransactionError):
            return  # the commit was requested: `settle` determines its result
        except HeadraceError as error:
            _log.warning("a transaction of %s is not aborted yet: %s", self._group, error)
        self._doubt = None

    async def settle(self) -> Offsets:
        """Determine the result of a commit without a response, and return the offsets that it committed."""
        offsets: dict[TopicPartition, int] | None = self._doubt
        if offsets is None:
            return {}
        try:
            await self._producer.commit_transaction()
        except (FatalTransactionError, TransactionStateError) as error:
            if isinstance(error, FatalTransactionError):
                await self._renew(error)
            else:
                await self._abort()  # an earlier abort was interrupted, or there is no transaction
            committed = await self._outlet.committed(self._group, list(offsets))
            if any(committed.get(name) != at for name, at in offsets.items()):
                offsets = {}
        except AbortableTransactionError:
            await self._abort()
            offsets = {}
        self._doubt = None
        self._committed(offsets)
        return offsets

    async def _renew(self, error: FatalTransactionError) -> None:
        """Continue with a new producer, which ends the transaction of the old one.

        This is wrong if another worker has the same transactional id: (1) The new producer fences the other worker. (2)
        The other worker continues with a new producer, too. (3) That producer fences this one, and so on. So a worker
        with a transactional id from its settings stops instead.
        """
        cause = error.__cause__
        if isinstance(cause, ApiError) and cause.code in UNAVOIDABLE_ERRORS:
            raise error
        taken = isinstance(error, ProducerFencedError) and not error.timed_out
        if taken and self._shared_id is not None:
            raise ProducerFencedError(
                f"the worker of group {self._group!r} stopped: another worker has taken over its "
                f"transactional_id={self._shared_id!r}. If that worker replaces this one, all is well. Otherwise give "
                "each worker a transactional_id of its own, or none: then each worker makes one"
            ) from error
        _log.warning("the worker's producer for %s is replaced: %s", self._group, error)
        with contextlib.suppress(HeadraceError):
            await self._producer.close(0)
        self._producer = self._make_producer()
        await self._producer.init_transactions()

    def _whole(self, name: TopicPartition, at: int) -> int:
        """Return the largest offset up to `at` that divides no batch and has no refused results before it."""
        kept = self._kept.get(name, {})
        now_ms = self._outlet.now_ms()
        refused = [each.first for each in kept.values() if each.not_before_ms > now_ms]
        at = min([at, *refused])
        for last in sorted(kept, reverse=True):
            if kept[last].first < at <= last:
                at = kept[last].first
        return at

    def _before(self, name: TopicPartition, at: int) -> list[_Kept]:
        kept = self._kept.get(name, {})
        return [kept[last] for last in sorted(kept) if last < at]

    def _committed(self, offsets: Offsets) -> None:
        for name, at in offsets.items():
            done = self._before(name, at)
            for each in done:
                del self._kept[name][each.last]
            self._end(done, written=True)
            self._at[name] = at

    async def close(self) -> None:
        """Close the producer. Results that are not committed are lost."""
        with contextlib.suppress(HeadraceError):
            await self._producer.close(0)


def new_transactor(
    settings: WorkerSettings,
    outlet: Outlet,
    source: RecordSource,
    on_end: Callable[[Iterable[Outbox], bool], object],
    restore: Callable[[str], Awaitable[object]],
) -> Transactor:
    """Return the transactor of a worker. Without a transactional id in the settings it gets a unique one."""
    assert isinstance(source, TopicSource), "`StreamSelection.check` refuses exactly_once"
    instance = source.config.group_instance_id or secrets.token_hex(4)
    default = f"{source.config.client_id}-{settings.group}-{settings.name}-{instance}"
    name = settings.transactional_id or default
    return Transactor(
        outlet,
        source,
        settings.group,
        partial(outlet.transactional, name, settings.transaction_timeout_ms),
        shared_id=settings.transactional_id,
        is_new_id=settings.transactional_id is None and source.config.group_instance_id is None,
        max_records=settings.transaction_records,
        on_end=on_end,
        restore=restore,
    )
