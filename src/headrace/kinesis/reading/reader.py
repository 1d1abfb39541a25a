"""Read one shard, from a checkpoint to its end."""

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
"""After so many failures in a row an iterator is not trusted any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What one fetch brought."""

    records: list[KinesisRecord] = field(default_factory=list)
    """In order; often none."""
    ended: bool = False
    """Whether these are the last of a closed shard."""
    children: list[ShardInfo] = field(default_factory=list)
    """The shards that follow one that has ended, where Kinesis said it; they may have to be listed."""
    behind_ms: int | None = None
    """How far these are behind the newest records of the shard; None if it is not known."""
    size_bytes: int = 0
    """Data and keys, as Kinesis counts them."""
    data_expired: bool = False
    """Whether it has ended because the shard is gone: what was not read of it is lost."""


@dataclass(slots=True)
class ReadCounts:
    """What a reader did, for metrics."""

    fetches: int = 0
    """Answers, or pushed events."""
    records: int = 0
    """As they are stored: an aggregate is one."""
    size_bytes: int = 0
    throttled: int = 0
    failures: int = 0
    """Without the throttled ones."""
    iterators: int = 0
    """Iterators, or subscriptions, that were had."""
    failing: str | None = None
    """Why several attempts in a row have failed; None after one that did not."""


class Reader(Protocol):
    """Reads one shard: `ShardReader`, or `FanOutReader`."""

    counts: ReadCounts

    async def fetch(self, room: Callable[[], int] | None = None) -> Fetched:
        """Wait as long as the limits of Kinesis want, read, and return what there is.

        May be cancelled and called again: what it did not return comes again.

        Args:
            room: Called right before anything is asked for: about how many bytes may be read at most.

        Raises:
            StreamNotFoundError: The stream was deleted.
            ConfigError: The credentials are not valid, or not any more.
            KinesisError: It may not be read, or there is no such position in the shard.
        """

    def restart(self) -> None:
        """Forget iterator or subscription; the next fetch gets a new one behind the last record that was returned."""

    async def aclose(self) -> None:
        """End what is under way."""


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
        """Take a client of Kinesis, a stream (name or ARN), a shard and where to begin; nothing is sent yet.

        Args:
            client: Of Kinesis.
            stream: Its name, or its ARN.
            shard: As `shardId-000000000001`.
            start: A checkpoint; records behind it are read.
            settings: How to read.
            hash_range: The shard's; user records of aggregates that do not belong there are dropped. None: none is.
            lease_stream: What leases call the stream, to tell another one of its name from it; None tells none.
            timing: Time and chance, of a test.
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
        self._failures = 0  # since the last answer
        self._is_renewed = False  # the iterator, since then
        self._rest: GetRecordsReply | None = None
        """What was read and not made into records yet."""
        self._end: Fetched | None = Fetched(ended=True) if start.is_end else None
        prepare(client)

    async def fetch(self, room: Callable[[], int] | None = None) -> Fetched:
        """See `Reader`."""
        if self._rest is not None:
            return self._fetched(self._rest)
        while self._end is None:
            await self._timing.sleep_ms(self._pacing.wait_ms(self._timing.now_ms()))
            try:
                return await self._read(await self._valid_iterator(), room)
            except Exception as error:
                if not of_aws(error):
                    raise
                await self._failed(error)
        return self._end

    def restart(self) -> None:
        """See `Reader`."""
        self._iterator = self._rest = None

    async def aclose(self) -> None:
        """See `Reader`."""

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

    async def _read(self, iterator: str, room: Callable[[], int] | None) -> Fetched:
        limit = self._pacing.limit(None if room is None else room())
        self._pacing.sent(self._timing.now_ms(), limit)
        reply = await get_records(
            self._client, {"ShardIterator": iterator, "Limit": limit, **self._arn}
        )
        # From here on nothing waits: what is returned and what the next call asks for change together.
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
        """Make records of the beginning of a reply; the next fetch goes on with its rest."""
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
        """Prepare for the next attempt, or raise what no further attempt can help with."""
        kind, code = failure_kind(error), error_code(error)
        if kind is FailureKind.MISSING:
            await self._missing()
            return
        stale = self._iterator is not None and (kind is FailureKind.EXPIRED or code == _INVALID)
        early = self._iterator is None and is_of_future(self._position, error)
        self._failures += 1
        self.counts.throttled += kind is FailureKind.THROTTLED
        self.counts.failures += kind is not FailureKind.THROTTLED
        tell_of_failures(self._doing, self._failures, error, self.counts)
        if stale:
            self._iterator = None  # the next begins behind the last record that was returned
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
            self._iterator = None  # it may be that
        self._pacing.failed(self._timing.now_ms())

    async def _missing(self) -> None:
        """Find out what is not there: the stream, which is fatal, or the shard, whose records have all expired."""
        await check_stream(self._client, self._stream, self._lease_stream, self._timing)
        tell_of_loss(self._doing)
        self._end = Fetched(ended=True, data_expired=True)


async def check_stream(
    client: AwsClient, stream: str, lease_stream: str | None, timing: Timing
) -> None:
    """See that a stream is there, and the one that leases are of.

    Raises:
        StreamNotFoundError: It is not.
    """
    shards = StreamShards(client, stream, timing=timing)
    if lease_stream is None:
        await shards.describe()
    else:
        await shards.check_same(lease_stream)


def tell_of_loss(doing: str) -> None:
    """Report that a shard is gone before it was read to its end."""
    _log.warning("%s: its records have expired; those that were not read before are lost", doing)


def tell_of_failures(doing: str, failures: int, error: Exception, counts: ReadCounts) -> None:
    """Log that something fails again and again: after 2 failures in a row, 4, 8 and so on; and note it in `counts`."""
    if failures >= _TOLD:
        counts.failing = f"{doing}: {error}"
    if failures >= _TOLD and not failures & (failures - 1):
        _log.warning("%s: %d failures in a row, the last: %s", doing, failures, error)


def is_of_future(position: Checkpoint, error: Exception) -> bool:
    """Whether a time to begin at is refused because it is still to come for Kinesis, whose clock may be behind ours."""
    refused = error_code(error) == _INVALID and "timestamp" in str(error).lower()
    return refused and position.timestamp_ms is not None
