"""The context of a handler call: facts about the record, and a way to write further records."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.clients.arguments import shown
from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.producer.delivery import RecordMetadata
from headrace.clients.producer.record_checks import check_record
from headrace.dead_letters.letter_headers import Headers, RecordOrigin
from headrace.errors import ConfigError
from headrace.records.directives import directives
from headrace.stream_record import StreamRecord

if TYPE_CHECKING:
    from headrace.workers.outbox import Publisher
    from headrace.workers.scheduler import Job, Scheduler
    from headrace.workers.source import RecordSource
    from headrace.workers.threads import HandlerThreads

NOT_OURS: Final = object()
"""A marker: the call was not made, because the partition was revoked while no thread was free."""


class Hold:
    """The member's ownership of the partition whose records are handled.

    Attributes:
        epoch: The fencing token; -1 if the handler has no context.
    """

    __slots__ = ("_job", "_scheduler", "_source", "epoch")

    def __init__(self, source: RecordSource, scheduler: Scheduler, job: Job, epoch: int) -> None:
        self._source = source
        self._scheduler = scheduler
        self._job = job
        self.epoch = epoch

    def wanted(self) -> bool:
        """Return whether the result of these records still counts: their partition was not released meanwhile."""
        return not self._job.let_go and self._scheduler.is_current(self._job)

    def valid(self) -> bool:
        """Return whether the partition still belongs to this member."""
        return self.wanted() and self._source.valid(self._job.topic_partition)

    async def in_thread(self, threads: HandlerThreads, call: Callable[[], Any]) -> Any:
        """Make a call in a thread and return its result; `NOT_OURS` if the partition was revoked before that."""
        self._job.in_thread = True
        try:
            return await threads.run(partial(self._if_ours, call))
        finally:
            self._job.in_thread = False

    def _if_ours(self, call: Callable[[], Any]) -> Any:
        return call() if self.valid() else NOT_OURS


class Context:
    """The parameter `context` of a handler. A plain function annotates it as `SyncContext`.

    Attributes:
        records: The records of this call: one record, or a batch. Keys and values are bytes.
        attempt: The number of this attempt, from 1.
    """

    __slots__ = ("_hold", "_out", "_place", "_sent", "attempt", "records")

    def __init__(
        self,
        records: list[ConsumerRecord],
        place: RecordOrigin,
        attempt: int,
        out: Publisher,
        hold: Hold,
    ) -> None:
        """Prepare the context of one call.

        Args:
            records: The records.
            place: Where the first record was read for the first time.
            attempt: The number of the attempt, from 1.
            out: Where results go.
            hold: The ownership of the partition.
        """
        self.records = records
        self._place = place
        self.attempt = attempt
        self._out = out
        self._hold = hold
        self._sent: list[Any] = []

    @property
    def record(self) -> ConsumerRecord[bytes | None]:
        """The record, or the first of the batch; its key and value are bytes."""
        return self.records[0]

    @property
    def topic(self) -> str:
        """The record's topic. For a record from a retry topic: the topic where it was read for the first time."""
        return self._place.topic

    @property
    def partition(self) -> int:
        """The record's partition in `topic`."""
        return self._place.partition

    @property
    def offset(self) -> int:
        """The record's offset in `topic`."""
        return self._place.offset

    @property
    def timestamp_ms(self) -> int:
        """The record's timestamp in milliseconds since 1970."""
        return self._place.timestamp_ms

    @property
    def key(self) -> bytes | None:
        """The record's key as bytes; None if it has none."""
        key: bytes | None = self.record.key
        return key

    @property
    def headers(self) -> Headers:
        """The record's headers in their order."""
        return self.record.headers

    @property
    def shard(self) -> str | None:
        """The shard of a stream that the record is of; None for a record of a topic."""
        return self.record.shard if isinstance(self.record, StreamRecord) else None

    @property
    def sequence_number(self) -> str | None:
        """The record's sequence number in its shard; None for a record of a topic."""
        return self.record.sequence_number if isinstance(self.record, StreamRecord) else None

    @property
    def sub_sequence(self) -> int | None:
        """Which user record of an aggregated record it is, from 0; None for any other."""
        return self.record.sub_sequence if isinstance(self.record, StreamRecord) else None

    @property
    def epoch(self) -> int:
        """A number that grows whenever the partition or the shard changes hands: the fencing token.

        Where a sink keeps the highest it was given and refuses lower ones, a worker that was halted and does not know
        that others have gone on cannot overwrite what they wrote.
        """
        return self._hold.epoch

    def valid(self) -> bool:
        """Whether the partition or the shard is still this worker's; a long handler may look before it acts."""
        return self._hold.valid()

    def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        deliver_at_ms: int | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
        tags: Collection[str] = (),
    ) -> Awaitable[RecordMetadata]:
        """Write a record, and wait until it is safe: `await context.publish(...)`.

        In a handler that is a plain function it is called without `await` and returns when it is done. With
        `delivery="exactly_once"` it is written when the record's position is committed, and not at all if the attempt
        fails; partition and offset of what is returned are -1 then.

        Args:
            topic: Where to.
            value: The content; bytes and text as they are, everything else as JSON, unless the topic's metadata say
                how. None is a record without a value.
            key: The key, with the same types as the value.
            headers: Name and value pairs.
            deliver_at_ms: When the record comes, milliseconds since 1970, on topics with `headrace.delay.enable`; not
                with `delivery="exactly_once"`, as transactions do not delay.
            delay_ms: How long after it is sent it comes, instead of a time.
            ttl_ms: How long after its time it expires, on topics with `headrace.ttl.enable`.
            tags: What readers with `tags=` choose by.

        Raises:
            HeadraceError: The record was not delivered. Not caught, it fails the attempt.
        """
        own = _checked(
            topic,
            directives(
                headers, ttl_ms=ttl_ms, deliver_at_ms=deliver_at_ms, delay_ms=delay_ms, tags=tags
            ),
        )
        return self._noted(self._out.publish(topic, value, key=key, headers=own))

    def _noted(self, sending: Awaitable[RecordMetadata]) -> Awaitable[RecordMetadata]:
        if inspect.iscoroutine(sending):
            self._sent.append(sending)
        return sending

    async def finish(self) -> None:
        """Publish what the handler gave to `publish` and did not await; for the worker, when the handler has ended."""
        if any(map(_not_begun, self._sent)):
            await asyncio.sleep(0)  # tasks that were made of some begin
            for sending in self._sent:
                if _not_begun(sending):
                    await sending


