"""AddOffsetsToTxn (API key 25), versions 0-4.

Behaviour: The request adds to the transaction the partition of `__consumer_offsets` that stores the group. Up to
version 4, TxnOffsetCommit is refused until this is done. From its version 5 on, TxnOffsetCommit adds the partition
itself (KIP-890).
Versions: v2 PRODUCER_FENCED; v3 flexible; v4 TRANSACTION_ABORTABLE, which this broker never returns.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.coordinators.transaction_versions import for_version
from headrace.broker.services import Services
from headrace.broker.topic_names import OFFSETS_TOPIC
from headrace.broker.waiting.steps import Work
from headrace.core.coordinator.group_coordinator import is_valid_group_id
from headrace.core.coordinator.runtime import Reply
from headrace.core.coordinator.transaction.producers import ProducerIdAndEpoch
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.add_offsets_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType
from headrace.types import TopicPartition

API_KEY: Final = ApiKey.ADD_OFFSETS_TO_TXN
VERSIONS: Final = VersionRange(0, 4)


def handle(
    services: Services, context: RequestContext, request: AddOffsetsToTxnRequest
) -> Work[Reply[AddOffsetsToTxnResponse]]:
    """Add a group's offsets to a transaction."""
    transactional_id, group_id = request.transactional_id, request.group_id
    if not is_valid_group_id(group_id):
        return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    try:
        services.permissions.authorize(
            context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id
        )
        services.permissions.authorize(context, Operation.READ, ResourceType.GROUP, group_id)
        yield from services.internal_topics.ensure(OFFSETS_TOPIC)
    except ApiError as error:
        return AddOffsetsToTxnResponse(error_code=error.code)
    index = services.groups.partition_for(group_id)
    assert index is not None, "the topic exists"
    reply = services.transactions.coordinator.add_partitions(
        transactional_id,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        [TopicPartition(OFFSETS_TOPIC, index)],
        services.time.now_ms,
    )

    def answer(error: ErrorCode) -> AddOffsetsToTxnResponse:
        return AddOffsetsToTxnResponse(error_code=for_version(error, context))

    return reply.map(answer) if isinstance(reply, Deferred) else answer(reply)
