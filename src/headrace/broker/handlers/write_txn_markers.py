"""WriteTxnMarkers (API key 27), versions 1-2.

Behaviour: The request ends transactions in partitions, whether or not a transaction is open there. The response is sent
when the markers are durable. Brokers send this request, and administrators who abort a hanging transaction. A
coordinator writes the markers in partitions of its own broker without it. A marker with an older epoch of the producer
is INVALID_PRODUCER_EPOCH, and so is a marker of an earlier transaction, which a tagged field of the request shows. A
marker with an older epoch of the coordinator is TRANSACTION_COORDINATOR_FENCED. With too few replicas in sync the error
is NOT_ENOUGH_REPLICAS. Only brokers end transactions in `__consumer_offsets`. For other clients partitions of internal
topics are INVALID_TOPIC_EXCEPTION.
Versions: v1 flexible; v2 transaction version (KIP-1228).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.replication.partition import Partition
from headrace.broker.services import Services
from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.broker.waiting.purgatory import Purgatory
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.core.log import Marker
from headrace.core.replica.progress import ALL_IN_SYNC
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode, InvalidTopicError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType
from headrace.types import TopicPartition

API_KEY: Final = ApiKey.WRITE_TXN_MARKERS
VERSIONS: Final = VersionRange(1, 2)


def handle(
    services: Services, context: RequestContext, request: WriteTxnMarkersRequest
) -> Work[Deferred[WriteTxnMarkersResponse]]:
    """Append every marker to every partition it names, and wait until all are durable."""
    allowed = services.permissions.allows(context, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    is_broker = allowed and services.permissions.is_broker(context)
    writing = _Writing(services, context.now_ms, allowed=allowed, is_broker=is_broker)
    response = WriteTxnMarkersResponse()
    for one in request.markers:
        result = yield from writing.write(one)
        response.markers.append(result)
    writing.begin(response)
    return writing.deferred


class _Writing:
    """The markers of one request."""

    __slots__ = (
        "_allowed",
        "_is_broker",
        "_now_ms",
        "_pending",
        "_purgatory",
        "_response",
        "_services",
        "_waits",
        "deferred",
    )

    def __init__(self, services: Services, now_ms: int, *, allowed: bool, is_broker: bool) -> None:
        self._services = services
        self._now_ms = now_ms
        self._purgatory: Purgatory = services.purgatory
        self._allowed = allowed
        self._is_broker = is_broker
        self._response: WriteTxnMarkersResponse | None = None
        """The response when all markers are appended; None before."""
        self._waits = 0
        """The number of markers that are not durable yet."""
        self._pending: list[tuple[Partition, int, int, WritableTxnMarkerPartitionResult]] = []
        self.deferred: Deferred[WriteTxnMarkersResponse] = Deferred()

    def write(self, wanted: WritableTxnMarker) -> Work[WritableTxnMarkerResult]:
        """Append one marker, and return the part of the response that waits for it."""
        marker = Marker(
            wanted.producer_id,
            wanted.producer_epoch,
            wanted.coordinator_epoch,
            wanted.transaction_result,
            wanted.transaction_version,
        )
        result = WritableTxnMarkerResult(producer_id=wanted.producer_id)
        for topic in wanted.topics:
            partitions: list[WritableTxnMarkerPartitionResult] = []
            result.topics.append(
                WritableTxnMarkerTopicResult(name=topic.name, partitions=partitions)
            )
            for index in topic.partition_indexes:
                started = wanted.headrace_start_ms
                partitions.append(self._append(topic.name, index, marker, started))
                yield 3 * ENTRY_COST
            yield ENTRY_COST
        yield ENTRY_COST
        return result

    def _append(
        self, name: str, index: int, marker: Marker, start_ms: int
    ) -> WritableTxnMarkerPartitionResult:
        result = WritableTxnMarkerPartitionResult(partition_index=index)
        try:
            partition = self._find(name, index, marker)
            if self._is_broker:
                self._waits += 1
                self._append_of_broker(TopicPartition(name, index), marker, start_ms, result)
                return result
            partition.require_in_sync(ALL_IN_SYNC)
            info = self._services.replicas.append_marker(partition, marker, self._now_ms)
        except ApiError as error:
            result.error_code = error.code
        else:
            self._pending.append((partition, partition.leader_epoch, info.last_offset + 1, result))
        return result

    def _find(self, name: str, index: int, marker: Marker) -> Partition:
        if not self._allowed:
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if marker.producer_id < 0 or marker.producer_epoch < 0:
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, "there is no such producer")
        partition = self._services.partitions.require(name, index)
        if partition.is_internal and not (self._is_broker and name == OFFSETS_TOPIC):
            raise InvalidTopicError(f"transactions in {name} are ended by its coordinator")
        return partition

    def _append_of_broker(
        self,
        partition: TopicPartition,
        marker: Marker,
        start_ms: int,
        result: WritableTxnMarkerPartitionResult,
    ) -> None:
        """Append the marker of a coordinator on another broker."""
        transactions, written = self._services.transactions, partial(self._durable, result)
        try:
            transactions.remote.check_start(partition, marker, start_ms)
            transactions.markers.append(partition, marker, written, self._now_ms)
        except ApiError as error:
            written(error.code)

    def begin(self, response: WriteTxnMarkersResponse) -> None:
        """Wait for the markers that are not durable yet."""
        self._response = response
        pending, self._pending = self._pending, []
        waiting = []
        for partition, leader_epoch, end_offset, result in pending:
            if lost := partition.lost_since(leader_epoch):  # an earlier step appended the marker
                result.error_code = lost
            elif partition.high_watermark < end_offset:
                waiting.append((partition, end_offset, result))
        self._waits += len(waiting)
        if not self._waits:
            self.deferred.resolve(response)
            return
        for partition, end_offset, result in waiting:
            partition.await_high_watermark(end_offset, partial(self._durable, result))

    def _durable(self, result: WritableTxnMarkerPartitionResult, error: ErrorCode) -> None:
        result.error_code = error
        self._waits -= 1
        if not self._waits and self._response is not None:
            self._purgatory.deliver_later(partial(self.deferred.resolve, self._response))
