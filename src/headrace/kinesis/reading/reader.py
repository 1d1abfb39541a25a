"""Reads one shard, from a checkpoint to its end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from headrace.core.lease.checkpoint import Checkpoint
from headrace.core.lease.lease import HashRange
from headrace.kinesis.client.backoff import REPEATABLE, RealTiming, Timing, region_of
from headrace.kinesis.client.errors import FailureKind, error_code, explained, failure_kind, of_aws
from headrace.kinesis.client.get_records import GetRecordsReply, get_records, prepare
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.client.streams import is_arn, stream_arguments, stream_name
from headrace.kinesis.reading.pacing import ITERATOR_AGE_MS, Pacing
from headrace.kinesis.reading.positions import child_info, iterator_arguments
from headrace.kinesis.reading.records import KinesisRecord
from headrace.kinesis.reading.settings import ReadSettings
from headrace.kinesis.reading.shards import ShardInfo, StreamShards
from headrace.kinesis.reading.unpacking import Unpacking

_log: Final = logging.getLogger("headrace.kinesis")
_TOLD: Final = 2
_INVALID: Final = "InvalidArgumentException"
_TRUSTED: Final = 3
"""The number of failures in a row after which an iterator is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """The result of one fetch."""

    records: list[KinesisRecord] = field(default_factory=list)
    """The records in order; often none."""
    ended: bool = False
    """Whether these are the last records of a closed shard."""
    children: list[ShardInfo] = field(default_factory=list)
    """The children of a shard that has ended, if Kinesis named them. If not, they have to be listed."""
    behind_ms: int | None = None
    """The distance of these records from the newest ones of the shard, in milliseconds; None if it is unknown."""
    size_bytes: int = 0
    """The size of data and keys, as Kinesis counts it."""
    data_expired: bool = False
    """Whether the shard does not exist any more: its unread records are lost."""


@dataclass(slots=True)
class ReadCounts:
    """Counters of a reader, for metrics."""

    fetches: int = 0
    """The number of replies or pushed events."""
    records: int = 0
    """The number of stored records; an aggregate counts as one."""
    size_bytes: int = 0
    throttled: int = 0
    failures: int = 0
    """The number of failures without throttled calls."""
    iterators: int = 0
    """The number of iterators or subscriptions that were opened."""
    failing: str | None = None
    """The error of several failures in a row; None after a success."""


class Reader(Protocol):
    """Reads one shard: `ShardReader` or `FanOutReader`."""

    counts: ReadCounts

    async def fetch(self, space: Callable[[], int] | None = None) -> Fetched:
        """Wait as long as the limits of Kinesis require, read, and return the records.

        A call may be cancelled. The next call returns the records that the cancelled call did not return.

        Args:
            space: A function that is called before each read; it returns about how many bytes may be read.

        Raises:
            StreamNotFoundError: The stream was deleted.
            ConfigError: The credentials are not valid, or not valid any more.
            KinesisError: Reading is not permitted, or the shard has no such position.
        """

    def restart(self) -> None:
        """Drop the iterator or subscription. The next fetch opens one behind the last returned record."""

    async def aclose(self) -> None:
        """End the subscription and all requests in flight."""


