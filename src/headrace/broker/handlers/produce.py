"""Produce (API key 0), versions 3-12 (advertised from 0, see `headrace.broker.handlers.api_versions`).

Behaviour:
* The broker checks and appends each partition by itself, and each has its own result.
* With acks=all the response waits until the batch is below the high watermark, with acks=1 until it is durable on this
  broker. Both are the same for a partition with one replica. acks=0 gets no response; if a partition fails, the broker
  closes the connection, so that the client notices.
* If `timeout_ms` passes first, the error is REQUEST_TIMED_OUT, never a success.
* A retry of an idempotent producer gets the original offset when that offset is durable.
* min.insync.replicas above 1 has no effect: as in Kafka since 4.0 a topic does not need more in-sync replicas than it
  has.
* On a compacted topic a batch with a record without a key is INVALID_RECORD. With headrace.ttl.enable so is a batch
  with a record whose headrace.ttl-ms is invalid.
* If the topic's compression.type is a codec, a batch with another codec is compressed again
  (`headrace.broker.recompression`); the error is INVALID_RECORD if its records cannot be decoded.
* With headrace.delay.enable records with a delivery time in their headers become scheduled records
  (`headrace.broker.scheduled_records`). The schedule is durable before the response is sent.
* A transactional batch must belong to the open transaction of its producer; otherwise the error is INVALID_TXN_STATE,
  from v11 on TRANSACTION_ABORTABLE. A producer that another one has replaced gets INVALID_PRODUCER_EPOCH. Up to v11 the
  producer must have added the partition to the transaction before.
* From v12 on the first batch adds the partition (KIP-890), and is appended when the addition is durable. While the
  producer's previous transaction is being completed, the batch waits for up to 100 ms; then the error is
  CONCURRENT_TRANSACTIONS.
Not implemented: v13 (topic ids), and the message formats 0 and 1 (KIP-896).
Versions: v3 record batches; v5 log start offset; v7 zstd; v8 error messages; v9 flexible; v10 the current leader with
the errors of a broker that does not lead (KIP-951), which do not occur here; v11 TRANSACTION_ABORTABLE; v12 adds
partitions.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from headrace.broker.configs.log_configs import target_of
from headrace.broker.context import CloseConnection, RequestContext
from headrace.broker.coordinators.remote import Confirmed
from headrace.broker.coordinators.transactional_batches import TransactionalBatches
from headrace.broker.partitions.produce_cost import (
    COST_AT_ONCE,
    RECORD_COST,
    begins_several,
    cost_of,
    decodes_several,
    is_empty,
    recompresses,
    record_count,
)
from headrace.broker.replication.partition import Partition
from headrace.broker.services import Services
from headrace.broker.waiting.delayed_produce import DelayedProduce
from headrace.broker.waiting.steps import (
    FIRST_BATCH_COST,
    Work,
    finished,
    value_of,
)
from headrace.deferred import Deferred
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
from headrace.protocol.versions import VersionRange
from headrace.records.batch import (
    ATTRIBUTES,
    COMPRESSION_MASK,
    CRC_START,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    unpack_header,
)
from headrace.records.compression import Compression
from headrace.records.raw import METER
from headrace.records.refusal import InvalidRecordsError
from headrace.security.acls import Operation, ResourceType
from headrace.types import Buffer, FileRange

API_KEY: Final = ApiKey.PRODUCE
VERSIONS: Final = VersionRange(0, 12)
SERVED: Final = VersionRange(3, 12)

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_ALL: Final = -1
ZSTD_VERSION: Final = 7
_ACKS: Final = frozenset({ACKS_ALL, ACKS_NONE, ACKS_LEADER})

Answer: TypeAlias = ProduceResponse | Deferred[ProduceResponse] | None

Appended = tuple[Partition, int, int, PartitionProduceResponse]
"""A partition, its leader epoch at the append, the offset that has to become durable, and the part of the response that
waits for it."""


def handle(
    services: Services, context: RequestContext, request: ProduceRequest
) -> Answer | Work[Answer]:
    """Append the records of every partition."""
    appender = _Appender(services, context, request)
    topics = request.topic_data
    is_one_batch = len(topics) == 1 and len(topics[0].partition_data) == 1
    if recompresses(services.topics, topics) or (
        not is_one_batch  # one batch cannot be divided into steps
        and (
            cost_of(topics) > COST_AT_ONCE
            or decodes_several(services.topics, topics)
            or begins_several(services.partitions, topics)
        )
    ):
        return _append_in_steps(services, request, appender)
    response = ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                partition_responses=appender.append_all(topic),
            )
            for topic in topics
        ]
    )
    return _answer(services, context, request, appender, response)


def _append_in_steps(
    services: Services, request: ProduceRequest, appender: _Appender
) -> Work[Answer]:
    # The records stay where they are in the connection's buffer: it receives nothing while its session is busy.
    response = ProduceResponse()
    for topic in request.topic_data:
        answer = TopicProduceResponse(name=topic.name)
        response.responses.append(answer)
        for sent in topic.partition_data:
            try:
                data = yield from appender.recompress(topic.name, sent)
            except ApiError as error:
                answer.partition_responses.append(_failed(sent.index, error))
                continue
            one = TopicProduceData(name=topic.name, partition_data=[data])
            files = FIRST_BATCH_COST if is_empty(services.partitions, topic.name, data) else 0
            before = METER.decompressed
            answer.partition_responses += appender.append_all(one)
            looked_into = METER.decompressed - before
            records = RECORD_COST * record_count(data) if looked_into else 0
            yield cost_of([one]) + files + looked_into + records
    return (yield from _answer_in_steps(services, request, appender, response))


def _answer_in_steps(
    services: Services,
    request: ProduceRequest,
    appender: _Appender,
    response: ProduceResponse,
) -> Work[Answer]:
    """Append the batches that wait for their transaction, too. The connection's next request waits meanwhile."""
    if appender.waits:
        yield from appender.enter_in_steps()
    appender.drop_lost()
    if request.acks == ACKS_NONE:
        _close_on_error(response)
        return None
    # The time of a client begins when its batches are appended, as in Kafka.
    return _when_durable(services, services.time.now_ms, request, response, appender.appended)


