"""Read one shard by enhanced fan-out: Kinesis pushes records, and the limits of GetRecords do not apply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import HashRange
from headrace.kinesis.client.backoff import (
    REPEATABLE,
    JitteredBackoff,
    RealTiming,
    Timing,
    region_of,
    repeated,
)
from headrace.kinesis.client.errors import FailureKind, explained, failure_kind, of_aws
from headrace.kinesis.client.events import PushedEvent, events_of
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.client.streams import stream_name
from headrace.kinesis.reading.positions import child_info, starting_position
from headrace.kinesis.reading.reader import (
    Fetched,
    ReadCounts,
    check_stream,
    is_of_future,
    log_failures,
    log_loss,
)
from headrace.kinesis.reading.settings import ReadSettings
from headrace.kinesis.reading.unpacking import Unpacking

_SPACING_MS: Final = 1_010
"""The least time in milliseconds between two calls of SubscribeToShard for a consumer and shard."""
_TAKEN_MS: Final = 5_000
"""The time in milliseconds for which a new subscription cannot be replaced by another."""


class FanOutReader:
    """Reads one shard with SubscribeToShard; see `Reader`.

    A subscription lasts five minutes. The next one begins where it ended. Records that are not fetched stay in Kinesis
    and in the connection, so `space` is not used: an event has about one mebibyte.
    """

    def __init__(
        self,
        client: AwsClient,
        stream_arn: str,
        consumer_arn: str,
        shard: str,
        start: Checkpoint,
        *,
        settings: ReadSettings | None = None,
        hash_range: HashRange | None = None,
        lease_stream: str | None = None,
        timing: Timing | None = None,
    ) -> None:
        """Prepare a reader; nothing is sent before the first fetch.

        Args:
            client: The client of Kinesis.
            stream_arn: The ARN of the stream.
            consumer_arn: The ARN that `registered_consumer` returned.
            shard: The id of the shard, such as `shardId-000000000001`.
            start: The checkpoint behind which reading starts.
            settings: The settings of reading; only `deaggregate` is used.
            hash_range: The hash keys of the shard. User records of aggregates outside of it are dropped. None: no
                record is dropped.
            lease_stream: The stream's name in leases, to detect that the stream was created again. None: this is not
                detected.
            timing: The clock and random numbers of a test; None: the real ones.
        """
        self._client = client
        self._stream = stream_arn
        self._consumer = consumer_arn
        self._shard = shard
        self._lease_stream = lease_stream
        self._position = start
        self._doing = f"reading {shard} of stream {stream_name(stream_arn)} by fan-out"
        self._timing = timing or RealTiming()
        self._backoff = JitteredBackoff(self._timing.random)
        self._unpacking = Unpacking(
            stream_name(stream_arn),
            shard,
            hash_range=hash_range,
            deaggregate=(settings or ReadSettings()).deaggregate,
        )
        self.counts = ReadCounts()
        self._source: Any = None  # the event stream of botocore
        self._events: AsyncIterator[PushedEvent] | None = None
        self._next_ms: int | None = None
        self._failures = 0  # since the last event
        self._end: Fetched | None = Fetched(ended=True) if start.is_end else None

    async def fetch(self, space: Callable[[], int] | None = None) -> Fetched:  # noqa: ARG002 - Kinesis decides
        """Fetch records; see `Reader`."""
        while self._end is None:
            try:
                events = self._events or await self._subscribed()
                async for event in events:
                    return self._accepted(event)
                self.restart()  # the subscription has ended
            except Exception as error:
                self.restart()
                if not of_aws(error):
                    raise
                await self._failed(error)
        return self._end

    def restart(self) -> None:
        """Close the subscription; see `Reader`."""
        source, self._source, self._events = self._source, None, None
        if source is not None:
            source.close()

    async def aclose(self) -> None:
        """Close the subscription; see `Reader`."""
        self.restart()

    async def _subscribed(self) -> AsyncIterator[PushedEvent]:
        now_ms = self._timing.now_ms()
        if self._next_ms is not None and self._next_ms > now_ms:
            await self._timing.sleep_ms(self._next_ms - now_ms)
        self._next_ms = self._timing.now_ms() + _SPACING_MS
        answer = await self._client.subscribe_to_shard(
            ConsumerARN=self._consumer,
            ShardId=self._shard,
            StartingPosition=starting_position(self._position),
        )
        self.counts.iterators += 1
        self._source = answer["EventStream"]
        self._events = events_of(self._source)
        return self._events

    def _accepted(self, pushed: PushedEvent) -> Fetched:
        self._backoff.reset()
        self._failures = 0
        self.counts.failing = None
        stored, continuation = pushed.records, pushed.continuation_sequence_number
        size = sum([len(each.data) + len(each.partition_key) for each in stored])
        records = self._unpacking.records(stored, self._position)
        # The position stays in an aggregate whose remaining user records have not arrived.
        if continuation and (stored or self._position.sub_sequence is None):
            self._position = Checkpoint(continuation)
        self.counts.fetches += 1
        self.counts.records += len(stored)
        self.counts.size_bytes += size
        fetched = Fetched(
            records=records,
            ended=bool(pushed.child_shards) or not continuation,
            children=[child_info(child) for child in pushed.child_shards or ()],
            behind_ms=pushed.millis_behind_latest,
            size_bytes=size,
        )
        if fetched.ended:
            self._end = Fetched(ended=True, children=fetched.children)
            self.restart()
        return fetched

    async def _failed(self, error: Exception) -> None:
        kind = failure_kind(error)
        self.counts.throttled += kind is FailureKind.THROTTLED
        self.counts.failures += kind is not FailureKind.THROTTLED
        self._failures += 1
        log_failures(self._doing, self._failures, error, self.counts)
        if kind is FailureKind.MISSING:
            await self._missing()
            return
        if kind not in REPEATABLE and not is_of_future(self._position, error):
            raise explained(
                error, self._doing, stream=self._stream, region=region_of(self._client)
            ) from error
        pause_ms = max(_SPACING_MS, self._backoff.next_ms())
        if kind is FailureKind.IN_USE:
            pause_ms = max(pause_ms, _TAKEN_MS)
        self._next_ms = self._timing.now_ms() + pause_ms

    async def _missing(self) -> None:
        """Find out what is missing: the stream or the consumer, which is fatal, or the shard.

        The records of a missing shard have expired.
        """
        await check_stream(self._client, self._stream, self._lease_stream, self._timing)
        await repeated(
            lambda: self._client.describe_stream_consumer(ConsumerARN=self._consumer),
            f"{self._doing}: looking for the consumer {self._consumer}",
            self._client,
            self._timing,
        )
        log_loss(self._doing)
        self._end = Fetched(ended=True, data_expired=True)