def _checked(topic: object, headers: Any) -> Headers:
    """Return the headers of a record to be published; a wrong argument is the handler's at once."""
    if not isinstance(topic, str):
        raise ConfigError(f"a topic's name is text, not {shown(topic)}")
    check_record(headers, None)
    return tuple(headers)


def _not_begun(coroutine: Any) -> bool:
    return inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED


class SyncContext(Context):
    """The parameter `context` of a handler that is a plain function: `publish` returns when the record is safe."""

    __slots__ = ("_loop",)

    def __init__(
        self,
        records: list[ConsumerRecord],
        place: RecordOrigin,
        attempt: int,
        out: Publisher,
        hold: Hold,
    ) -> None:
        super().__init__(records, place, attempt, out, hold)
        self._loop = asyncio.get_running_loop()

    def publish(  # type: ignore[override]  # what it returns is why there are two classes
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers = (),
        deliver_at_ms: int | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
        tags: Collection[str] = (),
    ) -> RecordMetadata:
        """Write a record, and return where it went when it is safe.

        Where an event loop runs, as in a coroutine that a plain function has made, it is to be awaited.

        Args:
            topic: Where to.
            value: The content; bytes and text as they are, everything else as JSON, unless the topic's metadata say
                how. None is a record without a value.
            key: The key, with the same types as the value.
            headers: Name and value pairs.
            deliver_at_ms: When the record comes, milliseconds since 1970; see `Context.publish`.
            delay_ms: How long after it is sent it comes, instead of a time.
            ttl_ms: How long after its time it expires, on topics with `headrace.ttl.enable`.
            tags: What readers with `tags=` choose by.

        Raises:
            HeadraceError: The record was not delivered. Not caught, it fails the attempt.
        """
        own = _checked(
            topic,
            directives(
                headers, ttl_ms=ttl_ms, deliver_at_ms=deliver_at_ms, delay_ms=delay_ms, tags=tags
            ),
        )
        sending = self._out.publish(topic, value, key=key, headers=own)
        running = _running_loop()
        if running is self._loop:
            to_await: Any = self._noted(sending)
            return to_await  # type: ignore[no-any-return]  # a coroutine of a plain function: rare, and not typed
        sent: Any = asyncio.run_coroutine_threadsafe(sending, self._loop)
        if running is not None:
            sent = asyncio.wrap_future(sent, loop=running)
        return sent.result() if running is None else sent  # type: ignore[no-any-return]  # rare, and untyped


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
