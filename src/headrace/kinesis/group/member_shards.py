"""The shards that a member reads: readers start and stop with the member's leases, and records leave in turn.

A task for each shard reads ahead, within a bound of bytes. Before the member gives up a shard, the listener finishes
the records that were handed out. The final checkpoint is written together with the handover. A closed shard is given up
when its last record is finished.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, Final, Protocol

from headrace.core.lease.actions import Why
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.errors import HeadraceError, StreamNotFoundError
from headrace.kinesis.client.backoff import JitteredBackoff, RealTiming
from headrace.kinesis.group.member import LeaseMember
from headrace.kinesis.group.readers import Readers
from headrace.kinesis.group.shard import AssignedShard
from headrace.kinesis.reading.prefetch import ReadAhead
from headrace.kinesis.reading.reader import Fetched
from headrace.kinesis.reading.settings import ReadSettings
from headrace.kinesis.reading.shards import StreamShards
from headrace.stream_record import StreamRecord
from headrace.types import TopicPartition

REPORT_IDLE_S: Final = 0.5
"""Seconds between two reports that the idle readers have not stalled."""
UNREAD_MS: Final = 1_000
"""The longest first pause, in milliseconds, after a reader could not be opened. Further pauses grow."""
UNREAD_MOST_MS: Final = 30_000
"""The longest pause, in milliseconds, between two attempts to open a reader."""

_log: Final = logging.getLogger("headrace.kinesis")


class ShardRevocationListener(Protocol):
    """The callbacks of the program that processes the records. The member gives up a shard when a callback returns."""

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """Finish the records of these shards that are being processed, and commit them."""

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        """Cancel the processing of these shards: other members own them already."""


class MemberShards:
    """The shards that one member reads. It implements `LeaseListener`."""

    def __init__(self, group: str, settings: ReadSettings, *, one_shard: bool) -> None:
        """Prepare an empty set of shards. No reader is opened before `begin`.

        Args:
            group: The name of the group, for log messages.
            settings: How many bytes are read ahead and handed out.
            one_shard: Whether `take` returns records of a single shard.
        """
        self._group = group
        self._shard_bytes = settings.shard_bytes
        self._one_shard = one_shard
        self.by_name: dict[TopicPartition, AssignedShard] = {}
        """The shards that are read, by the names that workers know."""
        self.by_key: dict[LeaseKey, AssignedShard] = {}
        """The shards that are read, by the keys of their leases."""
        self.unread: dict[LeaseKey, Exception] = {}
        """The errors of the member's shards whose readers cannot be opened."""
        self.ahead: ReadAhead[LeaseKey] = ReadAhead(settings)
        self.news = asyncio.Event()
        """Set when a further `take` may return records, or when `failure` is set."""
        self.failure: BaseException | None = None
        """The error that ends the member. None while the member works."""
        self.tasks: set[asyncio.Task[None]] = set()
        """The running tasks. Each error that a task raises is stored in `failure`."""
        self._order: deque[TopicPartition] = deque()
        """The shards in the order in which `take` visits them."""
        self._listener: ShardRevocationListener | None = None
        self._member: LeaseMember | None = None
        self._readers: Readers | None = None
        self._names: Mapping[str, str] = {}
        """Stream names, by the name that lease keys use for the stream."""
        self._listers: Mapping[str, StreamShards] = {}
        """The shard listers, by the same names."""

    def begin(
        self,
        listener: ShardRevocationListener,
        member: LeaseMember,
        readers: Readers,
        *,
        names: Mapping[str, str],
        listers: Mapping[str, StreamShards],
    ) -> None:
        """Connect the parts, before the member starts.

        Args:
            listener: The callbacks of the program.
            member: The member that owns the leases.
            readers: What opens a reader of a shard.
            names: Stream names, by the name that lease keys use for the stream.
            listers: The shard listers, by the same names.
        """
        self._listener, self._member, self._readers = listener, member, readers
        self._names, self._listers = names, listers

    def fail(self, error: BaseException) -> None:
        """Store the first error, which `poll` raises."""
        self.failure = self.failure or error
        self.news.set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task. An error of the task ends the member."""
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)

    async def close(self) -> None:
        """Cancel all tasks, and wait for their ends."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Records

    def take(self, limit: int) -> list[StreamRecord]:
        """Return at most `limit` records that are ready, from the shards in turn, or from one shard (`one_shard`)."""
        records: list[StreamRecord] = []
        self._order.rotate(-1)
        for name in self._order:
            if not (self._one_shard and records):
                self._hand_out(self.by_name[name], records, limit)
        while len(records) < (1 if self._one_shard else limit):
            if (arrival := self.ahead.take()) is None:
                break
            shard = self.by_key.get(arrival.key)
            if arrival.error is not None:
                self.fail(arrival.error)
            elif shard is not None:
                shard.take_in(arrival.fetched)
                self._hand_out(shard, records, limit)
        return records

    def _hand_out(self, shard: AssignedShard, records: list[StreamRecord], limit: int) -> None:
        if shard.has_records and self._member is not None and self._member.valid(shard.key):
            records += shard.hand_out(limit - len(records))
        self.balance(shard)
        self.give_up_if_finished(shard)

    def balance(self, shard: AssignedShard) -> None:
        """Accept further fetches of a shard, or stop accepting them while its records are enough."""
        if shard.is_read and shard.held_back == shard.wants_more:
            shard.held_back = not shard.wants_more
            (self.ahead.pause if shard.held_back else self.ahead.resume)(shard.key)

    def set_paused(self, partitions: Iterable[TopicPartition], *, paused: bool) -> None:
        """Pause or resume the delivery of these shards. Other shards are ignored."""
        for name in partitions:
            shard = self.by_name.get(name)
            if shard is None:
                continue
            shard.paused = paused
            self.balance(shard)
        self.news.set()

    def fetched(self, key: LeaseKey, fetched: Fetched | None) -> None:
        """Note the end of a fetch: the reader of a shard has not stalled, and records may have arrived.

        Args:
            key: The shard.
            fetched: What the fetch returned. None: the fetch failed.
        """
        if fetched is None or fetched.records or fetched.ended:
            self.news.set()  # an empty fetch does not wake `poll`: many shards have many empty fetches
        if fetched is not None and self._member is not None:
            self._member.progressed(key, fetched.size_bytes)

    async def report_idle_readers(self) -> None:
        """Report again and again that a reader which waits for space has not stalled. Never returns."""
        assert self._member is not None, "it has begun"
        while True:
            await asyncio.sleep(REPORT_IDLE_S)
            for shard in self.by_name.values():
                if not shard.reader.is_fetching:
                    self._member.progressed(shard.key)

    # Leases

    async def assigned(self, lease: Lease) -> None:
        """Start to read a shard. If the reader cannot be opened, retry until the member loses the shard."""
        try:
            self._begin_reading(lease)
        except Exception as error:  # noqa: BLE001 - any error: the other shards are read meanwhile
            _log.error(
                "%s: %s cannot be read. Reading is retried until it works or another member owns the shard: %s",
                self._group,
                lease.key,
                error,
                exc_info=None if isinstance(error, HeadraceError) else error,
            )
            self.unread[lease.key] = error
            _ = self.spawn(self._begin_later(lease, error))

    def _begin_reading(self, lease: Lease) -> None:
        assert self._readers is not None, "it has begun"
        reader = self._readers.open(lease, lease.checkpoint)
        shard = AssignedShard(lease, self._names[lease.key.stream], reader, self._shard_bytes)
        self.ahead.add(shard.key, reader)
        self.by_name[shard.name] = self.by_key[lease.key] = shard
        self._order.append(shard.name)

    async def _begin_later(self, lease: Lease, error: Exception) -> None:
        """Retry to open a reader until it works, the member loses the shard, or the shard is assigned anew."""
        timing = RealTiming()
        backoff = JitteredBackoff(timing.random, first_ms=UNREAD_MS, most_ms=UNREAD_MOST_MS)
        while self.unread.get(lease.key) is error:
            await timing.sleep_ms(backoff.next_ms())
            if self.unread.get(lease.key) is not error:
                return
            try:
                self._begin_reading(lease)
            except Exception as again:  # noqa: BLE001 - the status of the shard contains the error
                error = self.unread[lease.key] = again
            else:
                del self.unread[lease.key]
                _log.info("%s: %s can be read again", self._group, lease.key)

    async def drain(self, key: LeaseKey, why: Why, deadline_ms: int | None) -> None:  # noqa: ARG002 - of the protocol
        """Have the listener finish a shard's records. The listener's time limit is shorter than the member's."""
        if self.unread.pop(key, None) is not None:
            assert self._member is not None, "it has begun"
            self._member.drained(key)  # no record was handed out
            return
        shard = self.by_key.get(key)
        if shard is not None and shard.leaving is None:
            shard.leaving = self.spawn(self._give_up(shard))

    async def restart(self, key: LeaseKey) -> None:
        """Replace the reader of a shard that has stalled."""
        shard = self.by_key.get(key)
        if shard is not None and shard.leaving is None:
            _log.warning("%s: the reader of %s is restarted: no fetch has ended", self._group, key)
            await self._stop_reading(shard)
            if self.by_name.get(shard.name) is shard and shard.leaving is None:
                self._read_on(shard)

    async def revoked(self, key: LeaseKey, why: Why) -> None:
        """Drop a shard that the member has lost, and have the listener cancel its processing."""
        self.unread.pop(key, None)
        shard = self.by_key.get(key)
        if shard is None:
            return
        assert self._listener is not None, "it has begun"
        _log.warning("%s: this member has lost %s: %s", self._group, key, why)
        self._drop(shard)
        await self._stop_reading(shard)
        await self._listener.on_lost([shard.name])
        if shard.leaving is not None:
            await asyncio.gather(shard.leaving, return_exceptions=True)

    async def failed(self, error: HeadraceError) -> None:
        """Store an error that ends the member. For a missing stream, find out which stream is missing."""
        if isinstance(error, StreamNotFoundError):
            try:
                for stream, lister in self._listers.items():
                    await lister.check_same(stream)
            except HeadraceError as exact:
                error = (
                    exact  # it names the stream, and says whether it was deleted or created again
                )
        self.fail(error)

    def give_up_if_finished(self, shard: AssignedShard) -> None:
        """Give up a closed shard whose records are all finished."""
        if shard.is_finished and shard.leaving is None:
            shard.leaving = self.spawn(self._give_up(shard))

    async def _give_up(self, shard: AssignedShard) -> None:
        """Have the listener finish the records of a shard, then report the final checkpoint to the member."""
        assert self._listener is not None, "it has begun"
        assert self._member is not None, "it has begun"
        await self._stop_reading(shard)
        try:
            await self._listener.on_revoked([shard.name])
        finally:
            if self.by_name.get(shard.name) is shard:
                self._drop(shard)
                if shard.is_finished and shard.end is not None:
                    self._member.ended(shard.key, shard.end.children)
                else:
                    self._member.drained(shard.key, shard.finished)

    def _drop(self, shard: AssignedShard) -> None:
        if self.by_name.get(shard.name) is shard:
            del self.by_name[shard.name], self.by_key[shard.key]
            self._order.remove(shard.name)

    async def _stop_reading(self, shard: AssignedShard) -> None:
        shard.is_read = False
        await self.ahead.remove(shard.key)

    def _read_on(self, shard: AssignedShard) -> None:
        assert self._readers is not None, "it has begun"
        shard.read_by(self._readers.open(shard.lease, shard.read_to))
        shard.is_read = True
        self.ahead.add(shard.key, shard.reader)
        self.balance(shard)
