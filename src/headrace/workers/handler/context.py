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
    from headrace.workers.core.scheduler import Job, Scheduler
    from headrace.workers.handler.threads import HandlerThreads
    from headrace.workers.output.outbox import Publisher
    from headrace.workers.source import RecordSource

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
        """Return whether the result still counts: the partition was not released since the call began."""
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
            place: The origin of the first record.
            attempt: The number of the attempt, from 1.
            out: Writes published records.
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
        """The Kinesis shard of the record; None for a record of a topic."""
        return self.record.shard if isinstance(self.record, StreamRecord) else None

    @property
    def sequence_number(self) -> str | None:
        """The record's sequence number in its shard; None for a record of a topic."""
        return self.record.sequence_number if isinstance(self.record, StreamRecord) else None

    @property
    def sub_sequence(self) -> int | None:
        """The index of the user record in an aggregated Kinesis record, from 0; None for other records."""
        return self.record.sub_sequence if isinstance(self.record, StreamRecord) else None

    @property
    def epoch(self) -> int:
        """The fencing token: a number that grows whenever the partition or the shard gets another owner.

        A sink that keeps the highest number and refuses writes with lower numbers is safe from workers that paused: (1)
        A worker pauses for a long time. (2) Another worker gets the partition and writes. (3) The first worker
        continues and writes with a lower number, which the sink refuses.
        """
        return self._hold.epoch

    def valid(self) -> bool:
        """Whether the partition or the shard still belongs to this worker. A long handler can check this."""
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
        """Write a record, and wait until it is acknowledged: `await context.publish(...)`.

        A handler that is a plain function calls it without `await`: see `SyncContext`. With `delivery="exactly_once"`
        the record is written in the transaction that commits the input record, and not at all if the attempt fails.
        Partition and offset of the result are -1 then.

        Args:
            topic: The topic.
            value: The value. The topic's serde encodes it. Without a serde, bytes and text are written as they are, and
                other values as JSON. None writes a record without a value.
            key: The key, with the same types as the value.
            headers: Pairs of a name and a value.
            deliver_at_ms: The delivery time in milliseconds since 1970, for topics with `headrace.delay.enable`. Not
                possible with `delivery="exactly_once"`.
            delay_ms: The time from sending to delivery in milliseconds, in place of `deliver_at_ms`.
            ttl_ms: The time from the record's timestamp to its expiry in milliseconds, for topics with
                `headrace.ttl.enable`.
            tags: The tags by which consumers with `tags=` select records.

        Raises:
            HeadraceError: The record was not delivered. If the handler does not catch the error, the attempt fails.
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
        """Publish the records for which the handler called `publish` without `await`. The worker calls this."""
        if any(map(_not_begun, self._sent)):
            await asyncio.sleep(0)  # calls that the handler wrapped in tasks begin
            for sending in self._sent:
                if _not_begun(sending):
                    await sending


def _checked(topic: object, headers: Any) -> Headers:
    """Return the headers of a record to publish, or raise an error for an argument of a wrong type."""
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

    def publish(  # type: ignore[override]  # the result has another type: this is the reason for two classes
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
        """Write a record, wait until it is acknowledged, and return its partition and offset.

        If the calling thread runs an event loop, the result must be awaited: `await context.publish(...)`. This is
        the case in a coroutine that the handler runs with `asyncio.run`.

        Args:
            topic: The topic.
            value: The value. The topic's serde encodes it. Without a serde, bytes and text are written as they are, and
                other values as JSON. None writes a record without a value.
            key: The key, with the same types as the value.
            headers: Pairs of a name and a value.
            deliver_at_ms: The delivery time in milliseconds since 1970; see `Context.publish`.
            delay_ms: The time from sending to delivery in milliseconds, in place of `deliver_at_ms`.
            ttl_ms: The time from the record's timestamp to its expiry in milliseconds, for topics with
                `headrace.ttl.enable`.
            tags: The tags by which consumers with `tags=` select records.

        Raises:
            HeadraceError: The record was not delivered. If the handler does not catch the error, the attempt fails.
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
