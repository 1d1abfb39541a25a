"""The asyncio producer: moves what the cores decide. `headrace.kinesis.blocking` has its twin for scripts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Final, Self

from headrace.clients.drivers.unclosed import at_exit, report_exit, warn_unclosed
from headrace.errors import ClosedError, HeadraceError
from headrace.forking import FORKED, disown_in_children
from headrace.kinesis.client.backoff import REPEATABLE, region_of
from headrace.kinesis.client.errors import FailureKind, error_code, explained, failure_kind
from headrace.kinesis.client.settings import AwsClient, AwsSettings, open_client
from headrace.kinesis.producing.core import ABOUT_ONE_RECORD, Outcome, Request, StreamCore
from headrace.kinesis.producing.delivery import RecordDelivery
from headrace.kinesis.producing.lanes import Result
from headrace.kinesis.producing.records import outgoing
from headrace.kinesis.producing.settings import ProducerSettings
from headrace.kinesis.producing.shards import ShardMap
from headrace.kinesis.reading.shards import StreamShards

_PAUSE_FOR_SHARDS_MS: Final = 1_000
_KEPT_FAILURES: Final = 1_000


class Producer:
    """Writes records to streams; an asynchronous context manager that flushes and closes.

    Records of one partition key are written in the order of `send`, also where some are refused and repeated. A request
    whose answer is lost is repeated, so a record may be written twice, never lost without an error: at least once.
    One producer may be used by many tasks of one event loop.
    """

    def __init__(
        self,
        aws: AwsSettings | None = None,
        *,
        settings: ProducerSettings | None = None,
        **options: Any,
    ) -> None:
        """Prepare a producer; nothing is connected before the first record.

        Args:
            aws: Where AWS is and who asks; what is not given comes from environment, files and roles.
            settings: How to batch, repeat and give up.
            options: The same by name, as `linger_ms=50` or `aggregate_bytes=51_200`, in place of `settings`.

        Raises:
            ConfigError: A setting cannot work.
        """
        self.settings = settings or ProducerSettings(**options)
        self._aws = aws or AwsSettings()
        self._stack = AsyncExitStack()
        self._opening = asyncio.Lock()
        self._client: AwsClient | None = None
        self._streams: dict[str, _Stream] = {}
        self._closed = False
        self._forked = False
        self._buffered = 0
        self._turns = asyncio.Lock()
        self._freed = asyncio.Event()
        self._pending: set[RecordDelivery] = set()
        self._flushes = 0
        self._failures: list[tuple[RecordDelivery, HeadraceError]] = []
        disown_in_children(self)
        at_exit(self, Producer._end_of_program)

    def _end_of_program(self, timeout_s: float) -> None:  # noqa: ARG002 - without its loop nothing can be waited for
        """Log what is lost: the program's event loop has ended."""
        if not self._closed:
            report_exit(self.outstanding, self.outstanding, "its event loop has ended")

    @property
    def outstanding(self) -> int:
        """Records whose fate is not known."""
        return len(self._pending)

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and self._client is not None:
            self._end_of_program(0)
            warn_unclosed(self, "close()", None)

    def disown(self) -> None:
        """Become closed, in a forked child: connections and event loop are the parent's."""
        self._closed = self._forked = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(flush=kind is None)

    async def send(
        self,
        stream: str,
        data: bytes,
        *,
        partition_key: str,
        explicit_hash_key: str | int | None = None,
    ) -> RecordDelivery:
        """Take a record over; waits only while the buffer is full.

        Args:
            stream: Name or ARN.
            data: The content.
            partition_key: Chooses the shard; records of one key keep their order.
            explicit_hash_key: Chooses the shard in place of the key.

        Returns:
            The record's fate, to be waited for: a `SentRecord`, or why it went nowhere.

        Raises:
            ClosedError: The producer is closed.
            ConfigError: Credentials or region are missing.
            KinesisError: Kinesis takes no such record: it is too large, or its key is.
            TypeError: The data is text, or the key is none.
        """
        _check_kinds(stream, data, partition_key)
        self._raise_if_closed()
        found = self._streams.get(stream) or await self._open(stream)
        await self._room(len(data))
        self._raise_if_closed()
        record = outgoing(
            bytes(data),
            partition_key,
            explicit_hash_key,
            record_bytes=self.settings.record_bytes,
            now_ms=_now_ms(),
        )
        delivery = record.ticket = RecordDelivery()
        delivery.record = record
        self._buffered += record.size
        self._pending.add(delivery)
        found.core.add(record)
        found.soon()
        return delivery

    async def flush(self) -> None:
        """Wait until the fate of every record that was given so far is known.

        Raises:
            HeadraceError: The first failure since the last flush that the program has not asked for.
        """
        if self._forked:
            self._raise_if_closed()
        pending = list(self._pending)
        self._flushes += 1
        self._hurry()
        try:
            for delivery in pending:
                await delivery.settled()
        finally:
            self._flushes -= 1
            self._hurry()
        failures, self._failures = self._failures, []
        for delivery, error in failures:
            if not delivery.noticed:
                raise error

    def _hurry(self) -> None:
        for stream in self._streams.values():
            stream.core.flushing = self._flushes > 0
            stream.soon()

    async def close(self, *, flush: bool = True) -> None:
        """Deliver what is left, and disconnect.

        Args:
            flush: False gives up what is left.

        Raises:
            HeadraceError: As `flush`.
        """
        if self._forked:
            return
        self._closed = True
        try:
            if flush:
                await self.flush()
        finally:
            for stream in self._streams.values():
                await stream.end()
            self._freed.set()
            async with self._opening:  # who connects has done so, and finds that it is closed
                await self._stack.aclose()

    async def _open(self, name: str) -> _Stream:
        async with self._opening:
            self._raise_if_closed()
            if self._client is None:
                self._client = await self._stack.enter_async_context(
                    open_client(self._aws, "kinesis")
                )
            return self._streams.setdefault(
                name, _Stream(name, self.settings, self._client, self._settle)
            )

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise ClosedError(
                f"this producer {FORKED}" if self._forked else "the producer is closed"
            )

    async def _room(self, size: int) -> None:
        """Wait for room in the buffer, in the order of calls; a record always fits into an empty one."""
        async with self._turns:
            while self._buffered and self._buffered + size > self.settings.buffer_bytes:
                self._freed.clear()
                await self._freed.wait()
                self._raise_if_closed()

    def _settle(self, outcomes: Iterable[Outcome]) -> None:
        """Tell fates."""
        for record, sent, error in outcomes:
            delivery: RecordDelivery = record.ticket
            self._buffered -= record.size
            self._pending.discard(delivery)
            delivery.settle(sent, error)
            if error is not None and not delivery.noticed:
                self._fail(delivery, error)
        self._freed.set()

    def _fail(self, delivery: RecordDelivery, error: HeadraceError) -> None:
        """Keep a failure for `flush`, which raises one: of a program that never calls it a few are enough."""
        if len(self._failures) >= _KEPT_FAILURES:
            self._failures = [each for each in self._failures if not each[0].noticed]
        if len(self._failures) < _KEPT_FAILURES:
            self._failures.append((delivery, error))