def _answer(
    services: Services,
    context: RequestContext,
    request: ProduceRequest,
    appender: _Appender,
    response: ProduceResponse,
) -> Answer | Work[Answer]:
    if request.acks == ACKS_NONE:
        _close_on_error(response)
        return None
    if not appender.waits:
        return _when_durable(services, context.now_ms, request, response, appender.appended)
    if appender.waits_for_many:
        return _answer_in_steps(services, request, appender, response)
    answer: Deferred[ProduceResponse] = Deferred()

    def entered(_: None) -> None:
        appender.drop_lost()
        reply = _when_durable(services, context.now_ms, request, response, appender.appended)
        if isinstance(reply, Deferred):
            answer.follow(reply)
        else:
            services.purgatory.deliver_later(lambda: answer.resolve(response))

    appender.enter().on_done(entered)
    return answer


class _Appender:
    """Appends the partitions of one request."""

    __slots__ = ("_context", "_refusal", "_request", "_services", "_transactional", "appended")

    def __init__(
        self, services: Services, context: RequestContext, request: ProduceRequest
    ) -> None:
        self._services = services
        self._context = context
        self._request = request
        self._refusal: ApiError | None = None
        if request.acks not in _ACKS or request.transactional_id is not None:
            self._refusal = _refusal(services, context, request)
        self._transactional: TransactionalBatches | None = None
        self.appended: list[Appended] = []

    @property
    def _batches(self) -> TransactionalBatches:
        if self._transactional is None:
            self._transactional = TransactionalBatches(
                self._services.transactions,
                self._request.transactional_id,
                self._context.header.api_version,
            )
        return self._transactional

    @property
    def waits(self) -> bool:
        """Whether there are batches whose partitions must be added to their transaction first."""
        return bool(self._transactional)

    @property
    def waits_for_many(self) -> bool:
        """Whether one step should not append all waiting batches, including those of other requests."""
        return self._batches.are_many

    def enter(self) -> Deferred[None]:
        """Add these partitions, then append the batches."""
        appended: Deferred[None] = Deferred()

        def append(outcome: ErrorCode | Confirmed) -> None:
            finished(self._batches.append(outcome))
            appended.resolve(None)

        reply = self._batches.add(self._context.now_ms)
        if isinstance(reply, Deferred):
            # Not by `map`: the batches are also released if the connection is closed.
            reply.on_done(append)
        else:
            append(reply)
        return appended

    def enter_in_steps(self) -> Work[None]:
        """Add these partitions, then append the batches in steps."""
        reply: Any = self._batches.add(self._context.now_ms)
        outcome: ErrorCode | Confirmed = yield from value_of(reply)
        yield from self._batches.append(outcome)

    def drop_lost(self) -> None:
        """Refuse batches of partitions that this broker serves no longer since the append: they may be lost."""
        appended, self.appended = self.appended, []
        for entry in appended:
            partition, leader_epoch, _, part = entry
            if lost := partition.lost_since(leader_epoch):
                _fail(part, ApiError(lost))
            else:
                self.appended.append(entry)

    def recompress(self, name: str, data: PartitionProduceData) -> Work[PartitionProduceData]:
        """Return a batch with the codec of its topic, if that has one: otherwise the batch as it is.

        Raises:
            ApiError: The batch is refused.
        """
        services, topic = self._services, self._services.topics.get(name)
        target = None if topic is None or topic.is_internal else target_of(topic.config)
        if topic is None or target is None or not self._may_write(name):
            return data
        records = _records(data, self._context.header.api_version)
        partition, session = services.partitions.require(name, data.index), self._context.session
        if len(records) >= HEADER_SIZE and records[CRC_START + 1] & TRANSACTIONAL_FLAG:
            self._batches.may_append(
                partition, records
            )  # raises an error; called again after the compression
        compressed = yield from services.recompressions.recompress(
            records, target, partition.log.config, session, services.time.now_ms
        )
        if compressed is records:
            return data
        return PartitionProduceData(index=data.index, records=compressed)

    def _may_write(self, name: str) -> bool:
        """Return whether the batches of a topic can be accepted at all. `append_all` returns the errors."""
        return self._refusal is None and self._services.permissions.allows(
            self._context, Operation.WRITE, ResourceType.TOPIC, name, quietly=True
        )

    def append_all(self, topic: TopicProduceData) -> list[PartitionProduceResponse]:
        """Append to the partitions of one topic, and return the results."""
        refusal = self._refusal
        if refusal is None and self._services.authorizer.active:
            try:
                self._services.permissions.authorize(
                    self._context, Operation.WRITE, ResourceType.TOPIC, topic.name
                )
            except ApiError as error:
                refusal = error
        if refusal is not None:
            return [_failed(data.index, refusal) for data in topic.partition_data]
        return [self._append(topic.name, data) for data in topic.partition_data]

    def _append(self, topic_name: str, data: PartitionProduceData) -> PartitionProduceResponse:
        part = PartitionProduceResponse(index=data.index)
        try:
            partition = self._services.partitions.require(topic_name, data.index)
            if partition.is_internal:
                raise InvalidTopicError(f"{topic_name} is written by the broker")
            records = _records(data, self._context.header.api_version)
            if (
                len(records) >= HEADER_SIZE
                and records[CRC_START + 1] & TRANSACTIONAL_FLAG
                and not self._batches.may_append(partition, records)
            ):
                self._append_later(partition, part, records)
            else:
                self._append_now(partition, part, records, self._services.time.now_ms)
        except ApiError as error:
            _fail(part, error)
        return part

    def _append_now(
        self, partition: Partition, part: PartitionProduceResponse, records: Buffer, now_ms: int
    ) -> None:
        scheduled = None
        if partition.max_delay_ms is None and partition.schedules is None:
            info = self._services.replicas.append(partition, records, now_ms)
        else:
            info, scheduled = self._services.deliveries.append(partition, records, now_ms)
        part.base_offset = info.base_offset
        part.log_append_time_ms = info.log_append_time_ms
        part.log_start_offset = partition.log.log_start_offset
        leader_epoch = partition.leader_epoch
        self.appended.append((partition, leader_epoch, info.last_offset + 1, part))
        if scheduled is not None:
            schedule, end_offset = scheduled
            self.appended.append((schedule, leader_epoch, end_offset, part))

    def _append_later(
        self, partition: Partition, part: PartitionProduceResponse, records: Buffer
    ) -> None:
        if self._request.acks == ACKS_NONE:
            raise ApiError(
                ErrorCode.INVALID_REQUIRED_ACKS,
                "a batch that may add its partition to a transaction needs a response: use acks=1 or acks=all",
            )

        def append(records: Buffer | ApiError) -> None:
            try:
                if isinstance(records, ApiError):
                    raise records
                self._append_now(partition, part, records, self._services.time.now_ms)
            except ApiError as error:
                _fail(part, error)

        self._batches.enter(partition, records, append)


