"""What a worker reads from when it reads streams: the shards of one member, as partitions.

A member of a group (`member.py`) says which shards are this one's; a task for each reads ahead, within bounds, and
`poll` hands records out. What the worker has finished without a gap becomes a checkpoint. A shard that goes is
finished as far as it was begun, and its checkpoint is written with the hand-over; one that has ended is left when its
last record is finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.core.lease.actions import Why
from headrace.core.lease.lease import Lease, LeaseKey
from headrace.errors import (
    ClosedError,
    ConfigError,
    HeadraceError,
    LeaseLostError,
    StreamNotFoundError,
)
from headrace.forking import FORKED, disown_in_children, keep_for_ever
from headrace.kinesis.client.backoff import FIRST_CONTACT_MS, JitteredBackoff, RealTiming
from headrace.kinesis.client.settings import open_client
from headrace.kinesis.group.beginnings import lease_settings, opened_store
from headrace.kinesis.group.member import LeaseMember, wall_ms
from headrace.kinesis.group.readers import Readers
from headrace.kinesis.group.shard import AssignedShard
from headrace.kinesis.reading.prefetch import ReadAhead
from headrace.kinesis.reading.reader import Fetched
from headrace.kinesis.reading.shards import StreamDescription, StreamShards
from headrace.stream_record import StreamRecord
from headrace.types import PartitionStatus, TopicPartition

if TYPE_CHECKING:
    from headrace.kinesis.group.settings import StreamGroupSettings
    from headrace.kinesis.leases.store import LeaseStore

MAX_POLL_RECORDS: Final = 500
ALIVE_S: Final = 0.5
"""How often it is told that reading waits on purpose."""
UNREAD_MS: Final = 1_000
"""The first pause before it is tried again to read a shard, at most; further ones grow."""
UNREAD_MOST_MS: Final = 30_000
CANCELLED_MS: Final = 3_000
"""How much longer than the listener's own bound it takes until handlers are cancelled."""

_log: Final = logging.getLogger("headrace.kinesis")


class ShardRevocationListener(Protocol):
    """Who handles the records, and is told when shards go; they go when it returns."""

    async def on_revoked(self, partitions: list[TopicPartition]) -> None:
        """Finish what runs in these shards, and commit it."""

    async def on_lost(self, partitions: list[TopicPartition]) -> None:
        """End what runs in these shards."""


