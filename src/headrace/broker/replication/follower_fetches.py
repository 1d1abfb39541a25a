"""The fetches of followers, as the leader of their partitions handles them.

A follower's fetch does two things. It reports how far the follower is, which may move the high watermark and change the
in-sync replicas. And it returns the records from there on, up to the log end offset. For each partition:

1. The leader epoch of the follower has to be that of this broker, which has to lead the partition.
2. The follower has to be a replica of the partition, and no earlier process of its broker. So the fetch has to have a
   broker epoch (Fetch 15). The leader's metadata may be older than the follower's, so a newer process is accepted.
3. If the logs have diverged, the response says where. The follower has to truncate its log first, so its offset is no
   progress.
4. If the leader has deleted the offset, the error is OFFSET_OUT_OF_RANGE.
5. Otherwise the offset is the progress of the follower.

A response says whether the partition has a schedule. The follower then fetches it under the complement of the
partition's number, with the same rules.

A response without news waits: for records at the end of the log, which need not be committed, and for a high watermark
that the follower does not know yet. Quotas of clients, times to live and filters do not concern followers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.broker.context import LatestTime, RequestContext
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.replicas import Replicas
from headrace.broker.waiting.delayed_fetch import DelayedFetch, WaitingFetches
from headrace.broker.waiting.fetch_sessions import Fetch, FetchSessions
from headrace.broker.waiting.notices import WatchedPartition
from headrace.broker.waiting.purgatory import Purgatory
from headrace.broker.waiting.steps import ENTRY_COST, Steps, Work
from headrace.core.cluster.membership import Membership
from headrace.core.coordinator.runtime import Reply
from headrace.core.replica.divergence import find_divergence
from headrace.core.replica.isr import NO_BROKER_EPOCH, NOTHING_KNOWN
from headrace.errors import ApiError, ErrorCode, OffsetOutOfRangeError, StorageError
from headrace.ports import Journal
from headrace.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

NO_RECORDS: Final = b""
LONGEST_WAIT_MS: Final = 30_000
"""The longest wait of a follower's fetch, in milliseconds."""
_FULL_FETCH: Final = 0
"""The greatest session epoch of a fetch that names all its partitions."""


class FollowerFetches:
    """Handles the fetches of followers."""

    __slots__ = (
        "_journal",
        "_membership",
        "_name_of",
        "_purgatory",
        "_replicas",
        "_require",
        "_steps",
        "_time",
        "sessions",
        "waiting",
    )

    def __init__(
        self,
        replicas: Replicas,
        require: Callable[[str, int], Partition],
        membership: Membership,
        *,
        name_of: Callable[[bytes], str | None],
        sessions: FetchSessions,
        purgatory: Purgatory,
        waiting: WaitingFetches,
        steps: Steps,
        time: LatestTime,
        journal: Journal,
    ) -> None:
        """Handle fetches with these parts of the broker.

        Args:
            replicas: The partitions.
            require: Returns a partition by the name of its topic, or raises an ApiError.
            membership: The live brokers.
            name_of: Returns the name of the topic with an id; None if there is no such topic.
            sessions: The fetch sessions.
            purgatory: Has the fetches that wait.
            waiting: Bounds the memory of the fetches that wait.
            steps: Runs long reads.
            time: The time of the latest call of the broker.
            journal: Receives the log events.
        """
        self._replicas = replicas
        self._require = require
        self._membership = membership
        self._name_of = name_of
        self.sessions = sessions
        """The fetch sessions of followers and consumers."""
        self._purgatory = purgatory
        self.waiting = waiting
        """The fetches of followers and consumers that wait."""
        self._steps = steps
        self._time = time
        self._journal = journal

    def handle(
        self, context: RequestContext, request: FetchRequest, *, uses_topic_ids: bool
    ) -> Work[Reply[FetchResponse]]:
        """Note the progress of a follower, read from every partition, and wait if there is no news."""
        try:
            fetch = self.sessions.begin(
                request, context.now_ms, context.session.principal, uses_topic_ids=uses_topic_ids
            )
        except ApiError as error:
            return FetchResponse(error_code=error.code)
        read = self._read(request, uses_topic_ids=uses_topic_ids)
        response = yield from read.run(fetch, is_first=True)
        if read.has_news or request.max_wait_ms <= 0:
            return fetch.finish(response)

        def again() -> Reply[FetchResponse]:
            if not read.is_full and not read.has_changed:
                return fetch.finish(FetchResponse())
            last = self._read(request, uses_topic_ids=uses_topic_ids)
            return self._steps.run(_finish(fetch, last), context.session)

        return self._wait(context, request, read, again)

    def _read(self, request: FetchRequest, *, uses_topic_ids: bool) -> _Read:
        name_of = self._name_of if uses_topic_ids else None
        return _Read(
            request,
            name_of,
            self._require,
            replicas=self._replicas,
            membership=self._membership,
            journal=self._journal,
        )

    def _wait(
        self,
        context: RequestContext,
        request: FetchRequest,
        first: _Read,
        again: Callable[[], Reply[FetchResponse]],
    ) -> Reply[FetchResponse]:
        delayed = _DelayedFollowerFetch(first, again, self._purgatory)
        if not delayed.watch_all():  # a partition has changed since an earlier step
            return again()
        wait_ms = min(request.max_wait_ms, LONGEST_WAIT_MS)
        self._purgatory.add(delayed, self._time.now_ms + wait_ms)
        self.waiting.add(context.session, delayed)
        return delayed.deferred


