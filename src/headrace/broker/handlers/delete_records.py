"""DeleteRecords (API key 21), versions 0-2.

Behaviour: The request raises the log start offset of partitions to the given offset; -1 stands for the high watermark.
A lower offset changes nothing. The new log start offset is durable on the leader before the response is sent. The
response waits until all live replicas have the new log start offset, and has the low watermark: the least log start
offset of the live replicas. If `timeout_ms` passes first, the error is REQUEST_TIMED_OUT, and the deletion goes on. As
in Kafka, a replica whose disk has failed is waited for while its broker is live.
Brokers remove segments that are wholly below the log start offset at once. An offset above the high watermark is
OFFSET_OUT_OF_RANGE. A partition that this broker does not lead is NOT_LEADER_OR_FOLLOWER. A topic whose cleanup.policy
does not delete is POLICY_VIOLATION, an internal topic INVALID_TOPIC_EXCEPTION.
Versions: v2 flexible.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.partitions.record_deletion import DelayedDeletion, low_watermark
from headrace.broker.replication.partition import Partition
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, STEP_COST, Work
from headrace.core.coordinator.runtime import Reply
from headrace.errors import (
    ApiError,
    ErrorCode,
    InvalidRequestError,
    InvalidTopicError,
    OffsetOutOfRangeError,
)
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.DELETE_RECORDS
VERSIONS: Final = VersionRange(0, 2)

HIGH_WATERMARK: Final = -1
NO_LOW_WATERMARK: Final = -1
_PARTITIONS_A_WRITE: Final = 5
"""The partitions whose log start offsets are written in one step."""


def handle(
    services: Services, context: RequestContext, request: DeleteRecordsRequest
) -> Work[Reply[DeleteRecordsResponse]]:
    """Delete the records below an offset in every partition."""
    deletion = _Deletion(services, context)
    response = DeleteRecordsResponse()
    for topic in request.topics:
        result = DeleteRecordsTopicResult(name=topic.name)
        response.topics.append(result)
        for wanted in topic.partitions:
            result.partitions.append(deletion.plan(topic.name, wanted))
            if deletion.planned >= _PARTITIONS_A_WRITE:
                deletion.run(context.now_ms)
                yield STEP_COST
            yield ENTRY_COST
        yield ENTRY_COST
    deletion.run(context.now_ms)
    return deletion.response(response, context.now_ms + max(0, request.timeout_ms))


class _Deletion:
    """The partitions of one request. All are checked first, so that one write makes their deletions durable."""

    __slots__ = ("_context", "_deleted", "_named", "_offsets", "_results", "_services")

    def __init__(self, services: Services, context: RequestContext) -> None:
        self._services = services
        self._context = context
        self._named: set[Partition] = set()
        self._offsets: dict[Partition, int] = {}
        self._results: list[tuple[Partition, DeleteRecordsPartitionResult]] = []
        self._deleted: list[tuple[Partition, DeleteRecordsPartitionResult]] = []
        """The partitions whose deletion is durable on this broker."""

    def plan(self, topic: str, wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
        """Plan the deletion in a partition. Return its part of the response, which `run` completes."""
        result = DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=NO_LOW_WATERMARK
        )
        try:
            partition = self._find(topic, wanted)
            offset = _offset(partition, wanted.offset)
            if partition in self._named:
                raise InvalidRequestError("the partition occurs more than once")
        except ApiError as error:
            result.error_code = error.code
        else:
            self._named.add(partition)
            self._offsets[partition] = offset
            self._results.append((partition, result))
        return result

    def _find(self, name: str, wanted: DeleteRecordsPartition) -> Partition:
        self._services.permissions.authorize(
            self._context, Operation.DELETE, ResourceType.TOPIC, name
        )
        topic = self._services.topics.require(name)
        partition = self._services.partitions.require(name, wanted.partition_index)
        if partition.refusal:
            raise partition.refused()
        if topic.is_internal:
            raise InvalidTopicError("records of internal topics cannot be deleted")
        if "delete" not in topic.config.cleanup_policy.split(","):
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"cleanup.policy is {topic.config.cleanup_policy}"
            )
        return partition

    @property
    def planned(self) -> int:
        """The number of partitions whose log start offset `run` writes."""
        return len(self._offsets)

    def run(self, now_ms: int) -> None:
        """Delete the planned records, and complete the results."""
        planned, self._offsets = self._offsets, {}
        results, self._results = self._results, []
        # The broker may have stopped leading a partition since an earlier step planned its deletion.
        offsets = {each: offset for each, offset in planned.items() if not each.refusal}
        refused = self._services.deletion.delete_records(offsets, now_ms)
        for partition, result in results:
            if partition not in offsets:
                result.error_code = partition.refusal
            elif partition in refused:
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            else:
                self._deleted.append((partition, result))

    def response(
        self, response: DeleteRecordsResponse, deadline_ms: int
    ) -> Reply[DeleteRecordsResponse]:
        """Return the response. It is deferred until the live replicas have deleted the records, or the deadline."""
        services, live = self._services, self._services.membership
        targets = [(*each, each[0].log_start_offset) for each in self._deleted]

        def complete() -> DeleteRecordsResponse:
            for partition, result, offset in targets:
                if partition.refusal:
                    result.error_code = partition.refusal
                    continue
                result.low_watermark = low_watermark(partition, live)
                if result.low_watermark < offset:
                    result.error_code = ErrorCode.REQUEST_TIMED_OUT
            return response

        delayed = DelayedDeletion(live, services.purgatory, services.time, complete)
        if delayed.wait((each for each, _ in self._deleted), deadline_ms):
            return delayed.deferred
        return complete()


def _offset(partition: Partition, offset: int) -> int:
    if offset == HIGH_WATERMARK:
        return partition.high_watermark
    if not 0 <= offset <= partition.high_watermark:
        raise OffsetOutOfRangeError(f"{offset} is not in 0..{partition.high_watermark}")
    return offset