class StreamConsumer:
    """A member of a group that reads the shards of streams."""

    def __init__(
        self,
        streams: StreamGroupSettings,
        group: str,
        *,
        durable: bool,
        drain_timeout_s: float,
        owner: str,
    ) -> None:
        """Prepare a member; nothing is connected before `begin`.

        Args:
            streams: What is read, and how.
            group: Whose shards they are.
            durable: Whether a commit is written when it returns; else it is within a second.
            drain_timeout_s: How long the listener takes at most to finish what runs.
            owner: What leases call this process; two members may have one owner.
        """
        self._owner = owner
        self._streams = streams
        self._group = group
        self._durable = durable
        self._drain_timeout_s = drain_timeout_s
        self._stack = AsyncExitStack()
        self._shards: dict[TopicPartition, AssignedShard] = {}
        self._by_key: dict[LeaseKey, AssignedShard] = {}
        self._order: deque[TopicPartition] = deque()
        """Who is served first."""
        self._ahead: ReadAhead[LeaseKey] = ReadAhead(streams.reading)
        self._names: dict[str, str] = {}
        """Stream names, by the name that lease keys use for the stream."""
        self._listers: dict[str, StreamShards] = {}
        """The shard listers, by the same names."""
        self._unread: dict[LeaseKey, Exception] = {}
        """This member's shards that cannot be read, and why."""
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked_at: float | None = None
        self._member: LeaseMember | None = None
        self._store: LeaseStore | None = None
        self._found: list[StreamDescription] = []
        self._client: Any = None
        self._readers: Readers | None = None
        self._listener: ShardRevocationListener | None = None
        self._forked = False
        disown_in_children(self)

    # What a worker needs of a source

    begins_late = False
    stopped = False
    commit_timeout_s = 0.0
    commits_at_rest = True

    async def prepare(self) -> None:
        """Connect, and find the streams and the leases.

        Raises:
            ConfigError: The settings cannot be used.
            StreamNotFoundError: There is no such stream.
            LeaseStoreError: The leases cannot be reached.
        """
        streams = self._streams
        client = await self._stack.enter_async_context(open_client(streams.aws, "kinesis"))
        listers = [StreamShards(client, name) for name in streams.names]
        # One that fails leaves none under way.
        found = [await each.describe(answer_within_ms=FIRST_CONTACT_MS) for each in listers]
        self._names = {each.stream: each.name for each in found}
        if len(set(self._names.values())) < len(found):
            raise ConfigError(
                f"of {', '.join(streams.names)} two have the same name: give each a worker of its own"
            )
        self._store = await self._stack.enter_async_context(opened_store(streams))
        self._found, self._client = found, client
        self._listers = dict(zip(self._names, listers, strict=True))

    async def begin(self, listener: ShardRevocationListener) -> None:
        """Become a member; connect before, unless that was done.

        Raises:
            HeadraceError: As for `prepare`.
        """
        if self._store is None:
            await self.prepare()
        assert self._store is not None, "it is open now"
        self._listener = listener
        streams, found, client = self._streams, self._found, self._client
        self._readers = Readers(client, streams, found, self._fetched)
        await self._readers.register(self._group)
        self._stack.push_async_callback(self._ahead.aclose)
        settings = await lease_settings(streams, client, self._store, self._group, self._listers)
        drain_ms = round(self._drain_timeout_s * 1000) + CANCELLED_MS
        settings = replace(settings, handover_timeout_ms=drain_ms, drain_timeout_ms=drain_ms)
        self._member = LeaseMember(
            self._store, self._group, self._listers, self, settings, owner=self._owner
        )
        await self._member.start()
        self._telling = self._spawn(self._tell_of_waiting())

    def disown(self) -> None:
        """Become closed, in a forked child: leases, connections and the event loop are the parent's."""
        self._forked = True
        keep_for_ever(self._stack)  # whose connections would close at the child's end
        if self._member is not None:
            self._member.disown()

    def _check_process(self) -> None:
        if self._forked:
            raise ClosedError(f"this member of the group {self._group} {FORKED}")

    async def poll(
        self, timeout_s: float = 1.0, max_records: int | None = None
    ) -> list[StreamRecord]:
        """Return records of this member's shards, waiting for the first of them.

        Raises:
            HeadraceError: Reading is pointless: access was taken away, or the stream was deleted.
            ClosedError: This member belongs to the parent of this forked process.
        """
        self._check_process()
        if not (records := self._take(max_records or MAX_POLL_RECORDS)) and self._failure is None:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            records = self._take(max_records or MAX_POLL_RECORDS)
        if self._failure is not None:
            raise self._failure
        return records

    def _take(self, limit: int) -> list[StreamRecord]:
        """Return what is ready, of each shard in turn; of one alone where commits are durable: one is done or not."""
        records: list[StreamRecord] = []
        self._order.rotate(-1)
        for name in self._order:
            if not (self._durable and records):
                self._hand_out(self._shards[name], records, limit)
        while len(records) < (1 if self._durable else limit):
            if (arrival := self._ahead.take()) is None:
                break
            shard = self._by_key.get(arrival.key)
            if arrival.error is not None:
                self._fail(arrival.error)
            elif shard is not None:
                shard.take_in(arrival.fetched)
                self._hand_out(shard, records, limit)
        return records

    def _hand_out(self, shard: AssignedShard, records: list[StreamRecord], limit: int) -> None:
        if shard.has_records and self.valid(shard.name):
            records += shard.hand_out(limit - len(records))
        self._balance(shard)
        self._look_for_end(shard)

    def _balance(self, shard: AssignedShard) -> None:
        """Take over more of a shard, or for now nothing."""
        if shard.is_read and shard.held_back == shard.wants_more:
            shard.held_back = not shard.wants_more
            (self._ahead.pause if shard.held_back else self._ahead.resume)(shard.key)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out no records of these shards; reading ahead stops when it is full."""
        self._set_paused(partitions, paused=True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out records of these shards again."""
        self._set_paused(partitions, paused=False)

    def _set_paused(self, partitions: Iterable[TopicPartition], *, paused: bool) -> None:
        for name in partitions:
            shard = self._shards.get(name)
            if shard is None:
                continue
            shard.paused = paused
            self._balance(shard)
        self._news.set()

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Hand out records of a shard again, from one that was handed out and is not committed."""
        shard = self._shards.get(topic_partition)
        if shard is not None and shard.leaving is None:
            shard.take_back(offset)
            self._news.set()

    def positions(self) -> dict[TopicPartition, int | None]:
        """Return one past the last record that was handed out, by shard."""
        return {name: shard.position for name, shard in self._shards.items()}

    def valid(self, topic_partition: TopicPartition) -> bool:
        """Whether a shard is this member's at this moment, by its lease and the clock."""
        shard = self._shards.get(topic_partition)
        return shard is not None and self._member is not None and self._member.valid(shard.key)

    def epoch(self, topic_partition: TopicPartition) -> int:
        """Return the fencing token of a shard; -1 for one that is not this member's."""
        shard = self._shards.get(topic_partition)
        return -1 if shard is None else shard.lease.epoch

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Take how far shards are finished.

        Raises:
            LeaseLostError: A shard is not this member's any more, and commits are to be durable.
            ClosedError: This member belongs to the parent of this forked process.
        """
        self._check_process()
        assert self._member is not None, "it has begun"
        for name, position in offsets.items():
            shard = self._shards.get(name)
            if shard is None and self._durable:
                raise LeaseLostError(f"{name.topic}-{name.partition} is not this member's any more")
            checkpoint = None if shard is None else shard.checkpoint_at(position)
            if shard is None or checkpoint is None:
                continue
            if self._durable:
                await self._member.checkpoint(shard.key, checkpoint)
                shard.finish(position)
            else:
                shard.finish(position)
                self._member.advance(shard.key, checkpoint, in_flight=shard.in_flight)
                self._look_for_end(shard)
            self._balance(shard)
            self._news.set()

    def statuses(self, unfinished: Mapping[TopicPartition, int]) -> list[PartitionStatus]:
        """Return for each shard for how long its oldest record that is not finished has waited.

        Args:
            unfinished: By shard the first offset that was handed out and is not finished, where there is one.
        """
        now_ms = wall_ms()
        return [
            PartitionStatus(
                topic=shard.name.topic,
                partition=shard.name.partition,
                shard=key.shard,
                lag_ms=self._lag_ms(shard, unfinished.get(shard.name), now_ms),
                error=shard.reader.counts.failing,
            )
            for key, shard in self._by_key.items()
        ] + [
            PartitionStatus(
                topic=self._names.get(key.stream, key.stream),
                partition=None,
                shard=key.shard,
                error=str(error),
            )
            for key, error in self._unread.items()
        ]

    def _lag_ms(self, shard: AssignedShard, unfinished: int | None, now_ms: int) -> int | None:
        oldest_ms = shard.oldest_ms(unfinished)
        if oldest_ms is None:
            oldest_ms = self._ahead.oldest_ms(shard.key)
        if oldest_ms is None:
            return shard.reader.behind_ms
        return max(shard.reader.behind_ms or 0, now_ms - oldest_ms)

    def trouble(self) -> str | None:
        """Return which service does not answer; None where all do."""
        return None if self._member is None else self._member.trouble

    async def caught_up(self) -> bool:
        """Whether every shard is this member's, and has nothing that was not handed out; to be asked again and again.

        What was written before it was asked for the first time counts.
        """
        if self._asked_at is None:
            self._asked_at = asyncio.get_running_loop().time()
        if not all(self._is_read(shard) for shard in self._shards.values()):
            return False
        if self._store is None:
            return False
        for stream in self._names:
            leases = await self._store.leases(self._group, stream)
            is_mine = [lease.checkpoint.is_end or lease.key in self._by_key for lease in leases]
            if not is_mine or not all(is_mine):
                return False
        caught_up = all(self._is_read(shard) for shard in self._shards.values())
        if caught_up:
            self._asked_at = None
        return caught_up

    def _is_read(self, shard: AssignedShard) -> bool:
        assert self._asked_at is not None, "it was asked"
        return shard.is_current(self._asked_at)

    async def leave(self, timeout_s: float) -> None:
        """Give all shards up, with their checkpoints, and close."""
        if self._forked:
            return
        self._news.set()  # whoever polls waits no longer
        try:
            if self._member is not None:
                async with asyncio.timeout(timeout_s):
                    await self._member.close()
        except TimeoutError:
            trouble = None if self._member is None else self._member.trouble
            _log.warning(
                "%s: leases were not given up in %s s, and others wait until they run out%s",
                self._group,
                timeout_s,
                f"; last error: {trouble}" if trouble else "",
            )
        finally:
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stack.aclose()
        if self._failure is not None and not isinstance(self._failure, HeadraceError):
            raise self._failure

    # What the member says

    async def assigned(self, lease: Lease) -> None:
        """Begin to read a shard; where that fails, it is tried again until the shard goes."""
        try:
            self._begin_reading(lease)
        except Exception as error:  # noqa: BLE001 - of whatever kind: the others are read meanwhile
            _log.error(
                "%s: %s cannot be read, and it is tried again until it can or is another's: %s",
                self._group,
                lease.key,
                error,
                exc_info=None if isinstance(error, HeadraceError) else error,
            )
            self._unread[lease.key] = error
            _ = self._spawn(self._begin_later(lease, error))

    def _begin_reading(self, lease: Lease) -> None:
        assert self._readers is not None, "it has begun"
        reader = self._readers.open(lease, lease.checkpoint)
        limit_bytes = self._streams.reading.shard_bytes
        shard = AssignedShard(lease, self._names[lease.key.stream], reader, limit_bytes)
        self._ahead.add(shard.key, reader)
        self._shards[shard.name] = self._by_key[lease.key] = shard
        self._order.append(shard.name)

    async def _begin_later(self, lease: Lease, error: Exception) -> None:
        """Begin to read a shard as soon as it can be, unless it goes, or comes anew."""
        timing = RealTiming()
        backoff = JitteredBackoff(timing.random, first_ms=UNREAD_MS, most_ms=UNREAD_MOST_MS)
        while self._unread.get(lease.key) is error:
            await timing.sleep_ms(backoff.next_ms())
            if self._unread.get(lease.key) is not error:
                return
            try:
                self._begin_reading(lease)
            except Exception as again:  # noqa: BLE001 - told in the status, as it was in the log
                error = self._unread[lease.key] = again
            else:
                del self._unread[lease.key]
                _log.info("%s: %s can be read again", self._group, lease.key)

    async def drain(self, key: LeaseKey, why: Why, deadline_ms: int | None) -> None:  # noqa: ARG002 - unused: it waits
        """Finish what was begun in a shard; the listener's own bound is shorter."""
        if self._unread.pop(key, None) is not None:
            assert self._member is not None, "it has begun"
            self._member.drained(key)  # nothing was begun
            return
        shard = self._by_key.get(key)
        if shard is not None and shard.leaving is None:
            shard.leaving = self._spawn(self._give_up(shard))

    async def restart(self, key: LeaseKey) -> None:
        """Begin to read anew where nothing was read for too long."""
        shard = self._by_key.get(key)
        if shard is not None and shard.leaving is None:
            _log.warning("%s: reading %s begins again: no fetch came to an end", self._group, key)
            await self._stop_reading(shard)
            if self._shards.get(shard.name) is shard and shard.leaving is None:
                self._read_on(shard)

    async def revoked(self, key: LeaseKey, why: Why) -> None:
        """Let a shard go that is another's."""
        self._unread.pop(key, None)
        shard = self._by_key.get(key)
        if shard is None:
            return
        assert self._listener is not None, "it has begun"
        _log.warning("%s: %s is not this member's any more: %s", self._group, key, why)
        self._drop(shard)
        await self._stop_reading(shard)
        await self._listener.on_lost([shard.name])
        if shard.leaving is not None:
            await asyncio.gather(shard.leaving, return_exceptions=True)

    async def failed(self, error: HeadraceError) -> None:
        """Stop: nothing can be read any more."""
        if isinstance(error, StreamNotFoundError):
            try:
                for stream, lister in self._listers.items():
                    await lister.check_same(stream)
            except HeadraceError as said:
                error = said  # which one, and what became of it
        self._fail(error)

    # Within

    def _drop(self, shard: AssignedShard) -> None:
        if self._shards.get(shard.name) is shard:
            del self._shards[shard.name], self._by_key[shard.key]
            self._order.remove(shard.name)

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._news.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _look_for_end(self, shard: AssignedShard) -> None:
        """Leave a shard that has ended and is finished."""
        if shard.is_finished and shard.leaving is None:
            shard.leaving = self._spawn(self._give_up(shard))

    async def _give_up(self, shard: AssignedShard) -> None:
        """Have the listener finish a shard, then say how far it is."""
        assert self._listener is not None, "it has begun"
        assert self._member is not None, "it has begun"
        await self._stop_reading(shard)
        try:
            await self._listener.on_revoked([shard.name])
        finally:
            if self._shards.get(shard.name) is shard:
                self._drop(shard)
                if shard.is_finished and shard.end is not None:
                    self._member.ended(shard.key, shard.end.children)
                else:
                    self._member.drained(shard.key, shard.finished)

    # Reading ahead

    async def _stop_reading(self, shard: AssignedShard) -> None:
        shard.is_read = False
        await self._ahead.remove(shard.key)

    def _read_on(self, shard: AssignedShard) -> None:
        assert self._readers is not None, "it has begun"
        shard.read_by(self._readers.open(shard.lease, shard.read_to))
        shard.is_read = True
        self._ahead.add(shard.key, shard.reader)
        self._balance(shard)

    def _fetched(self, key: LeaseKey, fetched: Fetched | None) -> None:
        if fetched is None or fetched.records or fetched.ended:
            self._news.set()  # not for each look at each of very many shards
        if fetched is not None and self._member is not None:
            self._member.progressed(key, fetched.size_bytes)

    async def _tell_of_waiting(self) -> None:
        """Tell that shards are not stalled of which nothing is read, because nobody takes what was."""
        assert self._member is not None, "it has begun"
        while True:
            await asyncio.sleep(ALIVE_S)
            for shard in self._shards.values():
                if not shard.reader.is_fetching:
                    self._member.progressed(shard.key)
