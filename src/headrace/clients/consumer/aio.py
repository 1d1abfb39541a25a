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
    """Reads records; an asynchronous context manager that commits, leaves the group and closes.

    Automatic commits (`enable.auto.commit`) cover finished records: the records of a poll are finished when the program
    polls again, or closes the consumer without an exception. Heartbeats continue while the program works. A consumer
    that does not poll for `max.poll.interval.ms` loses its partitions, logs a warning, and joins again with its next
    poll. One task polls. The other methods may be called from any task of the consumer's event loop.

    Every method except `owns` may be awaited. Methods that are no coroutines have acted when they return, also without
    `await`.
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
        """Prepare a consumer. The first call opens the first connection.

        Args:
            target: HOST:PORT, several separated by commas, or a `Broker` of this process.
            group: The consumer group, which `subscribe` and commits need. None is no group.
            auto_offset_reset: Where reading begins without a committed offset: earliest, latest (default), or none,
                which raises an error.
            enable_auto_commit: Whether the consumer commits finished records by itself. None is true.
            assignor: How the members divide the partitions: equal, range (default), roundrobin, sticky,
                cooperative-sticky, a registered name, a class or object of your own, or a list of them, preferred
                first. With an assignor the group protocol is classic.
            serde: How bytes become values: a name (bytes, str, json, ...), a type that is read from JSON, or a serde.
                None is the serde that the topic's configuration names (`headrace.serde`), or bytes.
            key_serde: How bytes become keys, in the same ways.
            tags: Return only records with any of these tags. On topics with `headrace.filter.enable` the broker leaves
                out the others. None returns all records.
            group_instance_id: The name of a static member, which may restart without a rebalance. None is a dynamic
                member.
            group_protocol: Who assigns partitions: the members (classic), the broker (consumer, KIP-848), or the broker
                if it offers this and no setting needs classic (auto, the default).
            client_id: The name of the consumer in the broker's log and in quotas.
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
        """Wait for the next record and return it. The record before it is finished."""
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
        """Join the group. The next polls assign partitions.

        Args:
            topics: Names of topics. They need not exist yet.
            pattern: A Python regular expression that must match the whole name of a topic. Topics that are created
                later are read, too. Without topics and pattern, the consumer reads the topics to which an administrator
                has attached the group; only Headrace's brokers store such attachments.
            exclude: Topics that a pattern does not include, also the pattern of a group: names, or another pattern.
            listener: An object with any of on_revoked(partitions), on_assigned(partitions), on_lost(partitions). With
                asyncio these may be coroutine functions.

        Raises:
            ConflictingSubscriptionError: The consumer has a subscription of another kind. Call `unsubscribe` first.
            ConfigError: The consumer has no group, or an argument is of the wrong form.
        """
        flow = self._core.subscribe(topics, pattern=pattern, exclude=exclude, listener=listener)
        await self._driver.run(flow)
        self._driver.start_background()

    async def unsubscribe(self) -> None:
        """Commit (with `enable.auto.commit`), leave the group, and read nothing any more."""
        await self._driver.run(self._core.unsubscribe(CLOSE_TIMEOUT_MS), UNLIMITED_MS)

    async def assign(
        self, partitions: Mapping[TopicPartition, int | None] | Iterable[TopicPartition]
    ) -> None:
        """Read these partitions, without an assignment by a group.

        Args:
            partitions: Partitions, or offsets by partition. Without an offset, a partition that the consumer reads
                already keeps its position; any other begins at the group's committed offset, or by `auto.offset.reset`.

        Raises:
            ConflictingSubscriptionError: The consumer is subscribed. Call `unsubscribe` first.
            ApiError: A topic or a partition does not exist.
        """
        await self._driver.run(self._core.assign(partitions))
        if self._core.needs_background:
            self._driver.start_background()

    async def assignment(self, timeout_s: float | None = None) -> list[TopicPartition]:
        """Return the partitions that the consumer reads. In a group, wait until partitions are assigned.

        Like a poll, this method takes part in rebalances: it revokes partitions and calls the listener. Afterwards
        another member may own the partitions of records that the program still processes. `positions` does not wait.

        Args:
            timeout_s: Seconds to wait. None is `request.timeout.ms`.

        Raises:
            NoSubscriptionError: The consumer has no subscription and no partitions.
            TransportError: The group did not assign partitions in time.
        """
        timeout_ms = milliseconds(timeout_s, self.config.request_timeout_ms)
        return await self._driver.run(self._core.assignment(timeout_ms), UNLIMITED_MS)

    def subscription(self) -> ReadySet[str]:
        """Return the topics that the consumer is subscribed to, or that match its pattern now."""
        with self._driver.enter():
            return ReadySet(self._core.subscription())

    @property
    def joined(self) -> bool:
        """Whether the consumer is a member of its group, with or without partitions."""
        return self._core.joined

    @property
    def stopped(self) -> bool:
        """Whether an administrator has stopped this member of its group (`Admin.stop_member`).

        The consumer has committed finished records (with `enable.auto.commit`) and has left the group. It does not join
        again unless the program calls `subscribe`. Iteration ends. The poll during which the member is stopped returns
        no records; the next poll raises MemberStoppedError.
        """
        return self._core.stopped

    # Records

    @unchecked
    async def poll(
        self, timeout_s: float = 1.0, max_records: int | None = None
    ) -> list[ConsumerRecord[V]]:
        """Wait for records and return them.

        Args:
            timeout_s: The longest wait for the first record, in seconds. Listeners, and the last commits before a
                rebalance, may take longer.
            max_records: The largest number of records to return. None is `max.poll.records`.

        Raises:
            NoSubscriptionError: The consumer has no subscription and no partitions.
            MemberStoppedError: An administrator has stopped this member; the poll before this one returned no records.
            NoOffsetError: A partition has no committed offset, and `auto.offset.reset` is none.
            SerializationError: A record cannot be decoded. The position stays at the record; `seek` skips it.
            CorruptRecordError: A batch is damaged. The position stays before the batch.
            ApiError: A partition cannot be read, or the group refuses this consumer.
        """
        if max_records is not None:
            max_records = whole_number("max_records", max_records)
        await self._driver.run(self._core.poll(milliseconds(timeout_s, 0)), UNLIMITED_MS)
        # A call that is interrupted here gives its records back, so that the next poll returns them.
        records: list[ConsumerRecord[V]] = []
        try:
            with self._driver.enter():
                records = self._core.take(max_records)
        except BaseException:
            self._give_back(*records)
            raise
        return records

    def _give_back(self, *records: ConsumerRecord | None) -> None:
        """Move the positions back to records that an exception has kept from the program."""
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
        """Return no records of these partitions until `resume`. They stay assigned."""
        with self._driver.enter():
            self._core.positions.pause(partitions)
        return DONE

    def resume(self, partitions: Iterable[TopicPartition]) -> Done:
        """Return records of these partitions again."""
        with self._driver.enter():
            self._core.positions.resume(partitions)
        return DONE

    def paused(self) -> ReadyList[TopicPartition]:
        """Return the partitions that `pause` has paused."""
        with self._driver.enter():
            return ReadyList(self._core.positions.paused())

    # Commits

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetNumber | OffsetAndMetadata] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Commit offsets and wait until the broker has stored them.

        Args:
            offsets: One past the last finished record of each partition. None commits all records that polls returned.
            timeout_s: Seconds to try. None is `request.timeout.ms`.

        Raises:
            NoSubscriptionError: The consumer has no subscription and no partitions.
            NotAssignedError: A partition is not assigned to this consumer.
            ApiError: The consumer is no member of the group any more (UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION), or the
                group is rebalancing (REBALANCE_IN_PROGRESS).
        """
        timeout_ms = milliseconds(timeout_s, self.config.request_timeout_ms)
        await self._driver.run(self._core.commit(offsets), timeout_ms)

    def commit_async(
        self,
        offsets: Mapping[TopicPartition, OffsetNumber | OffsetAndMetadata] | None = None,
        callback: Callback | None = None,
    ) -> Done:
        """Commit offsets without waiting, and without a retry.

        Args:
            offsets: One past the last finished record of each partition. None commits all records that polls returned.
            callback: Called with the offsets, and None or the error, from within a later poll, commit or close.
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
        """Return the group's committed offset of each partition; None for a partition without one.

        Args:
            partitions: The partitions. None is all partitions that the consumer reads, and those of which it has
                returned records before; in this case `committed` waits as `assignment` does. `Admin.offsets(group)`
                returns the offsets of the whole group.
            timeout_s: Seconds to wait. None is `request.timeout.ms`.

        Raises:
            InvalidCommittedOffsetError: There is no such partition.
            NoSubscriptionError: No partitions are given, and the consumer has no subscription and no partitions.
            TransportError: No broker answered in time.
        """
        timeout_ms = milliseconds(timeout_s, self.config.request_timeout_ms)
        if partitions is None:
            await self._driver.run(self._core.assignment(timeout_ms), UNLIMITED_MS)
        return await self._driver.run(self._core.committed(partitions), timeout_ms)

    def group_metadata(self) -> GroupMetadata:
        """Return the identity of the consumer in its group, which a transaction needs to commit offsets."""
        with self._driver.enter():
            return self._core.group_metadata()

    # Positions

    def seek(self, topic_partition: TopicPartition, offset: OffsetNumber) -> Done:
        """Set the position of a partition that the consumer reads."""
        with self._driver.enter():
            self._core.positions.seek(topic_partition, offset)
        return DONE

    async def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Set the position to the first record of these partitions; None is all that the consumer reads."""
        await self._driver.run(self._core.positions.seek_to(partitions, EARLIEST))

    async def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Set the position to the end of these partitions; None is all that the consumer reads."""
        await self._driver.run(self._core.positions.seek_to(partitions, LATEST))

    async def seek_to_time(
        self, partitions: Iterable[TopicPartition] | None, timestamp_ms: int
    ) -> None:
        """Set the position to the first record that is not older than a time, or to the end if there is none."""
        await self._driver.run(self._core.positions.seek_to(partitions, timestamp_ms))

    async def seek_to_committed(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Set the position to the committed offset of these partitions; None is all that the consumer reads.

        After an aborted transaction, the next poll then returns the same records again. `auto.offset.reset` decides for
        partitions without a committed offset.

        Raises:
            ConfigError: The consumer has no group.
            NoSubscriptionError: The consumer has no subscription and no partitions.
            NotAssignedError: A partition is not assigned to this consumer.
        """
        await self._driver.run(self._core.seek_to_committed(partitions))

    async def position(
        self, topic_partition: TopicPartition, timeout_s: float | None = None
    ) -> int:
        """Return the offset of the next record that polls will return. Wait until the position is known."""
        timeout_ms = milliseconds(timeout_s, self.config.request_timeout_ms)
        return await self._driver.run(
            self._core.positions.position(topic_partition, timeout_ms), UNLIMITED_MS
        )

    def owns(self, topic_partition: TopicPartition) -> bool:
        """Return whether the consumer owns a partition now. Any thread may call this method.

        A group member owns its partitions for nine tenths of a session after its last acknowledged heartbeat. A program
        that works long on the records of one poll can ask before each record. If the result is False, the program
        should process no more records of the partition, and call `seek` with the offset of the first record that is not
        processed: the consumer may keep the partition, and would continue after these records. `seek` raises
        NotAssignedError if the partition is not assigned any more.
        """
        return self._core.holds(topic_partition, self._driver.now_ms())

    def positions(self) -> ReadyDict[TopicPartition, int | None]:
        """Return the position of every assigned partition; None for a position that is not known yet."""
        with self._driver.enter():
            return ReadyDict(self._core.positions.positions())

    async def lag(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Return the number of offsets between each position and the end of the partition.

        Args:
            partitions: The partitions. None is all that the consumer reads.
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
        """Return one past the last offset of each partition; with read_committed, before the first open transaction."""
        return await self._driver.run(self._core.positions.end_offsets(partitions))

    async def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, ListedOffset]:
        """Return the first record of each partition that is not older than a time; offset -1 if there is none."""
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
            commit: Whether to commit all records that polls returned, if `enable.auto.commit` is on.
            timeout_s: Seconds that committing and leaving may take. None is ten.
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
