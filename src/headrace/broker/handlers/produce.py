"""Produce (API key 0), versions 3-9 (advertised from 0, see `headrace.broker.handlers.api_versions`).

Behaviour: every partition's records are checked, appended and answered for themselves. acks=1 and acks=all mean the
same on one node: the answer waits until the batch is durable, that is below the high watermark. acks=0 gets no
answer; if anything fails the connection is closed, so that the client looks for the reason. If `timeout_ms` passes
first the answer is REQUEST_TIMED_OUT, never success. Retries of an idempotent producer are answered with the original
offset, once that is durable. min.insync.replicas above 1 changes nothing: as in Kafka since 4.0 a topic does not need
more replicas in sync than it has. On a compacted topic a batch with a record without a key is INVALID_RECORD;
with headrace.ttl.enable one with a record whose headrace.ttl-ms is no time to live.
A transactional batch has to belong to the open transaction of its producer, and the partition has to have been added to
it before (KIP-890): else it is INVALID_TXN_STATE, or INVALID_PRODUCER_EPOCH for a producer that has been replaced.
Not implemented: v10 to v13 (KIP-951, KIP-890, topic ids). Message formats 0 and 1 (KIP-896).
Versions: v3 record batches; v5 log start offset; v7 zstd; v8 error messages; v9 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.access.authorizer import authorize
from headrace.broker.context import CloseConnection, RequestContext, VersionRange
from headrace.broker.delayed import DelayedProduce
from headrace.broker.partition import Partition
from headrace.core.coordinator.transaction.producers import Producer
from headrace.core.deferred import Deferred
from headrace.errors import ApiError, ErrorCode, InvalidTopicError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from headrace.records.batch import (
    COMPRESSION_MASK,
    CONTROL_FLAG,
    CRC_START,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    batch_crc,
    unpack_header,
)
from headrace.records.compression import Compression
from headrace.records.refusal import InvalidRecordsError
from headrace.security.acls import Operation, ResourceType
from headrace.types import Buffer, FileRange

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.PRODUCE
VERSIONS: Final = VersionRange(0, 9)
SERVED: Final = VersionRange(3, 9)

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1
ZSTD_VERSION: Final = 7
_ACKS: Final = frozenset({ACKS_ALL, ACKS_NONE, ACKS_LEADER})

Appended = tuple[Partition, int, PartitionProduceResponse]
"""A partition, the offset that has to become durable, and the part of the response that waits for it."""


def handle(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | Deferred[ProduceResponse] | None:
    """Append the records of every partition."""
    appender = _Appender(broker, context, request)
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=appender.append_all(topic),
            )
            for topic in request.topic_data
        ]
    )
    if request.acks == ACKS_NONE:
        _close_on_error(response)
        return None
    return _when_durable(broker, context, request, response, appender.appended)


class _Appender:
    """Appends the partitions of one request."""

    __slots__ = ("_broker", "_context", "_refusal", "_transactional_id", "appended")

    def __init__(self, broker: Broker, context: RequestContext, request: ProduceRequest) -> None:
        self._broker = broker
        self._context = context
        self._refusal = _refusal(broker, context, request)
        self._transactional_id = request.transactional_id
        self.appended: list[Appended] = []

    def append_all(self, topic: TopicProduceData) -> list[PartitionProduceResponse]:
        """Append to the partitions of one topic, or say why not."""
        refusal = self._refusal
        if refusal is None:
            try:
                authorize(
                    self._broker, self._context, Operation.WRITE, ResourceType.TOPIC, topic.name
                )
            except ApiError as error:
                refusal = error
        if refusal is not None:
            return [_failed(data.index, refusal) for data in topic.partition_data]
        return [self._append(topic.name, data) for data in topic.partition_data]

    def _append(self, topic_name: str, data: PartitionProduceData) -> PartitionProduceResponse:
        try:
            topic = self._broker.topics.require(topic_name)
            if topic.is_internal:
                raise InvalidTopicError(f"{topic.name} is written by the broker")
            partition = topic.partition(data.index)
            records = _records(data, self._context.header.api_version)
            if len(records) >= HEADER_SIZE and records[CRC_START + 1] & TRANSACTIONAL_FLAG:
                self._verify(partition, records)
            scheduled = None
            if partition.max_delay_ms is None:
                info = self._broker.replicas.append(partition, records, self._context.now_ms)
            else:
                info, scheduled = self._broker.deliveries.append(
                    partition, records, self._context.now_ms
                )
        except ApiError as error:
            return _failed(data.index, error)
        part = PartitionProduceResponse(
            index=data.index,
            base_offset=info.base_offset,
            log_append_time_ms=info.log_append_time_ms,
            log_start_offset=partition.log_start_offset,
        )
        self.appended.append((partition, info.last_offset + 1, part))
        if scheduled is not None:
            self.appended.append((*scheduled, part))
        return part

    def _verify(self, partition: Partition, records: Buffer) -> None:
        fields = unpack_header(records)
        if fields[5] & CONTROL_FLAG or fields[4] != batch_crc(records, 0, len(records)):
            return  # the log refuses it, and says why
        if self._transactional_id is None:
            raise ApiError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "a transactional batch without a transactional id",
            )
        if fields[9] < 0:
            return  # as above
        self._broker.transactions.verify(
            self._transactional_id,
            Producer(fields[9], fields[10]),
            partition.topic_partition,
            passing=ErrorCode.NOT_ENOUGH_REPLICAS,
        )


def _refusal(broker: Broker, context: RequestContext, request: ProduceRequest) -> ApiError | None:
    if request.acks not in _ACKS:
        return ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}")
    if request.transactional_id is not None:
        resource = ResourceType.TRANSACTIONAL_ID
        try:
            authorize(broker, context, Operation.WRITE, resource, request.transactional_id)
        except ApiError as error:
            return error
    return None


def _records(data: PartitionProduceData, version: int) -> Buffer:
    records = data.records
    if records is None or len(records) == 0:
        raise ApiError(ErrorCode.INVALID_RECORD, "no records")
    assert not isinstance(records, FileRange), "a request is bytes, never a file"
    if version < ZSTD_VERSION and len(records) >= HEADER_SIZE:
        attributes = unpack_header(records, 0)[5]
        if attributes & COMPRESSION_MASK == Compression.ZSTD:
            raise ApiError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7 (KIP-110)"
            )
    return records


def _failed(index: int, error: ApiError) -> PartitionProduceResponse:
    numbers, reason = (
        (error.numbers, error.reason) if isinstance(error, InvalidRecordsError) else ((), "")
    )
    return PartitionProduceResponse(
        index=index,
        error_code=error.code,
        base_offset=-1,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=number, batch_index_error_message=reason)
            for number in numbers
        ],
        error_message=error.message,
    )


def _close_on_error(response: ProduceResponse) -> None:
    for topic in response.responses:
        for part in topic.partition_responses:
            if part.error_code != ErrorCode.NONE:
                raise CloseConnection(
                    f"acks=0 to {topic.name}-{part.index}: {ErrorCode(part.error_code).name}"
                )


def _when_durable(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    response: ProduceResponse,
    appended: list[Appended],
) -> ProduceResponse | Deferred[ProduceResponse]:
    waiting = [entry for entry in appended if entry[0].high_watermark < entry[1]]
    if not waiting:
        return response
    delayed = DelayedProduce(response, broker.purgatory)
    for partition, end_offset, part in waiting:
        delayed.wait_for(partition, end_offset, part)
    broker.purgatory.add(delayed, context.now_ms + max(0, request.timeout_ms))
    return delayed.deferred