def _refusal(
    services: Services, context: RequestContext, request: ProduceRequest
) -> ApiError | None:
    if request.acks not in _ACKS:
        return ApiError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks={request.acks}")
    if request.transactional_id is not None:
        resource = ResourceType.TRANSACTIONAL_ID
        try:
            services.permissions.authorize(
                context, Operation.WRITE, resource, request.transactional_id
            )
        except ApiError as error:
            return error
    return None


def _records(data: PartitionProduceData, version: int) -> Buffer:
    records = data.records
    if records is None or len(records) == 0:
        raise ApiError(ErrorCode.INVALID_RECORD, "no records")
    assert not isinstance(records, FileRange), "a request is bytes, never a file"
    if version < ZSTD_VERSION and len(records) >= HEADER_SIZE:
        attributes = unpack_header(records)[ATTRIBUTES]
        if attributes & COMPRESSION_MASK == Compression.ZSTD:
            raise ApiError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce v7 (KIP-110)"
            )
    return records


def _failed(index: int, error: ApiError) -> PartitionProduceResponse:
    part = PartitionProduceResponse(index=index)
    _fail(part, error)
    return part


def _fail(part: PartitionProduceResponse, error: ApiError) -> None:
    numbers, reason = (
        (error.numbers, error.reason) if isinstance(error, InvalidRecordsError) else ((), "")
    )
    part.error_code = error.code
    part.base_offset = -1
    part.record_errors = [
        BatchIndexAndErrorMessage(batch_index=number, batch_index_error_message=reason)
        for number in numbers
    ]
    part.error_message = error.message


def _close_on_error(response: ProduceResponse) -> None:
    for topic in response.responses:
        for part in topic.partition_responses:
            if part.error_code != ErrorCode.NONE:
                raise CloseConnection(
                    f"acks=0 to {topic.name}-{part.index}: {ErrorCode(part.error_code).name}"
                )


def _when_durable(
    services: Services,
    now_ms: int,
    request: ProduceRequest,
    response: ProduceResponse,
    appended: list[Appended],
) -> ProduceResponse | Deferred[ProduceResponse]:
    delayed = None
    acks = request.acks
    for partition, _, end_offset, part in appended:
        if partition.log.high_watermark < end_offset and not (
            partition.acks is not None and services.replicas.has(partition, acks, end_offset)
        ):
            delayed = delayed or DelayedProduce(response, services.purgatory)
            delayed.wait_for(partition, acks, end_offset, part)
    if delayed is None:
        return response
    services.purgatory.add(delayed, now_ms + max(0, request.timeout_ms))
    return delayed.deferred
