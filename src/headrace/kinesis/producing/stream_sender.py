"""Sends the records of one stream: it executes what `StreamCore` decides, on the event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import Any, Final

from headrace.errors import ClosedError, HeadraceError
from headrace.kinesis.client.backoff import REPEATABLE, region_of
from headrace.kinesis.client.errors import FailureKind, error_code, explained, failure_kind
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.producing.core import ABOUT_ONE_RECORD, PutRequest, RecordOutcome, StreamCore
from headrace.kinesis.producing.lanes import PutResult
from headrace.kinesis.producing.settings import ProducerSettings
from headrace.kinesis.producing.shards import ShardMap
from headrace.kinesis.reading.shards import StreamShards

_LIST_SHARDS_PAUSE_MS: Final = 1_000
"""The pause in milliseconds between two attempts to list the shards."""


class StreamSender:
    """The core of one stream, its calls in flight, and its timer."""

    def __init__(
        self,
        name: str,
        settings: ProducerSettings,
        client: AwsClient,
        settle: Callable[[Iterable[RecordOutcome]], object],
    ) -> None:
        self.core = StreamCore(name, settings, random.random)
        self._name = {"StreamARN" if name.startswith("arn:") else "StreamName": name}
        self._client = client
        self._settle = settle
        self._loop = asyncio.get_running_loop()
        self._calls: set[asyncio.Task[None]] = set()
        self._timer: asyncio.Handle | None = None
        self._timer_ms = 0
        """The time of the timer, in milliseconds of the event loop's clock."""
        self._mapping = False
        """Whether a call that lists the shards is in flight."""

    async def end(self) -> None:
        """Cancel the calls, and give up the records that are left."""
        if self._timer is not None:
            self._timer.cancel()
        for call in self._calls:
            call.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        self._settle(
            self.core.give_up(ClosedError("the producer was closed before the record was written"))
        )

    def soon(self) -> None:
        """Send what is due, after the callbacks that the event loop has scheduled already."""
        self._at(0)

    def _at(self, when_ms: int) -> None:
        if self._timer is not None:
            if self._timer_ms <= when_ms:
                return
            self._timer.cancel()
        self._timer_ms = when_ms
        delay_s = max(0, when_ms - now_ms()) / 1000
        self._timer = (
            self._loop.call_later(delay_s, self._turn)
            if delay_s
            else self._loop.call_soon(self._turn)
        )

    def _turn(self) -> None:
        self._timer = None
        at_ms = now_ms()
        self._settle(self.core.expire(at_ms))
        while (request := self.core.next_request(at_ms)) is not None:
            self._start(self._put(request))
        if self.core.wants_map and not self._mapping and not self.core.idle:
            self._mapping = True
            self._start(self._learn_shards())
        deadline_ms = self.core.next_deadline_ms(at_ms)
        if deadline_ms is not None:
            self._at(deadline_ms)

    def _start(self, call: Any) -> None:
        task = self._loop.create_task(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _put(self, request: PutRequest) -> None:
        records = [_entry(parcel) for parcel in request.parcels]
        try:
            answer = await self._client.put_records(Records=records, **self._name)
            results = [_result(one) for one in answer["Records"]]
            outcomes = self.core.on_results(request, results, now_ms())
        except Exception as error:  # noqa: BLE001 - any error is the outcome of these records
            outcomes = self._failed(request, error)
        self._settle(outcomes)
        self.soon()

    def _failed(self, request: PutRequest, error: Exception) -> list[RecordOutcome]:
        stream = self.core.stream
        region = region_of(self._client)
        reason = explained(error, f"writing to {stream}", stream=stream, region=region)
        kind = failure_kind(error)
        if kind in REPEATABLE:
            in_doubt = kind is FailureKind.REPEAT
            return self.core.on_lost(request, str(reason), now_ms(), in_doubt=in_doubt)
        because_of_one = error_code(error) in ABOUT_ONE_RECORD
        return self.core.on_refused(request, reason, now_ms(), because_of_one=because_of_one)

    async def _learn_shards(self) -> None:
        """List the shards for the core. If they cannot be listed, the core sends plain records without a map."""
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
            await asyncio.sleep(_LIST_SHARDS_PAUSE_MS / 1000)
        self._mapping = False
        self.soon()


def _entry(parcel: Any) -> dict[str, Any]:
    entry = {"Data": parcel.data, "PartitionKey": parcel.partition_key}
    if parcel.explicit_hash_key is not None:
        entry["ExplicitHashKey"] = parcel.explicit_hash_key
    return entry


def _result(answer: dict[str, Any]) -> PutResult:
    return PutResult(
        answer.get("ShardId") or "",
        answer.get("SequenceNumber") or "",
        answer.get("ErrorCode") or "",
        answer.get("ErrorMessage") or "",
    )


def now_ms() -> int:
    """Return the event loop's time in milliseconds."""
    return int(asyncio.get_running_loop().time() * 1000)