def _finish(fetch: Fetch, read: _Read) -> Work[FetchResponse]:
    response = yield from read.run(fetch, is_first=False)
    return fetch.finish(response)


class _DelayedFollowerFetch(DelayedFetch):
    """The fetch of a follower that waits for records at the end of a log, or for a higher high watermark.

    An idle follower fetches twice a second from all its partitions, so this class spells out what `DelayedFetch` does.
    """

    __slots__ = ("_pass", "_wanted")

    def __init__(
        self, first: _Read, again: Callable[[], Reply[FetchResponse]], purgatory: Purgatory
    ) -> None:
        super().__init__(again, 1, purgatory)
        self._pass = first
        self._wanted: dict[WatchedPartition, FetchPartition] = {}
        """The partitions that are watched, as the request has them."""

    @property
    def partitions_count(self) -> int:
        """The number of partitions that the fetch watches."""
        return len(self._wanted)

    def watch_all(self) -> bool:
        """Check the partitions of the pass when records are appended, and when the high watermark moves.

        Returns:
            Whether the fetch waits; false if a partition has changed since it was read.
        """
        wanted_of, is_news = self._wanted, self._pass.is_news
        for partition, wanted in self._pass.read:
            if partition.refusal or is_news(partition, wanted):
                self._pass.has_changed = True
                self._end()
                return False
            wanted_of[partition] = wanted
            partition.watchers[self] = None
            if partition.follower_fetches is None:
                partition.follower_fetches = {}
            partition.follower_fetches[self] = None
        return True

    def partition_changed(self, partition: WatchedPartition) -> None:
        """Complete the fetch if the partition has news, or is not served any more."""
        assert isinstance(partition, Partition), "followers fetch from partitions"
        wanted = self._wanted.get(partition)
        if wanted is not None and (partition.refusal or self._pass.is_news(partition, wanted)):
            self._pass.has_changed = True
            self.expire()

    def _end(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for partition in wanted:
            assert isinstance(partition, Partition), "followers fetch from partitions"
            partition.watchers.pop(self, None)
            if partition.follower_fetches is not None:
                partition.follower_fetches.pop(self, None)
        super()._end()


class _Read:
    """One pass over the partitions of a follower's fetch."""

    __slots__ = (
        "_broker_epoch",
        "_journal",
        "_membership",
        "_name_of",
        "_remaining",
        "_replica",
        "_replicas",
        "_require",
        "_size",
        "has_changed",
        "has_news",
        "is_full",
        "read",
    )

    def __init__(
        self,
        request: FetchRequest,
        name_of: Callable[[bytes], str | None] | None,
        require: Callable[[str, int], Partition],
        *,
        replicas: Replicas,
        membership: Membership,
        journal: Journal,
    ) -> None:
        self._name_of = name_of
        self._replicas = replicas
        self._require = require
        self._membership = membership
        self._journal = journal
        state = request.replica_state
        self._replica = request.replica_id if state is None else state.replica_id
        self._broker_epoch = NO_BROKER_EPOCH if state is None else state.replica_epoch
        self._remaining = max(0, request.max_bytes)
        self._size = 0
        self.is_full = request.session_epoch <= _FULL_FETCH
        """Whether the follower may not have received the responses to its earlier fetches."""
        self.has_news = False
        """Whether the response has to be sent at once."""
        self.has_changed = False
        """Whether a partition has news since it was read, or is not served any more."""
        self.read: list[tuple[Partition, FetchPartition]] = []
        """The partitions that were read without error."""

    def run(self, fetch: Fetch, *, is_first: bool) -> Work[FetchResponse]:
        """Read every partition.

        Args:
            fetch: The partitions.
            is_first: Whether the fetch has just arrived. Only then its offsets are the progress of the follower.
        """
        response = FetchResponse()
        for topic in fetch.topics:
            found = FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id)
            unknown = ErrorCode.NONE
            if self._name_of is not None:
                name = self._name_of(topic.topic_id)
                if name is None:
                    unknown = ErrorCode.UNKNOWN_TOPIC_ID
                else:
                    found.topic = topic.topic = name
            for wanted in topic.partitions:
                data = (
                    self._failed(wanted, unknown)
                    if unknown
                    else self._partition(topic.topic, wanted, is_first=is_first)
                )
                if data is not None:
                    found.partitions.append(data)
                yield ENTRY_COST
            response.responses.append(found)
        return response

    def _partition(
        self, topic: str, wanted: FetchPartition, *, is_first: bool
    ) -> PartitionData | None:
        """Return what the response says about a partition; None if the follower of a session knows everything."""
        try:
            partition = self._checked(topic, wanted)
        except ApiError as error:
            return self._failed(wanted, error.code)
        try:
            return self._read(partition, wanted, is_first=is_first)
        except ApiError as error:
            data = self._failed(wanted, error.code)
            data.high_watermark = partition.high_watermark
            data.log_start_offset = partition.log_start_offset
            return data
        except (StorageError, OSError) as error:
            self._journal.error(
                "read_failed", partition=str(partition.topic_partition), error=str(error)
            )
            return self._failed(wanted, ErrorCode.KAFKA_STORAGE_ERROR)

    def _checked(self, topic: str, wanted: FetchPartition) -> Partition:
        """Return a partition that the follower may fetch.

        Raises:
            ApiError: This broker does not lead the partition in this leader epoch, or the follower is no replica of it.
        """
        partition, replica = self._find(topic, wanted.partition), self._replica
        partition.check_leader_epoch(wanted.current_leader_epoch)
        if partition.isr is None or not partition.isr.is_follower(replica):
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if wanted.current_leader_epoch >= 0:
                code = ErrorCode.UNKNOWN_LEADER_EPOCH
            raise ApiError(code, f"broker {replica} has no replica of {partition.topic_partition}")
        live, sent = self._membership.live.get(replica), self._broker_epoch
        if sent == NO_BROKER_EPOCH or (live is not None and sent < live.broker_epoch):
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"broker {replica} has another broker epoch than the fetch, which has {sent}",
            )
        return partition

    def _find(self, topic: str, index: int) -> Partition:
        """Return a partition, or the schedule of one; see `fetched_index`."""
        if index >= 0:
            return self._require(topic, index)
        schedule = self._require(topic, ~index).companion
        if schedule is None:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{~index} has no schedule here"
            )
        return schedule

    def _read(
        self, partition: Partition, wanted: FetchPartition, *, is_first: bool
    ) -> PartitionData | None:
        log, isr, offset = partition.log, partition.isr, wanted.fetch_offset
        assert isr is not None, "checked before"
        diverging = find_divergence(log, offset, wanted.last_fetched_epoch)
        if diverging is not None:
            self.has_news = True
            epoch, end_offset = diverging
            return self._data(partition, wanted, EpochEndOffset(epoch=epoch, end_offset=end_offset))
        if offset < log.log_start_offset:
            raise OffsetOutOfRangeError(f"offset {offset} is below {log.log_start_offset}")
        if is_first:
            if self.is_full:
                isr.reported(self._replica, NOTHING_KNOWN)
            self._replicas.follower_fetched(
                partition,
                self._replica,
                offset,
                log_start_offset=wanted.log_start_offset,
                broker_epoch=self._broker_epoch,
            )
        found = None
        if offset != log.log_end_offset:
            found = log.read(
                offset,
                max_bytes=min(max(0, wanted.partition_max_bytes), self._remaining),
                up_to=log.log_end_offset,
                minimum_one=not self._size,
            )
        self.read.append((partition, wanted))
        is_news = self.is_news(partition, wanted)
        if not is_news and not self.is_full:
            return None
        data = self._data(partition, wanted, None)
        if found is not None:
            data.records = found
            size = len(found)
            self._size += size
            self._remaining = max(0, self._remaining - size)
            self.has_news = True
        elif is_news:
            self.has_news = True
        isr.reported(self._replica, (log.high_watermark, log.log_start_offset))
        return data

    def is_news(self, partition: Partition, wanted: FetchPartition) -> bool:
        """Return whether there is something that the follower does not know."""
        log, isr = partition.log, partition.isr
        return (
            log.log_end_offset > wanted.fetch_offset
            or isr is None
            or isr.known_to(self._replica) != (log.high_watermark, log.log_start_offset)
        )

    def _data(
        self, partition: Partition, wanted: FetchPartition, diverging: EpochEndOffset | None
    ) -> PartitionData:
        log = partition.log
        return PartitionData(
            partition_index=wanted.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            diverging_epoch=diverging,
            aborted_transactions=None,
            records=NO_RECORDS,
            headrace_schedule=partition.companion is not None,
        )

    def _failed(self, wanted: FetchPartition, error: ErrorCode) -> PartitionData:
        self.has_news = True
        return PartitionData(
            partition_index=wanted.partition,
            error_code=error,
            high_watermark=-1,
            records=NO_RECORDS,
        )
