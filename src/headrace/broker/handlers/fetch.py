"""Fetch (API key 1), versions 4-17.

Behaviour:
* The broker reads the partitions in the order of the request. It returns whole batches as ranges of segment files,
  below the high watermark or, with read_committed, below the last stable offset.
* `max_bytes` and `partition_max_bytes` are limits; only the first partition with data returns at least one batch.
* If there are fewer than `min_bytes` and no error, the response waits for `max_wait_ms` or until the high watermark has
  moved far enough. It waits less when very many fetches wait (docs/reference/limits.md).
* The response to a full fetch has every partition of the request, in order. A partition that occurs twice is read once,
  by its last occurrence.
* The broker remembers up to max.incremental.fetch.session.cache.slots sessions (KIP-227); in a session requests and
  responses have only changes (`headrace.broker.waiting.fetch_sessions`). A session belongs to its user: for other users
  it is FETCH_SESSION_ID_NOT_FOUND. Without space for a session the response has session id 0, and the client continues
  with full fetches.
* Leader epochs are checked (KIP-320). With NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH the response names the leader
  and its address from v16 on, if another live broker leads the partition (KIP-951).
* From v13 on a topic is named by its id (KIP-516). An id that no topic has is UNKNOWN_TOPIC_ID. In a session, a topic
  that was deleted is UNKNOWN_TOPIC_OR_PARTITION, and INCONSISTENT_TOPIC_ID if there is a new topic of its name. A
  session uses either names or ids; a fetch with the other ones is FETCH_SESSION_TOPIC_ID_ERROR.
* A fetch of a follower needs the permission CLUSTER_ACTION; otherwise the error is TOPIC_AUTHORIZATION_FAILED. Without
  a cluster there are no followers: the error is NOT_LEADER_OR_FOLLOWER. The response has records up to the log end
  offset, see `headrace.broker.replication.follower_fetches`.
* A client above its quota gets no records, but the time for which it has to pause.
* With read_committed the response lists the aborted transactions of its records by their first offsets; otherwise the
  list is null. A response lists at most 4,096 aborted transactions, and its records end earlier if there are more. With
  read_committed a long poll waits until the last stable offset moves.
* On a topic with headrace.ttl.enable expired records are left out.
* On a topic with headrace.filter.enable a request can have a filter (tagged field 26738); records without a tag of the
  filter are left out. Offsets do not change. An empty control record takes the place of records that are left out at
  the end. A request with a filter must be outside of sessions, and the filter must be valid; otherwise the error is
  INVALID_REQUEST.
Not implemented: Racks.
Versions: v5 log start offset; v7 sessions; v9 leader epochs; v10 zstd; v11 rack; v12 flexible, last fetched epoch; v13
topic ids; v15 the replica with its broker epoch (KIP-903); v16 addresses of leaders (KIP-951); v17 directory ids of
followers (KIP-853), which are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from copy import copy
from functools import partial
from typing import Final

from headrace.broker.cluster_views import MOVED, NewLeaders
from headrace.broker.context import RequestContext
from headrace.broker.partitions.topic import Topic
from headrace.broker.replication.partition import READ_COMMITTED, Found, Partition
from headrace.broker.services import Services
from headrace.broker.waiting.delayed_fetch import DelayedFetch
from headrace.broker.waiting.fetch_sessions import FINAL_EPOCH, Fetch, each_once, replica_of
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.core.coordinator.runtime import Reply
from headrace.core.log import AbortedLookup, SelectiveReading
from headrace.errors import ApiError, ErrorCode, InvalidRequestError, StorageError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)
from headrace.protocol.versions import VersionRange
from headrace.records.tags import TagFilter
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.FETCH
VERSIONS: Final = VersionRange(4, 17)

TOPIC_IDS_VERSION: Final = 13
"""The first version that names topics by their ids."""
NO_RECORDS: Final = b""
LEADERS_VERSION: Final = 16
"""The first version whose response has the addresses of leaders."""
_DELETED: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
_CREATED_AGAIN: Final = ErrorCode.INCONSISTENT_TOPIC_ID
PARTITIONS_AT_ONCE: Final = 500
"""The greatest number of partitions of a fetch that is not read in steps."""
_PARTITIONS_A_PIECE: Final = 100
_READ_COST: Final = 4 * ENTRY_COST
"""The cost of reading one partition: some forty microseconds."""
_NO_TRANSACTIONS: Final = AbortedLookup(0)
"""The lookup for readers of uncommitted records, whose responses list no aborted transactions."""
_READ_US: Final = 20
"""The time to read a partition, in microseconds."""
LONGEST_WAIT_MS: Final = 300_000
"""The longest wait of a fetch, in milliseconds. A longer `max_wait_ms` is reduced to it."""


def handle(
    services: Services, context: RequestContext, request: FetchRequest
) -> Reply[FetchResponse] | Work[Reply[FetchResponse]]:
    """Read from every partition, and wait if there are too few bytes."""
    fetch: Fetch
    tags: TagFilter | None = None
    uses_topic_ids = context.header.api_version >= TOPIC_IDS_VERSION
    if (request.replica_state is not None or request.replica_id >= 0) and replica_of(request) >= 0:
        return _of_follower(services, context, request, uses_topic_ids=uses_topic_ids)
    try:
        if request.headrace_filter:
            tags = _filter_of(request)
        fetch = services.fetch_sessions.begin(
            request, context.now_ms, context.session.principal, uses_topic_ids=uses_topic_ids
        )
    except ApiError as error:
        return FetchResponse(error_code=error.code)
    if services.quotas.active:
        fetch = services.throttling.limit_fetch(context, request, fetch)
    read = _Read(services, context, request, fetch, tags)
    if read.is_long:
        return _in_steps(services, context, read)
    return _answer(services, context, read, read.run())


def _of_follower(
    services: Services, context: RequestContext, request: FetchRequest, *, uses_topic_ids: bool
) -> FetchResponse | Work[Reply[FetchResponse]]:
    permissions, code = services.permissions, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if permissions.allows(context, Operation.CLUSTER_ACTION, ResourceType.CLUSTER):
        if permissions.is_broker(context):
            return services.follower_fetches.handle(context, request, uses_topic_ids=uses_topic_ids)
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[_refused(wanted, code) for wanted in topic.partitions],
            )
            for topic in each_once(request.topics, uses_topic_ids=uses_topic_ids)
        ]
    )


def _refused(wanted: FetchPartition, error: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=wanted.partition,
        error_code=error,
        high_watermark=-1,
        records=NO_RECORDS,
    )


def _in_steps(
    services: Services, context: RequestContext, read: _Read
) -> Work[Reply[FetchResponse]]:
    response = yield from read.run_in_steps()
    return _answer(services, context, read, response)


def _answer(
    services: Services, context: RequestContext, read: _Read, response: FetchResponse
) -> Reply[FetchResponse]:
    request, fetch = read.request, read.fetch
    if read.failed or read.size >= request.min_bytes or request.max_wait_ms <= 0:
        return fetch.finish(response)
    return _wait(services, context, read, response)


def _filter_of(request: FetchRequest) -> TagFilter:
    if request.session_epoch != FINAL_EPOCH:
        raise InvalidRequestError(
            "a fetch with a filter cannot use a session: each request must have its filter"
        )
    return TagFilter.decode(bytes(request.headrace_filter))


class _Read:
    """One pass over the partitions of a request."""

    __slots__ = (
        "_context",
        "_leaders",
        "_lookup",
        "_remaining",
        "_selective",
        "_services",
        "_topics_by_id",
        "_turns",
        "failed",
        "fetch",
        "request",
        "size",
        "sizes",
        "tags",
    )

    def __init__(
        self,
        services: Services,
        context: RequestContext,
        request: FetchRequest,
        fetch: Fetch,
        tags: TagFilter | None,
    ) -> None:
        self._services = services
        self._context = context
        self._leaders: NewLeaders | None = None
        """The leaders that the response names; None if it names none."""
        self._topics_by_id: Mapping[bytes, Topic] | None = None
        """The topics by id; None if the request names its topics."""
        if context.header.api_version >= TOPIC_IDS_VERSION:
            self._topics_by_id = services.topics.ids
        committed = request.isolation_level == READ_COMMITTED
        self._lookup = AbortedLookup() if committed else _NO_TRANSACTIONS
        self._selective: SelectiveReading | None = None
        self._turns: int | None = None
        """The number of partitions still to be read selectively; None before the first one."""
        self.tags = tags
        self.request = request
        self.fetch = fetch
        self._remaining = min(max(0, request.max_bytes), services.settings.config.fetch_max_bytes)
        self.failed = False
        self.size = 0
        self.sizes: list[tuple[Partition, FetchPartition, int]] = []
        """The bytes that each partition returned, for a request that has to wait."""

    @property
    def _reading(self) -> SelectiveReading:
        if self._selective is None:
            self._selective = SelectiveReading(self._services.time.now_ms, self.tags)
        return self._selective

    @property
    def is_long(self) -> bool:
        """Whether there are so many partitions that they are read in steps."""
        topics = self.fetch.topics
        if len(topics) == 1:
            return len(topics[0].partitions) > PARTITIONS_AT_ONCE
        count = len(topics)
        for topic in topics:  # this runs in every request, hence no sum()
            count += len(topic.partitions)
        return count > PARTITIONS_AT_ONCE

    def run(self) -> FetchResponse:
        """Read every partition, and return the response."""
        response = FetchResponse(responses=[self._topic(topic) for topic in self.fetch.topics])
        if self._leaders is not None:
            response.node_endpoints = self._endpoints()
        return response

    def run_in_steps(self) -> Work[FetchResponse]:
        """Read every partition, some partitions at a time, and return the response."""
        response = FetchResponse()
        for topic in self.fetch.topics:
            answer = FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id)
            response.responses.append(answer)
            for start in range(0, len(topic.partitions), _PARTITIONS_A_PIECE):
                piece = copy(topic)
                piece.partitions = topic.partitions[start : start + _PARTITIONS_A_PIECE]
                answer.partitions += self._topic(piece).partitions
                yield len(piece.partitions) * _READ_COST
            yield ENTRY_COST
        response.node_endpoints = self._endpoints()
        return response

    def finished(self) -> Reply[FetchResponse]:
        """Read every partition at the end of a wait, and return the final response."""
        if self.is_long:
            return self._services.steps.run(self._finished_in_steps(), self._context.session)
        if self._services.quotas.active:
            # The shell measured the request on arrival. The next request is charged for this read, too.
            partitions = sum(len(topic.partitions) for topic in self.fetch.topics)
            self._context.session.unpaid_us += partitions * _READ_US
        return self.fetch.finish(self.run())

    def _finished_in_steps(self) -> Work[FetchResponse]:
        response = yield from self.run_in_steps()
        return self.fetch.finish(response)

    def _topic(self, topic: FetchTopic) -> FetchableTopicResponse:
        services, unknown = self._services, False
        if self._topics_by_id is not None:
            found = self._topics_by_id.get(topic.topic_id)
            if found is not None:
                topic.topic = found.name
            elif not topic.topic:
                return self._refused(topic, ErrorCode.UNKNOWN_TOPIC_ID)
            else:  # the name that the topic had in an earlier fetch of the session
                unknown = True
        # Checked for each fetch of a session, and again at the end of a wait: the permission may be revoked.
        if services.authorizer.active and not services.permissions.allows(
            self._context, Operation.READ, ResourceType.TOPIC, topic.topic
        ):
            return self._refused(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if unknown:
            is_new = services.topics.get(topic.topic) is not None
            return self._refused(topic, _CREATED_AGAIN if is_new else _DELETED)
        return FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[self._partition(topic.topic, wanted) for wanted in topic.partitions],
        )

    def _refused(self, topic: FetchTopic, error: ErrorCode) -> FetchableTopicResponse:
        return FetchableTopicResponse(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[self._failed(wanted, error) for wanted in topic.partitions],
        )

    def _partition(self, topic: str, wanted: FetchPartition) -> PartitionData:
        try:
            partition = self._services.partitions.require(topic, wanted.partition)
            partition.check_leader_epoch(wanted.current_leader_epoch)
        except ApiError as error:
            data = self._failed(wanted, error.code)
            if error.code in MOVED and self._context.header.api_version >= LEADERS_VERSION:
                self._name_leader(topic, data)
            return data
        try:
            return self._read(partition, wanted)
        except ApiError as error:
            data = self._failed(wanted, error.code)
            data.high_watermark = partition.high_watermark
            data.log_start_offset = partition.log_start_offset
            return data
        except (StorageError, OSError) as error:
            self._services.journal.error(
                "read_failed", partition=str(partition.topic_partition), error=str(error)
            )
            return self._failed(wanted, ErrorCode.KAFKA_STORAGE_ERROR)

    def _name_leader(self, topic: str, data: PartitionData) -> None:
        self._leaders = self._leaders or NewLeaders(self._services, self._context)
        found = self._leaders.find(topic, data.partition_index)
        if found is not None:
            data.current_leader = LeaderIdAndEpoch(leader_id=found[0], leader_epoch=found[1])

    def _endpoints(self) -> list[NodeEndpoint]:
        """Return the addresses of the leaders that the response names."""
        return [
            NodeEndpoint(node_id=each.broker_id, host=each.host, port=each.port, rack=each.rack)
            for each in ({} if self._leaders is None else self._leaders.named).values()
        ]

    def _read(self, partition: Partition, wanted: FetchPartition) -> PartitionData:
        log = partition.log
        diverging = None if wanted.last_fetched_epoch < 0 else _diverging_epoch(partition, wanted)
        records, aborted = self._records(partition, wanted, nothing=diverging is not None)
        size = 0 if records is None else len(records)
        self._remaining = 0 if size > self._remaining else self._remaining - size
        self.size += size
        self.sizes.append((partition, wanted, size))
        if diverging is not None:
            self.failed = True
        return PartitionData(
            partition_index=wanted.partition,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            diverging_epoch=diverging,
            aborted_transactions=None
            if aborted is None
            else [
                AbortedTransaction(producer_id=entry.producer_id, first_offset=entry.first_offset)
                for entry in aborted
            ],
            records=NO_RECORDS if records is None else records,
        )

    def _records(self, partition: Partition, wanted: FetchPartition, *, nothing: bool) -> Found:
        offset, isolation_level = wanted.fetch_offset, self.request.isolation_level
        if nothing:
            return partition.with_aborted(offset, None, isolation_level, self._lookup)
        max_bytes = min(max(0, wanted.partition_max_bytes), self._remaining)
        visible_end = partition.visible_end(isolation_level)
        config = partition.log.config
        if (
            (config.expires or config.filters)
            and visible_end > offset
            and self._reading.concerns(config)
        ):
            return partition.select(
                offset,
                self._reading,
                max_bytes=max_bytes,
                isolation_level=isolation_level,
                minimum_one=self.size == 0,
                lookup=self._lookup,
                among=self._next_turn(),
            )
        records = partition.read(
            offset,
            max_bytes=max_bytes,
            up_to=visible_end,
            minimum_one=self.size == 0,
        )
        if isolation_level != READ_COMMITTED:
            return records, None
        return partition.with_aborted(offset, records, isolation_level, self._lookup)

    def _next_turn(self) -> int:
        """Return how many partitions, beginning with this one, share the budget of selective reads."""
        if self._turns is None:
            self._turns = sum(
                self._has_records(topic.topic, wanted.partition, wanted.fetch_offset)
                for topic in self.fetch.topics
                for wanted in topic.partitions
            )
        left = max(1, self._turns)
        self._turns = left - 1
        return left

    def _has_records(self, topic: str, index: int, offset: int) -> bool:
        """Return whether a selective read of the partition has records to decode."""
        try:
            partition = self._services.partitions.require(topic, index)
        except ApiError:
            return False
        return (
            self._reading.concerns(partition.log.config)
            and partition.visible_end(self.request.isolation_level) > offset
        )

    def _failed(self, wanted: FetchPartition, error: ErrorCode) -> PartitionData:
        self.failed = True
        return _refused(wanted, error)


def _diverging_epoch(partition: Partition, wanted: FetchPartition) -> EpochEndOffset | None:
    """Return the epoch and the offset at which the log of a reader diverges (KIP-595); None if it does not."""
    epoch, end_offset = partition.log.end_offset_for_epoch(wanted.last_fetched_epoch)
    if epoch < 0:
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, "the last fetched epoch is unknown")
    if epoch == wanted.last_fetched_epoch and end_offset >= wanted.fetch_offset:
        return None
    return EpochEndOffset(epoch=epoch, end_offset=end_offset)


def _wait(
    services: Services, context: RequestContext, first: _Read, response: FetchResponse
) -> Reply[FetchResponse]:
    request, fetch, tags = first.request, first.fetch, first.tags
    delayed = DelayedFetch(
        lambda: _Read(services, context, request, fetch, tags).finished(),
        request.min_bytes,
        services.purgatory,
    )
    total = 0
    watches = []
    moved = _moved_meanwhile(first, response) if first.is_long else ()
    for partition, wanted, size in first.sizes:
        available = _availability(partition, wanted, request)
        now = available() if size or partition in moved else 0
        total += now
        watches.append((partition, available, now))
    if total >= request.min_bytes or any(partition.refusal for partition in moved):
        return fetch.finish(response)
    for partition, available, now in watches:
        delayed.watch(partition, available, now)
    services.purgatory.add(delayed, context.now_ms + min(request.max_wait_ms, LONGEST_WAIT_MS))
    services.waiting_fetches.add(context.session, delayed)
    return delayed.deferred


def _moved_meanwhile(first: _Read, response: FetchResponse) -> Collection[Partition]:
    """Return the partitions that got records, or were deleted, between the step that read them and the last one."""
    committed = first.request.isolation_level == READ_COMMITTED
    parts = [part for topic in response.responses for part in topic.partitions]
    return {
        partition
        for (partition, _, _), part in zip(first.sizes, parts, strict=True)
        if partition.refusal
        or partition.visible_end(first.request.isolation_level)
        != (part.last_stable_offset if committed else part.high_watermark)
    }


def _availability(
    partition: Partition, wanted: FetchPartition, request: FetchRequest
) -> Callable[[], int]:
    isolation_level = request.isolation_level
    if request.min_bytes <= 1:
        # The usual case: any batch is enough, and the offsets alone show whether there is one.
        return lambda: int(partition.visible_end(isolation_level) > wanted.fetch_offset)
    return partial(_available_bytes, partition, wanted, request)


def _available_bytes(partition: Partition, wanted: FetchPartition, request: FetchRequest) -> int:
    try:
        return partition.available_bytes(
            wanted.fetch_offset,
            enough=request.min_bytes,
            max_bytes=max(0, wanted.partition_max_bytes),
            isolation_level=request.isolation_level,
        )
    except (ApiError, StorageError, OSError):
        # The read for the response finds the error again: a response with an error is sent at once.
        return request.min_bytes
