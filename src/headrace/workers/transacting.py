"""Exactly once: positions, and what handlers wanted written for the records before them, in one transaction.

Handlers do not write; an `Outbox` keeps what each of them wants written until every record before its own is finished,
too. Then all of it is written at once, with the position behind it. So a transaction is open for a moment only, a
failed attempt leaves nothing behind, and a transaction that was aborted is made again out of what is kept: no record is
handled twice for that, and nothing comes out of order. What is kept of a partition that goes is dropped with it.

Who may commit is decided by the group (KIP-447): each transaction names the member's generation, and what comes from a
member that is none any more is refused. So one producer serves all partitions, whatever becomes of them.

A commit that nobody confirmed has happened or not. `settle` finds out before anything else is done: it asks again, or,
if the producer was fenced, has a new one end what is left and looks at what is committed.
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
from headrace.workers.outbox import Outbox
from headrace.workers.outlet import Outlet
from headrace.workers.refusals import is_over, remedy
from headrace.workers.scheduler import Job
from headrace.workers.topics import TopicSource

if TYPE_CHECKING:
    from headrace.clients.consumer.aio import Consumer
    from headrace.workers.settings import WorkerSettings
    from headrace.workers.source import RecordSource

HOPELESS: Final = frozenset(
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

NOT_ITS_FAULT: Final = frozenset(
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
"""The pause before what was refused is written again."""
TAKE_OVER_TIMEOUT_S: Final = 10.0
"""How long a worker that starts waits for its transactional id: what its predecessor left has to be ended."""

_log: Final = logging.getLogger("headrace.workers")

Offsets = Mapping[TopicPartition, int]


@dataclass(slots=True)
class _Kept:
    place: str
    """The origin of the first record, for messages."""
    first: int
    last: int
    """Offsets of the first and the last of the records that led to it: all of them are committed, or none."""
    box: Outbox
    not_before_ms: int = 0
    """It was refused, and is left alone until then, with what comes after it in its partition."""
    refused_ms: int | None = None
    """Since when it is refused; None where it is not."""


class Transactor:
    """The results that one worker has to write, and the transactions that commit them."""

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
            outlet: What else there is to ask.
            consumer: Who reads.
            group: Its group.
            make_producer: Returns a new producer with the worker's transactional id.
            shared_id: That id, if others may have it, too; None if nobody else has.
            is_new_id: Whether the id was made for this worker, so that no other process can be using it.
            max_records: So many records to write are worth a transaction at once.
            on_end: Called with outboxes that were written (true) or never will be (false).
            restore: Called before something is written again to a topic that refused it: it may have been deleted.
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
        """Topics to which something could not be written."""
        self._hopeless: WorkerFailedError | None = None
        """The error of the last attempt, if no further attempt can write what is kept."""
        self._kept: dict[TopicPartition, dict[int, _Kept]] = {}
        """The kept results, by partition and by the offset of the last record that led to them."""
        self._at: dict[TopicPartition, int] = {}
        """The offset that was committed last, by partition."""
        self._count = 0
        """Records to write that came since the last `wait`."""
        self._many = asyncio.Event()
        self._doubt: dict[TopicPartition, int] | None = None
        """The positions of a transaction of which nobody knows whether it is committed."""
        self._under_way: set[TopicPartition] = set()
        """The partitions whose positions the open transaction is to commit."""
        self._has_lost = False
        """Whether one of them has gone since the transaction began."""
        self.written_to: set[str] = set()
        """The topics of what was written."""

    # What is to be written

    def keep(self, job: Job, box: Outbox) -> None:
        """Take what a job wants written; called before its records count as finished."""
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
        """Forget what is to be written for partitions that are others' now."""
        for name in partitions:
            self._has_lost |= name in self._under_way
            self._end(self._kept.pop(name, {}).values(), written=False)
            self._at.pop(name, None)
            if self._doubt is not None:
                self._doubt.pop(name, None)  # its next owner's commits tell nothing of ours

    def waiting_calls(self, name: TopicPartition) -> int:
        """Return how many handler calls of a partition wait for their transaction."""
        return len(self._kept.get(name, ()))

    @property
    def empty(self) -> bool:
        """Whether everything that handlers wanted written is committed."""
        return not any(self._kept.values())

    @property
    def set_aside(self) -> bool:
        """Whether something was refused a moment ago, without which the rest may be committed."""
        now_ms = self._outlet.now_ms()
        return any(
            each.not_before_ms > now_ms for kept in self._kept.values() for each in kept.values()
        )

    async def wait(self, timeout_s: float) -> None:
        """Wait until there is much more to write, or for so long.

        (1) Much is kept behind a record whose handler takes long, (2) none of it can be committed, (3) a wait that
        counted it again would never wait, and leave the event loop to nobody, that handler included.
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
        """Take over the transactional id, before anything is read."""
        await self._producer.init_transactions(TAKE_OVER_TIMEOUT_S)

    async def commit(self, wanted: Offsets) -> Offsets:
        """Write what is kept before these positions, and commit them with it.

        Returns:
            What was committed: less where a batch of records lies on both sides of a position.

        Raises:
            WorkerFailedError: Something that is kept can never be written.
            HeadraceError: It was not, or nobody knows: `settle` and another attempt come next.
        """
        assert self._doubt is None, "that is settled first"
        await self._restore_topics()
        # Nothing may wait between these: the member's place, the positions and what is kept belong together.
        member = member_of(self._consumer)
        whole = {name: self._whole(name, at) for name, at in wanted.items()}
        # Positions go back where a topic was made anew, or lost records: what was handled since is before them.
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
            text = "a transaction was given up with its producer, and a new one makes it again"
            raise AbortableTransactionError(text) from error
        except HeadraceError as error:
            raise (self._hopeless or error) from error
        self._committed(offsets)
        return offsets

    async def _transact(
        self, offsets: Offsets, kept: Collection[_Kept], member: GroupMember
    ) -> None:
        producer = self._producer
        self._hopeless = None  # the topic may be there again, or the partition another member's
        await producer.begin_transaction()
        fates: list[tuple[_Kept, Delivery]] = []
        self._under_way, self._has_lost = set(offsets), False
        try:
            for each in kept:
                fates += [(each, fate) for fate in await self._write(each)]
            await producer.send_offsets_to_transaction(offsets, member)
            self._check_partitions()
            self._doubt = dict(offsets)
            await producer.commit_transaction()
        except BaseException as error:
            # Only a commit delivers: a record without an answer was not sent before.
            late = self._doubt is not None and isinstance(error, TransportError)
            self._set_aside(fates, late=late)
            await self._abort()
            raise
        finally:
            self._under_way = set()
        self._doubt = None
        self.written_to.update(fate.topic_partition.topic for _, fate in fates)

    def _check_partitions(self) -> None:
        """Refuse to commit the positions of partitions that have gone since the transaction began.

        The group may have taken the positions: a member that gave its place up and is back has the same epoch, where
        nothing else has changed. But it may have asked where to go on before the positions were there.

        Raises:
            AbortableTransactionError: A partition has gone.
        """
        if self._has_lost:
            raise AbortableTransactionError("a partition of the transaction has gone meanwhile")

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
        except (ApiError, TransportError) as error:  # there is no such topic any more, say
            self._leave_alone(each, topic, error)
            raise

    def _set_aside(self, fates: Iterable[tuple[_Kept, Delivery]], *, late: bool) -> None:
        """Leave what the brokers refuse, or do not take in time, alone for a while: it would hold up all else."""
        for each, fate in fates:
            error = fate.exception()
            topic = fate.topic_partition.topic
            if late and not fate.done():
                self._leave_alone(each, topic, TransportError("it was not delivered in time"))
            elif isinstance(error, ApiError) and error.code not in NOT_ITS_FAULT:
                self._leave_alone(each, topic, error)

    def _leave_alone(self, each: _Kept, topic: str, error: HeadraceError) -> None:
        """Write something later that was refused; or find that it can never be written."""
        now_ms = self._outlet.now_ms()
        if each.refused_ms is None:
            each.refused_ms = now_ms
        each.not_before_ms = now_ms + WRITE_AGAIN_MS
        self._refusing.add(topic)
        self._outlet.forget(topic)
        if is_over(error, each.refused_ms, now_ms):
            self._hopeless = WorkerFailedError(
                f"a worker of the group {self._group!r} stopped: what the record at {each.place} leads to cannot be "
                f"written to {topic!r}: {error}. {remedy(error)}, and start the worker again. The record is not "
                "committed and comes again"
            )

    async def _restore_topics(self) -> None:
        """Create topics again that were deleted, where that is the worker's to do."""
        while self._refusing and self._restore is not None:
            await self._restore(self._refusing.pop())

    async def _abort(self) -> None:
        try:
            await self._producer.abort_transaction()
        except (TransactionStateError, FatalTransactionError):
            return  # the commit was asked for: whether it has happened is to be found out
        except HeadraceError as error:
            _log.warning("a transaction of %s is not aborted yet: %s", self._group, error)
        self._doubt = None

    async def settle(self) -> Offsets:
        """Find out what has become of a commit that was not confirmed; return what it committed."""
        offsets: dict[TopicPartition, int] | None = self._doubt
        if offsets is None:
            return {}
        try:
            await self._producer.commit_transaction()
        except (FatalTransactionError, TransactionStateError) as error:
            if isinstance(error, FatalTransactionError):
                await self._renew(error)
            else:
                await self._abort()  # an abort that was interrupted; or there is none
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
        """Go on with a new producer, which ends what the one before has left.

        Not if another worker has the transactional id now: (1) This producer fences the other worker. (2) The
        other worker continues with a new producer. (3) That producer fences this one, and so on. The last one stays.
        """
        cause = error.__cause__
        if isinstance(cause, ApiError) and cause.code in HOPELESS:
            raise error
        taken = isinstance(error, ProducerFencedError) and not error.timed_out
        if taken and self._shared_id is not None:
            raise ProducerFencedError(
                f"the worker of group {self._group!r} stopped: another one has taken over its "
                f"transactional_id={self._shared_id!r}. Where it was started in place of this one, all is well. Else "
                "give each worker a transactional_id of its own, or none: then it is made for each"
            ) from error
        _log.warning("the worker's producer for %s is replaced: %s", self._group, error)
        with contextlib.suppress(HeadraceError):
            await self._producer.close(0)
        self._producer = self._make_producer()
        await self._producer.init_transactions()

    def _whole(self, name: TopicPartition, at: int) -> int:
        """Return a position that no batch of records lies on both sides of, and nothing before that was refused."""
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
        """End, without what is not committed."""
        with contextlib.suppress(HeadraceError):
            await self._producer.close(0)


def new_transactor(
    settings: WorkerSettings,
    outlet: Outlet,
    source: RecordSource,
    on_end: Callable[[Iterable[Outbox], bool], object],
    restore: Callable[[str], Awaitable[object]],
) -> Transactor:
    """Return what makes a worker's transactions; by a name that no other worker has, unless it was given one."""
    assert isinstance(source, TopicSource), "the settings see to that"
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
