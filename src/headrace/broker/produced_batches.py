"""The batches of one Produce request: each is checked and appended by itself, and has its own result.

A batch is appended at once, or when its partition has been added to its transaction
(`headrace.broker.coordinators.transactional_batches`). Nothing is acknowledged here: `ProducedBatches.appended` says
what the response has to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.broker.cluster_views import MOVED
from headrace.broker.configs.log_configs import target_of
from headrace.broker.context import RequestContext
from headrace.broker.coordinators.remote import Confirmed
from headrace.broker.coordinators.transactional_batches import TransactionalBatches
from headrace.broker.replication.partition import Partition
from headrace.broker.services import Services
from headrace.broker.waiting.steps import Work, finished, value_of
from headrace.core.replica.progress import ALL_IN_SYNC
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode, InvalidTopicError, UnknownTopicIdError
from headrace.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.batch import (
    ATTRIBUTES,
    COMPRESSION_MASK,
    CRC_START,
    HEADER_SIZE,
    TRANSACTIONAL_FLAG,
    unpack_header,
)
from headrace.records.compression import Compression
from headrace.records.refusal import InvalidRecordsError
from headrace.security.acls import Operation, ResourceType
from headrace.types import Buffer, FileRange

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ZSTD_VERSION: Final = 7
TOPIC_IDS_VERSION: Final = 13
"""The first version that names topics by their ids."""
_ACKS: Final = frozenset({ALL_IN_SYNC, ACKS_NONE, ACKS_LEADER})
"""The values of `acks` that are valid for every partition."""

Appended = tuple[Partition, int, int, PartitionProduceResponse]
"""A partition, its leader epoch at the append, the offset that has to become durable, and the part of the response that
waits for it."""


def find_names(services: Services, topics: Sequence[TopicProduceData]) -> None:
    """Set the names of topics that the request names by id; "" if no topic has the id."""
    for topic in topics:
        found = services.topics.ids.get(topic.topic_id)
        topic.name = "" if found is None else found.name


class ProducedBatches:
    """Checks and appends the batches of one request, and notes what has to be acknowledged."""

    __slots__ = (
        "_context",
        "_refusal",
        "_request",
        "_services",
        "appended",
        "has_moved",
        "transactional",
    )

    def __init__(
        self, services: Services, context: RequestContext, request: ProduceRequest
    ) -> None:
        self._services = services
        self._context = context
        self._request = request
        self._refusal: ApiError | None = None
        """The error for all batches; None if there is none."""
        if request.acks not in _ACKS or request.transactional_id is not None:
            self._refusal = _refusal(services, context, request)
        self.transactional: TransactionalBatches | None = None
        """The transactional batches; None if there are none so far."""
        self.appended: list[Appended] = []
        """The appended batches that have to be acknowledged."""
        self.has_moved = False
        """Whether a batch was refused because this broker does not lead its partition."""

    @property
    def _batches(self) -> TransactionalBatches:
        if self.transactional is None:
            self.transactional = TransactionalBatches(
                self._services.transactions,
                self._request.transactional_id,
                self._context.header.api_version,
            )
        return self.transactional

    @property
    def finds_topics_by_id(self) -> bool:
        """Whether the request names topics by their ids."""
        return self._context.header.api_version >= TOPIC_IDS_VERSION

    @property
    def waits(self) -> bool:
        """Whether there are batches whose partitions must be added to their transaction first."""
        return bool(self.transactional)

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
                self._fail(part, ApiError(lost))
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
        if not topic.name and self.finds_topics_by_id:
            refusal = refusal or UnknownTopicIdError(
                "the topic was deleted, or is not known here yet"
            )
        if refusal is None and self._services.authorizer.active:
            try:
                self._services.permissions.authorize(
                    self._context, Operation.WRITE, ResourceType.TOPIC, topic.name
                )
            except ApiError as error:
                refusal = error
        if refusal is not None:
            return [self.failed(data.index, refusal) for data in topic.partition_data]
        return [self._append(topic.name, data) for data in topic.partition_data]

    def _append(self, topic_name: str, data: PartitionProduceData) -> PartitionProduceResponse:
        part = PartitionProduceResponse(index=data.index)
        try:
            services = self._services
            partition = services.partitions.require(topic_name, data.index)
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
                self._append_now(partition, part, records, services.time.now_ms)
        except ApiError as error:
            self._fail(part, error)
        return part

    def _append_now(
        self, partition: Partition, part: PartitionProduceResponse, records: Buffer, now_ms: int
    ) -> None:
        scheduled = None
        acks = self._request.acks
        if partition.acks is not None or acks > ACKS_LEADER:
            partition.require_in_sync(acks)
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
                self._fail(part, error)

        self._batches.enter(partition, records, append)

    def failed(self, index: int, error: ApiError) -> PartitionProduceResponse:
        """Return the result of a batch that is refused."""
        part = PartitionProduceResponse(index=index)
        self._fail(part, error)
        return part

    def _fail(self, part: PartitionProduceResponse, error: ApiError) -> None:
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
        self.has_moved |= error.code in MOVED


def _refusal(
    services: Services, context: RequestContext, request: ProduceRequest
) -> ApiError | None:
    if request.acks < ALL_IN_SYNC:
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