class _Stream:
    """One stream's core, and the calls that are under way for it."""

    def __init__(
        self,
        name: str,
        settings: ProducerSettings,
        client: AwsClient,
        settle: Callable[[Iterable[Outcome]], object],
    ) -> None:
        self.core = StreamCore(name, settings, random.random)
        self._name = {"StreamARN" if name.startswith("arn:") else "StreamName": name}
        self._client = client
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self._calls: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None
        self._timer_ms = 0
        self._mapping = False

    async def end(self) -> None:
        """Give up what is left."""
        if self._timer is not None:
            self._timer.cancel()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        self._settle(self.core.give_up(ClosedError("the producer was closed before")))

    def soon(self) -> None:
        """Look what is to be done, when the program has had its turn."""
        self._at(0)

    def _at(self, when_ms: int) -> None:
        if self._timer is not None:
            if self._timer_ms <= when_ms:
                return
            self._timer.cancel()
        self._timer_ms = when_ms
        delay_s = max(0, when_ms - _now_ms()) / 1000
        self._timer = (
            self._loop.call_later(delay_s, self._turn)
            if delay_s
            else self._loop.call_soon(self._turn)
        )

    def _turn(self) -> None:
        self._timer = None
        now_ms = _now_ms()
        self._settle(self.core.expire(now_ms))
        while (request := self.core.next_request(now_ms)) is not None:
            self._start(self._put(request))
        if self.core.wants_map and not self._mapping and not self.core.idle:
            self._mapping = True
            self._start(self._learn_shards())
        deadline_ms = self.core.next_deadline_ms(now_ms)
        if deadline_ms is not None:
            self._at(deadline_ms)

    def _start(self, call: Any) -> None:
        task = self._loop.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _put(self, request: Request) -> None:
        records = [_entry(parcel) for parcel in request.parcels]
        try:
            answer = await self._client.put_records(Records=records, **self._name)
            results = [_result(one) for one in answer["Records"]]
            outcomes = self.core.on_results(request, results, _now_ms())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the fate of these records
            outcomes = self._failed(request, error)
        self._settle(outcomes)
        self.soon()

    def _failed(self, request: Request, error: Exception) -> list[Outcome]:
        stream = self.core.stream
        region = region_of(self._client)
        told = explained(error, f"writing to {stream}", stream=stream, region=region)
        what = failure_kind(error)
        if what in REPEATABLE:
            in_doubt = what is FailureKind.REPEAT
            return self.core.on_lost(request, str(told), _now_ms(), in_doubt=in_doubt)
        because_of_one = error_code(error) in ABOUT_ONE_RECORD
        return self.core.on_refused(request, told, _now_ms(), because_of_one=because_of_one)

    async def _learn_shards(self) -> None:
        """Bring the core a map; where shards may not be listed, plain records do without."""
        try:
            shards = await StreamShards(self._client, self.core.stream).list_shards()
            found = ShardMap(
                {shard.shard: shard.hash_range for shard in shards if not shard.closed},
                {shard.shard: shard.hash_range for shard in shards if shard.closed},
            )
            self._settle(self.core.on_map(found))
        except HeadraceError as error:
            cause = error.__cause__
            passing = cause is not None and failure_kind(cause) in REPEATABLE
            self._settle(self.core.on_no_map(error, passing=passing))
        if self.core.wants_map:
            await asyncio.sleep(_PAUSE_FOR_SHARDS_MS / 1000)
        self._mapping = False
        self.soon()


def _check_kinds(stream: object, data: object, partition_key: object) -> None:
    if not isinstance(stream, str):
        raise TypeError(f"stream is the name of a stream, a str: not {type(stream).__name__}")
    if not isinstance(data, bytes | bytearray | memoryview) or not isinstance(partition_key, str):
        raise TypeError(
            "data is bytes, as text.encode() gives, and partition_key is a str: "
            f"not {type(data).__name__} and {type(partition_key).__name__}"
        )


def _entry(parcel: Any) -> dict[str, Any]:
    entry = {"Data": parcel.data, "PartitionKey": parcel.partition_key}
    if parcel.explicit_hash_key is not None:
        entry["ExplicitHashKey"] = parcel.explicit_hash_key
    return entry


def _result(answer: dict[str, Any]) -> Result:
    return Result(
        answer.get("ShardId") or "",
        answer.get("SequenceNumber") or "",
        answer.get("ErrorCode") or "",
        answer.get("ErrorMessage") or "",
    )


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