class ShardReader:
    """Reads one shard with GetRecords; see `Reader`."""

    def __init__(
        self,
        client: AwsClient,
        stream: str,
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
            stream: Name or ARN of the stream.
            shard: The id of the shard, such as `shardId-000000000001`.
            start: The checkpoint behind which reading starts.
            settings: The settings of reading; None: the defaults.
            hash_range: The hash keys of the shard. User records of aggregates outside of it are dropped. None: no
                record is dropped.
            lease_stream: The stream's name in leases, to detect that the stream was created again. None: this is not
                detected.
            timing: The clock and random numbers of a test; None: the real ones.
        """
        settings = settings or ReadSettings()
        self._client = client
        self._arn = {"StreamARN": stream} if is_arn(stream) else {}
        self._stream = stream
        self._shard = shard
        self._lease_stream = lease_stream
        self._position = start
        self._doing = f"reading {shard} of stream {stream_name(stream)}"
        self._timing = timing or RealTiming()
        self._pacing = Pacing(settings, self._timing.random)
        self._unpacking = Unpacking(
            stream_name(stream), shard, hash_range=hash_range, deaggregate=settings.deaggregate
        )
        self.counts = ReadCounts()
        self._iterator: str | None = None
        self._iterator_ms = 0
        self._failures = 0  # since the last reply
        self._is_renewed = False  # whether the iterator was replaced since the last reply
        self._rest: GetRecordsReply | None = None
        """The part of the last reply that was not returned yet. None: there is none."""
        self._end: Fetched | None = Fetched(ended=True) if start.is_end else None
        prepare(client)

    async def fetch(self, space: Callable[[], int] | None = None) -> Fetched:
        """Fetch records; see `Reader`."""
        if self._rest is not None:
            return self._fetched(self._rest)
        while self._end is None:
            await self._timing.sleep_ms(self._pacing.wait_ms(self._timing.now_ms()))
            try:
                return await self._read(await self._valid_iterator(), space)
            except Exception as error:
                if not of_aws(error):
                    raise
                await self._failed(error)
        return self._end

    def restart(self) -> None:
        """Drop the iterator; see `Reader`."""
        self._iterator = self._rest = None

    async def aclose(self) -> None:
        """Do nothing: a cancelled fetch leaves nothing in flight."""

    async def _valid_iterator(self) -> str:
        if self._timing.now_ms() - self._iterator_ms > ITERATOR_AGE_MS:
            self._iterator = None
        if self._iterator is None:
            asked_ms = self._timing.now_ms()
            answer = await self._client.get_shard_iterator(
                **stream_arguments(self._stream),
                ShardId=self._shard,
                **iterator_arguments(self._position),
            )
            self._iterator, self._iterator_ms = answer["ShardIterator"], asked_ms
            self.counts.iterators += 1
        return self._iterator

    async def _read(self, iterator: str, space: Callable[[], int] | None) -> Fetched:
        limit = self._pacing.limit(None if space is None else space())
        self._pacing.sent(self._timing.now_ms(), limit)
        reply = await get_records(
            self._client, {"ShardIterator": iterator, "Limit": limit, **self._arn}
        )
        # There is no `await` from here on: the returned records and the next position change together.
        now_ms = self._timing.now_ms()
        size = sum([len(each.data) + len(each.partition_key) for each in reply.records])
        self._pacing.replied(now_ms, len(reply.records), size, reply.millis_behind_latest)
        self._iterator, self._iterator_ms = reply.next_shard_iterator, now_ms
        self._failures = 0
        self.counts.failing = None
        self._is_renewed = False
        self.counts.fetches += 1
        self.counts.records += len(reply.records)
        self.counts.size_bytes += size
        return self._fetched(reply)

    def _fetched(self, reply: GetRecordsReply) -> Fetched:
        """Return the first part of a reply as records. The next fetch returns the rest."""
        count = self._unpacking.count(reply.records)
        stored, rest = reply.records[:count], reply.records[count:]
        self._rest = msgspec.structs.replace(reply, records=rest) if rest else None
        records = self._unpacking.records(stored, self._position)
        if stored:
            self._position = Checkpoint(stored[-1].sequence_number)
        fetched = Fetched(
            records=records,
            ended=reply.next_shard_iterator is None and not rest,
            children=[] if rest else [child_info(child) for child in reply.child_shards or ()],
            behind_ms=max(1, reply.millis_behind_latest or 0)
            if rest
            else reply.millis_behind_latest,
            size_bytes=sum([len(each.data) + len(each.partition_key) for each in stored]),
        )
        if fetched.ended:
            self._end = Fetched(ended=True, children=fetched.children)
        return fetched

    async def _failed(self, error: Exception) -> None:
        """Prepare the next attempt, or raise an error that no further attempt can change."""
        kind, code = failure_kind(error), error_code(error)
        if kind is FailureKind.MISSING:
            await self._missing()
            return
        stale = self._iterator is not None and (kind is FailureKind.EXPIRED or code == _INVALID)
        early = self._iterator is None and is_of_future(self._position, error)
        self._failures += 1
        self.counts.throttled += kind is FailureKind.THROTTLED
        self.counts.failures += kind is not FailureKind.THROTTLED
        log_failures(self._doing, self._failures, error, self.counts)
        if stale:
            self._iterator = None  # the next one begins behind the last returned record
            if not self._is_renewed:
                self._is_renewed = True
                return
        if kind is not FailureKind.EXPIRED and kind not in REPEATABLE and not early:
            if code == _INVALID:
                await check_stream(self._client, self._stream, self._lease_stream, self._timing)
            raise explained(
                error, self._doing, stream=self._stream, region=region_of(self._client)
            ) from error
        if kind is not FailureKind.THROTTLED and self._failures % _TRUSTED == 0:
            self._iterator = None  # the iterator may be the cause
        self._pacing.failed(self._timing.now_ms())

    async def _missing(self) -> None:
        """Find out what is missing: the stream, which is fatal, or the shard, whose records have all expired."""
        await check_stream(self._client, self._stream, self._lease_stream, self._timing)
        log_loss(self._doing)
        self._end = Fetched(ended=True, data_expired=True)


async def check_stream(
    client: AwsClient, stream: str, lease_stream: str | None, timing: Timing
) -> None:
    """Check that a stream exists, and that it is the stream of the leases.

    Raises:
        StreamNotFoundError: The stream does not exist, or was created again.
    """
    shards = StreamShards(client, stream, timing=timing)
    if lease_stream is None:
        await shards.describe()
    else:
        await shards.check_same(lease_stream)


def log_loss(doing: str) -> None:
    """Log that a shard was removed before it was read to its end."""
    _log.warning("%s: its records have expired; those that were not read are lost", doing)


def log_failures(doing: str, failures: int, error: Exception, counts: ReadCounts) -> None:
    """Count a failure in `counts`, and log it after 2, 4, 8 and so on failures in a row."""
    if failures >= _TOLD:
        counts.failing = f"{doing}: {error}"
    if failures >= _TOLD and not failures & (failures - 1):
        _log.warning("%s: %d failures in a row; last error: %s", doing, failures, error)


def is_of_future(position: Checkpoint, error: Exception) -> bool:
    """Whether Kinesis refused a start time because its clock is behind ours, so that the time is still to come."""
    refused = error_code(error) == _INVALID and "timestamp" in str(error).lower()
    return refused and position.timestamp_ms is not None
