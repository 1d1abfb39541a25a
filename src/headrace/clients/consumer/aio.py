"""The asyncio consumer: what `headrace.aio.Consumer` is."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Self, Unpack

from headrace.clients.arguments import (
    OffsetNumber,
    checks_arguments,
    milliseconds,
    unchecked,
    whole_number,
)
from headrace.clients.assignors import AssignorChoice
from headrace.clients.config import ConsumerConfig
from headrace.clients.consumer.commits import Callback
from headrace.clients.consumer.departure import AtClose
from headrace.clients.consumer.group_metadata import GroupMetadata
from headrace.clients.consumer.lifetime import CLOSE_TIMEOUT_MS, AsyncConsumerLifetime
from headrace.clients.consumer.records import ConsumerRecord
from headrace.clients.consumer.settings import consumer_config, consumer_core
from headrace.clients.drivers import Target, closed_on_error, open_aio_driver
from headrace.clients.engine import UNLIMITED_MS
from headrace.clients.flows.list_offsets import EARLIEST, LATEST, ListedOffset
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.ready import DONE, Done, ReadyDict, ReadyList, ReadySet  # asyncio only
from headrace.errors import ClosedError, HeadraceError
from headrace.records.tags import TagFilter
from headrace.serdes.serde import AnySerde, SerdeOf
from headrace.types import TopicPartition, V

if TYPE_CHECKING:
    from headrace.clients.properties import ConsumerProperties

ITERATION_POLL_MS: Final = 1_000


@checks_arguments
class Consumer(AsyncConsumerLifetime, Generic[V]):
    """Reads records; an asynchronous context manager that commits (with `enable.auto.commit`), leaves and closes.

    Automatic commits cover what the program has finished: the records of a poll count as finished when it polls
    again, or closes without an exception. Heartbeats go on while the program works; one that does not poll for
    `max.poll.interval.ms` loses its partitions, is named in a warning, and joins again with its next poll.
    One task polls; the other methods may be called from any task of the consumer's event loop. Every method may be
    awaited but `owns`; those that are no coroutines act at once, and without `await` too.
    """

    def __init__(
        self,
        target: Target = "127.0.0.1:9092",
        *,
        group: str | None = None,
        auto_offset_reset: str | None = None,
        enable_auto_commit: bool | None = None,
        assignor: AssignorChoice | Sequence[AssignorChoice] | None = None,
        serde: SerdeOf[V] | None = None,
        key_serde: AnySerde | None = None,
        tags: Iterable[str] | TagFilter | None = None,
        group_instance_id: str | None = None,
        group_protocol: str | None = None,
        client_id: str = "headrace",
        **properties: Unpack[ConsumerProperties],
    ) -> None:
        """Prepare a consumer; nothing is connected before the first call.

        Args:
            target: HOST:PORT, several separated by commas, or a `Broker` of this process.
            group: The group, for `subscribe` and commits.
            auto_offset_reset: Where to begin without a committed offset: earliest, latest (default), none.
            enable_auto_commit: Whether what is finished is committed by itself (default); needs a group.
            assignor: How the members divide partitions: equal, range (default), roundrobin, sticky, cooperative-sticky,
                a name that was registered, a class or object of one's own, or several, best first. With one of them
                the protocol is classic.
            serde: How bytes become values: a name (bytes, str, json, ...), a type that is read from JSON, or a serde.
                None is what the topic's metadata says (`headrace.serde`), else bytes.
            key_serde: How bytes become keys, in the same ways.
            tags: Only records with any of these tags; the others are passed over, by the broker where the topic has
                `headrace.filter.enable`. None is all records.
            group_instance_id: Makes a static member, which may restart without a rebalance.
            group_protocol: Who divides partitions: the members (classic), the broker (consumer, KIP-848), or the broker
                where it offers to and nothing is set that only members can honour (auto, the default).
            client_id: The name by which brokers know the consumer.
            properties: More properties, `max_poll_records=100` or `**{"max.poll.records": 100}`.

        Raises:
            ConfigError: A property or a tag is unknown or malformed.
            UnknownAssignorError: There is no such assignor.
        """
        self.config: ConsumerConfig = consumer_config(
            target,
            properties,
            group_id=group,
            auto_offset_reset=auto_offset_reset,
            enable_auto_commit=enable_auto_commit,
            tags=tags,
            group_instance_id=group_instance_id,
            group_protocol=group_protocol,
            client_id=client_id,
        )
        self._driver = open_aio_driver(target, self.config)
        with closed_on_error(self._driver):
            self._core = consumer_core(self._driver.engine, self.config, assignor, serde, key_serde)
        self._closed = False
        self._close_at_exit()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close("handed out" if kind is None else "finished", CLOSE_TIMEOUT_MS)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord[V]:
        """Return the next record, waiting for it; the one before it counts as finished."""
        while True:
            record = None
            try:
                with self._driver.enter():
                    record = self._core.take_one()
            except BaseException:
                self._give_back(record)
                raise
            if record is not None:
                return record
            if self._core.stopped:
                raise StopAsyncIteration
            await self._driver.run(self._core.poll(ITERATION_POLL_MS), UNLIMITED_MS)

    # What is read

    async def subscribe(
        self,
        topics: Collection[str] | None = None,
        *,
        pattern: str | re.Pattern[str] | None = None,
        exclude: str | re.Pattern[str] | Collection[str] = (),
        listener: object | None = None,
    ) -> None:
        """Join the group; partitions are assigned from the next poll on.

        Args:
            topics: Names of topics, which need not exist yet.
            pattern: A regular expression (Python's) that the whole name of a topic must match; topics that come to
                exist later count too. With neither topics nor pattern, the group's attachments decide, which only
                Headrace's brokers keep.
            exclude: What a pattern, also that of the group, must not take: names, or another pattern.
            listener: An object with any of on_revoked(partitions), on_assigned(partitions), on_lost(partitions); with
                asyncio they may be coroutine functions.

        Raises:
            ConflictingSubscriptionError: The consumer reads something of another kind; `unsubscribe` first.
            ConfigError: There is no group, or the arguments are of the wrong form.
        """
        flow = self._core.subscribe(topics, pattern=pattern, exclude=exclude, listener=listener)
        await self._driver.run(flow)
        self._driver.start_background()

    async def unsubscribe(self) -> None:
        """Read nothing any more: commit (with `enable.auto.commit`), and leave the group."""
        await self._driver.run(self._core.unsubscribe(CLOSE_TIMEOUT_MS), UNLIMITED_MS)

    async def assign(
        self, partitions: Mapping[TopicPartition, int | None] | Iterable[TopicPartition]
    ) -> None:
        """Read these partitions from now on, without a group deciding.

        Args:
            partitions: Partitions, or offsets by partition. Without an offset, a partition that is read already goes on
                where it is; another begins at the group's committed offset, or else by `auto.offset.reset`.

        Raises:
            ConflictingSubscriptionError: The consumer is subscribed; `unsubscribe` first.
            ApiError: A topic or a partition does not exist.
        """
        await self._driver.run(self._core.assign(partitions))
        if self._core.needs_background:
            self._driver.start_background()

    async def assignment(self, timeout_s: float | None = None) -> list[TopicPartition]:
        """Return the partitions that are read; in a group, wait until the consumer has its place in it.

        Like a poll, it gives partitions up when the group rebalances, and tells the listener; records in hand may be
        others' afterwards. `positions` waits for nothing.

        Args:
            timeout_s: Seconds to wait; None is `request.timeout.ms`.

        Raises:
            NoSubscriptionError: Nothing is read.
            TransportError: The consumer does not have its place in time.
        """
        timeout_ms = milliseconds(timeout_s, self.config.request_timeout_ms)
        return await self._driver.run(self._core.assignment(timeout_ms), UNLIMITED_MS)

    def subscription(self) -> ReadySet[str]:
        """Return the topics that are subscribed to, or that match at the moment."""
        with self._driver.enter():
            return ReadySet(self._core.subscription())

    @property
    def joined(self) -> bool:
        """Whether the consumer has its place in its group, with or without partitions."""
        return self._core.joined

    @property
    def stopped(self) -> bool:
        """Whether an administrator has stopped this member of its group (`Admin.stop_member`).

        It has committed what was finished (with `enable.auto.commit`), has left, and does not join again unless the
        program calls `subscribe`. Iteration ends. The poll in which that happens returns no records, and the next one
        raises MemberStoppedError.
        """
        return self._core.stopped

    # Records

    @unchecked
    async def poll(
        self, timeout_s: float = 1.0, max_records: int | None = None
    ) -> list[ConsumerRecord[V]]:
        """Return records, waiting for the first of them.

        Args:
            timeout_s: Seconds to wait at most; listeners, and the last commits before a rebalance, may take longer.
            max_records: At most so many; None is `max.poll.records`.

        Raises:
            NoSubscriptionError: Nothing is read.
            MemberStoppedError: An administrator has stopped this member, and the poll before has returned.
            NoOffsetError: There is nowhere to begin, and `auto.offset.reset` is none.
            SerializationError: A record does not decode; the position stays at it, `seek` skips it.
            CorruptRecordError: A batch is damaged; the position stays before it.
            ApiError: A partition cannot be read, or the group does not take this consumer.
        """
        if max_records is not None:
            max_records = whole_number("max_records", max_records)
        await self._driver.run(self._core.poll(milliseconds(timeout_s, 0)), UNLIMITED_MS)
        # Nothing may come between taking records and returning them: a call that is interrupted takes none.
        records: list[ConsumerRecord[V]] = []
        try:
            with self._driver.enter():
                records = self._core.take(max_records)
        except BaseException:
            self._give_back(*records)
            raise
        return records

    def _give_back(self, *records: ConsumerRecord | None) -> None:
        """Return to the first of records that a signal has kept from the program."""
        firsts: dict[TopicPartition, int] = {}
        for record in records:
            if record is not None:
                firsts.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        if not firsts:
            return
        with contextlib.suppress(HeadraceError), self._driver.enter():
            for where, offset in firsts.items():
                self._core.positions.seek(where, offset)

    def pause(self, partitions: Iterable[TopicPartition]) -> Done:
        """Return no records of these partitions until `resume`; they stay assigned."""
        with self._driver.enter():
            self._core.positions.pause(partitions)
        return DONE

    def resume(self, partitions: Iterable[TopicPartition]) -> Done:
        """Return records of these partitions again."""
        with self._driver.enter():
            self._core.positions.resume(partitions)
        return DONE

    def paused(self) -> ReadyList[TopicPartition]:
        """Return the partitions that are paused."""
        with self._driver.enter():
            return ReadyList(self._core.positions.paused())

    # Commits

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetNumber | OffsetAndMetadata] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Commit offsets and wait until they are safe.

        Args:
            offsets: One past the last finished record of each partition; None is all that was returned.
            timeout_s: Seconds to try; None is `request.timeout.ms`.

        Raises:
            NoSubscriptionError: Nothing is read.
            NotAssignedError: A partition is not this consumer's (any more).
            ApiError: The group went on without this member (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION), or is rebalancing
                (REBALANCE_IN_PROGRESS).
        """
        timeout_ms = milliseconds(timeout_s, self.config.request_timeout_ms)
        await self._driver.run(self._core.commit(offsets), timeout_ms)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetNumber | OffsetAndMetadata] | None = None,
        callback: Callback | None = None,
    ) -> Done:
        """Commit offsets without waiting, and without another attempt if it fails.

        Args:
            offsets: One past the last finished record of each partition; None is all that was returned.
            callback: Called with the offsets and None or the error, from within a later poll, commit or close.
        """
        with self._driver.enter():
            self._core.commit_async(offsets, callback)
        return DONE

    async def committed(
        self,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return what the group has committed in these partitions; None where it has not.

        Args:
            partitions: Which; None is all that are read, and all of which records came since the consumer began to
                read. For those, `committed` waits as `assignment` does. `Admin.offsets(group)` has those of the group.
            timeout_s: Seconds to wait for that; None is `request.timeout.ms`.

        Raises:
            InvalidCommittedOffsetError: There is no such partition.
            NoSubscriptionError: Nothing is read, and no partitions are given.
            TransportError: The answer is not known in time.
        """
        timeout_ms = milliseconds(timeout_s, self.config.request_timeout_ms)
        if partitions is None:
            await self._driver.run(self._core.assignment(timeout_ms), UNLIMITED_MS)
        return await self._driver.run(self._core.committed(partitions), timeout_ms)

    def group_metadata(self) -> GroupMetadata:
        """Return the consumer's place in its group, as a transaction needs it."""
        with self._driver.enter():
            return self._core.group_metadata()

    # Positions

    def seek(self, topic_partition: TopicPartition, offset: OffsetNumber) -> Done:
        """Go on from another offset of a partition that is read."""
        with self._driver.enter():
            self._core.positions.seek(topic_partition, offset)
        return DONE

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go to the first record of these partitions, or (None) of all that are read."""
        await self._driver.run(self._core.positions.seek_to(partitions, EARLIEST))

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go behind the last record of these partitions, or (None) of all that are read."""
        await self._driver.run(self._core.positions.seek_to(partitions, LATEST))

    async def seek_to_time(
        self, partitions: Iterable[TopicPartition] | None, timestamp_ms: int
    ) -> None:
        """Go to the first record that is not older than a time; to the end where there is none."""
        await self._driver.run(self._core.positions.seek_to(partitions, timestamp_ms))

    async def seek_to_committed(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Go on from what the group has committed in these partitions, or (None) in all that are read.

        After an aborted transaction the next poll then returns the same records again. Where nothing is committed,
        `auto.offset.reset` decides, as it did at the beginning.

        Raises:
            ConfigError: The consumer has no group.
            NoSubscriptionError: Nothing is read.
            NotAssignedError: A partition is not this consumer's (any more).
        """
        await self._driver.run(self._core.seek_to_committed(partitions))

    async def position(
        self, topic_partition: TopicPartition, timeout_s: float | None = None
    ) -> int:
        """Return the offset of the next record that polls will return, waiting until it is known."""
        timeout_ms = milliseconds(timeout_s, self.config.request_timeout_ms)
        return await self._driver.run(
            self._core.positions.position(topic_partition, timeout_ms), UNLIMITED_MS
        )

    def owns(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition is this consumer's at this moment; any thread may ask.

        In a group it is so while the coordinator has acknowledged this member within its session, less a margin. A
        program that works for long on the records of one poll may ask before each. Where the answer is False, it
        handles no more records of that partition and calls `seek` with the offset of the first one that is left: the
        consumer may keep the partition after all, and would go on behind them. `seek` raises NotAssignedError where
        the partition is gone.
        """
        return self._core.holds(topic_partition, self._driver.now_ms())

    def positions(self) -> ReadyDict[TopicPartition, int | None]:
        """Return the position in every partition that is read now; None where it is not known yet."""
        with self._driver.enter():
            return ReadyDict(self._core.positions.positions())

    async def lag(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Return how many offsets lie between each position and the end.

        Args:
            partitions: Which; None is all that are read.
        """
        return await self._driver.run(
            self._core.positions.lag(partitions, self.config.request_timeout_ms)
        )

    async def begin_offsets(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition."""
        return await self._driver.run(self._core.positions.begin_offsets(partitions))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return one past the last offset of each partition; with read_committed, of the last that is settled."""
        return await self._driver.run(self._core.positions.end_offsets(partitions))

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListedOffset]:
        """Find the first record of each partition that is not older than a time; offset -1 where there is none."""
        return await self._driver.run(self._core.positions.offsets_for(timestamps_ms))

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """Return a topic's partitions.

        Raises:
            ApiError: UNKNOWN_TOPIC_OR_PARTITION when there is no such topic.
        """
        return await self._driver.run(self._core.partitions_for(topic))

    # The end

    async def close(self, *, commit: bool = True, timeout_s: float | None = None) -> None:
        """Commit, leave the group, and close the connections.

        Args:
            commit: Whether to commit all that was returned, if `enable.auto.commit` is on.
            timeout_s: Seconds that committing and leaving may take at most; None is ten.
        """
        timeout_ms = milliseconds(timeout_s, CLOSE_TIMEOUT_MS)
        await self._close("handed out" if commit else "nothing", timeout_ms)

    async def _close(self, at_close: AtClose, timeout_ms: int) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._driver.run(self._core.close(at_close, timeout_ms), UNLIMITED_MS)
        except ClosedError:
            pass  # the broker of this process was closed before
        finally:
            await self._driver.close()
