"""The source of a worker that reads streams: one member of a group, with its shards as partitions.

`LeaseMember` decides which shards this member owns. `MemberShards` reads them, and `poll` returns their records.
`commit` stores, as a checkpoint, up to which record the worker has finished a shard without a gap.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import ClosedError, ConfigError, HeadraceError, LeaseLostError
from headrace.forking import FORKED, disown_in_children, keep_for_ever
from headrace.kinesis.client.backoff import FIRST_CONTACT_MS
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.group.beginnings import lease_settings, opened_store
from headrace.kinesis.group.member import LeaseMember, wall_ms
from headrace.kinesis.group.member_shards import MemberShards, ShardRevocationListener
from headrace.kinesis.group.readers import Readers
from headrace.kinesis.group.shard import AssignedShard
from headrace.kinesis.reading.shards import StreamDescription, StreamShards
from headrace.stream_record import StreamRecord
from headrace.types import PartitionStatus, TopicPartition

if TYPE_CHECKING:
    from headrace.kinesis.group.settings import StreamGroupSettings
    from headrace.kinesis.leases.store import LeaseStore

MAX_POLL_RECORDS: Final = 500
CANCELLED_MS: Final = 3_000
"""Milliseconds for the cancellation of handlers, after the listener's own time limit."""

_log: Final = logging.getLogger("headrace.kinesis")


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
        """Prepare a member. It connects in `prepare` or `begin`.

        Args:
            streams: The streams and the settings of reading and of leases.
            group: The group's name.
            durable: Whether `commit` returns after the checkpoint is stored. If not, it is stored within a second.
            drain_timeout_s: The longest time in seconds that the listener needs to finish a shard's records.
            owner: The name of this process in the leases. Two members may have the same owner.
        """
        self._owner = owner
        self._streams = streams
        self._group = group
        self._durable = durable
        self._drain_timeout_s = drain_timeout_s
        self._stack = AsyncExitStack()
        # A batch of durable commits contains one shard: it is processed as a whole, or not at all.
        self._shards = MemberShards(group, streams.reading, one_shard=durable)
        self._by_name = self._shards.by_name
        self._names: dict[str, str] = {}
        """Stream names, by the name that lease keys use for the stream."""
        self._listers: dict[str, StreamShards] = {}
        """The shard listers, by the same names."""
        self._asked_at: float | None = None
        """The event loop's time of the first of the present calls of `caught_up`. None: `caught_up` is not called."""
        self._member: LeaseMember | None = None
        self._store: LeaseStore | None = None
        self._found: list[StreamDescription] = []
        self._client: Any = None
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
            StreamNotFoundError: A stream does not exist.
            LeaseStoreError: The lease store does not answer.
        """
        streams = self._streams
        client = await self._stack.enter_async_context(open_client(streams.aws, "kinesis"))
        listers = [StreamShards(client, name) for name in streams.names]
        # The calls run one after another, so that a failed one leaves no other in flight.
        found = [await each.describe(answer_within_ms=FIRST_CONTACT_MS) for each in listers]
        self._names = {each.stream: each.name for each in found}
        if len(set(self._names.values())) < len(found):
            raise ConfigError(
                f"two of the streams {', '.join(streams.names)} have the same name. Read each of them with a worker "
                "of its own"
            )
        self._store = await self._stack.enter_async_context(opened_store(streams))
        self._found, self._client = found, client
        self._listers = dict(zip(self._names, listers, strict=True))

    async def begin(self, listener: ShardRevocationListener) -> None:
        """Join the group; call `prepare` before, if the caller has not.

        Raises:
            HeadraceError: An error of `prepare`.
        """
        if self._store is None:
            await self.prepare()
        assert self._store is not None, "it is open now"
        streams, client, shards = self._streams, self._client, self._shards
        readers = Readers(client, streams, self._found, shards.fetched)
        await readers.register(self._group)
        self._stack.push_async_callback(shards.ahead.aclose)
        settings = await lease_settings(streams, client, self._store, self._group, self._listers)
        drain_ms = round(self._drain_timeout_s * 1000) + CANCELLED_MS
        settings = replace(settings, handover_timeout_ms=drain_ms, drain_timeout_ms=drain_ms)
        self._member = LeaseMember(
            self._store, self._group, self._listers, shards, settings, owner=self._owner
        )
        shards.begin(listener, self._member, readers, names=self._names, listers=self._listers)
        await self._member.start()
        _ = shards.spawn(shards.report_idle_readers())

    def disown(self) -> None:
        """Close, in a forked child: the leases, the connections and the event loop belong to the parent."""
        self._forked = True
        keep_for_ever(self._stack)  # its destructor would close the parent's connections
        if self._member is not None:
            self._member.disown()

    def _check_process(self) -> None:
        if self._forked:
            raise ClosedError(f"this member of the group {self._group} {FORKED}")

    async def poll(
        self, timeout_s: float = 1.0, max_records: int | None = None
    ) -> list[StreamRecord]:
        """Return records of this member's shards, after waiting for the first one.

        Raises:
            HeadraceError: The streams cannot be read any more: access was revoked, or a stream was deleted.
            ClosedError: The process is a forked child of the member's process.
        """
        self._check_process()
        shards = self._shards
        if not (records := shards.take(max_records or MAX_POLL_RECORDS)) and shards.failure is None:
            shards.news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await shards.news.wait()
            records = shards.take(max_records or MAX_POLL_RECORDS)
        if shards.failure is not None:
            raise shards.failure
        return records

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these shards from `poll`. Reading ahead stops when its buffer is full."""
        self._shards.set_paused(partitions, paused=True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these shards from `poll` again."""
        self._shards.set_paused(partitions, paused=False)

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        """Return records of a shard again, from an offset that `poll` has returned and that is not committed."""
        shard = self._by_name.get(topic_partition)
        if shard is not None and shard.leaving is None:
            shard.take_back(offset)
            self._shards.news.set()

    def positions(self) -> dict[TopicPartition, int | None]:
        """Return the position of each shard: one past the last offset that `poll` returned, or None."""
        return {name: shard.position for name, shard in self._by_name.items()}

    def valid(self, topic_partition: TopicPartition) -> bool:
        """Whether this member owns a shard at this moment, by its lease and the clock."""
        shard = self._by_name.get(topic_partition)
        return shard is not None and self._member is not None and self._member.valid(shard.key)

    def epoch(self, topic_partition: TopicPartition) -> int:
        """Return the fencing token of a shard, or -1 if this member does not own the shard."""
        shard = self._by_name.get(topic_partition)
        return -1 if shard is None else shard.lease.epoch

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Checkpoint shards: all records of a shard before the given offset are finished.

        Raises:
            LeaseLostError: Commits are durable, and this member has lost a shard.
            ClosedError: The process is a forked child of the member's process.
        """
        self._check_process()
        assert self._member is not None, "it has begun"
        for name, position in offsets.items():
            shard = self._by_name.get(name)
            if shard is None and self._durable:
                raise LeaseLostError(f"this member has lost {name.topic}-{name.partition}")
            checkpoint = None if shard is None else shard.checkpoint_at(position)
            if shard is None or checkpoint is None:
                continue
            if self._durable:
                await self._member.checkpoint(shard.key, checkpoint)
                shard.finish(position)
            else:
                shard.finish(position)
                self._member.advance(shard.key, checkpoint, in_flight=shard.in_flight)
                self._shards.give_up_if_finished(shard)
            self._shards.balance(shard)
            self._shards.news.set()

    def statuses(self, unfinished: Mapping[TopicPartition, int]) -> list[PartitionStatus]:
        """Return the status of each shard, with the age of its oldest unfinished record.

        Args:
            unfinished: The first unfinished offset of each shard that has one.
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
            for key, shard in self._shards.by_key.items()
        ] + [
            PartitionStatus(
                topic=self._names.get(key.stream, key.stream),
                partition=None,
                shard=key.shard,
                error=str(error),
            )
            for key, error in self._shards.unread.items()
        ]

    def _lag_ms(self, shard: AssignedShard, unfinished: int | None, now_ms: int) -> int | None:
        oldest_ms = shard.oldest_ms(unfinished)
        if oldest_ms is None:
            oldest_ms = self._shards.ahead.oldest_ms(shard.key)
        if oldest_ms is None:
            return shard.reader.behind_ms
        return max(shard.reader.behind_ms or 0, now_ms - oldest_ms)

    def trouble(self) -> str | None:
        """Return which service does not answer, or None if all services answer."""
        return None if self._member is None else self._member.trouble

    async def caught_up(self) -> bool:
        """Whether this member owns every shard and `poll` has returned all records; to be called repeatedly.

        Only records that were written before the first of these calls count.
        """
        if self._asked_at is None:
            self._asked_at = asyncio.get_running_loop().time()
        if not all(self._is_read(shard) for shard in self._by_name.values()):
            return False
        if self._store is None:
            return False
        for stream in self._names:
            leases = await self._store.leases(self._group, stream)
            owned = self._shards.by_key
            is_mine = [lease.checkpoint.is_end or lease.key in owned for lease in leases]
            if not is_mine or not all(is_mine):
                return False
        caught_up = all(self._is_read(shard) for shard in self._by_name.values())
        if caught_up:
            self._asked_at = None
        return caught_up

    def _is_read(self, shard: AssignedShard) -> bool:
        assert self._asked_at is not None, "it was asked"
        return shard.is_current(self._asked_at)

    async def leave(self, timeout_s: float) -> None:
        """Give up all shards with their checkpoints, and close."""
        if self._forked:
            return
        self._shards.news.set()  # a pending `poll` returns
        try:
            if self._member is not None:
                async with asyncio.timeout(timeout_s):
                    await self._member.close()
        except TimeoutError:
            trouble = None if self._member is None else self._member.trouble
            _log.warning(
                "%s: the leases were not given up within %s s. Other members wait until the leases expire%s",
                self._group,
                timeout_s,
                f"; last error: {trouble}" if trouble else "",
            )
        finally:
            await self._shards.close()
            await self._stack.aclose()
        failure = self._shards.failure
        if failure is not None and not isinstance(failure, HeadraceError):
            raise failure
