"""DescribeTransactions (API key 65), versions 0-0.

Behaviour: tells the state of transactional ids; of an unknown one TRANSACTIONAL_ID_NOT_FOUND. Topics that the client
may not describe are left out.
Versions: v0 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.access.authorizer import allows
from headrace.broker.context import RequestContext, VersionRange
from headrace.core.coordinator.runtime import Reply, gather
from headrace.core.coordinator.transaction.records import TransactionMetadata, by_topic
from headrace.core.coordinator.transaction.views import described
from headrace.core.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from headrace.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.DESCRIBE_TRANSACTIONS
VERSIONS: Final = VersionRange(0, 0)


def handle(
    broker: Broker, context: RequestContext, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse | Deferred[DescribeTransactionsResponse]:
    """Describe transactional ids."""
    replies = gather([_describe(broker, context, each) for each in request.transactional_ids])

    def answer(states: list[TransactionState]) -> DescribeTransactionsResponse:
        return DescribeTransactionsResponse(transaction_states=states)

    return replies.map(answer) if isinstance(replies, Deferred) else answer(replies)


def _describe(
    broker: Broker, context: RequestContext, transactional_id: str
) -> Reply[TransactionState]:
    def shown(found: TransactionMetadata | ErrorCode) -> TransactionState:
        if isinstance(found, ErrorCode):
            return TransactionState(transactional_id=transactional_id, error_code=found)
        state = described(transactional_id, found)
        state.topics = [
            TopicData(topic=topic, partitions=partitions)
            for topic, partitions in by_topic(found.partitions).items()
            if allows(broker, context, Operation.DESCRIBE, ResourceType.TOPIC, topic, quietly=True)
        ]
        return state

    resource = ResourceType.TRANSACTIONAL_ID
    if not allows(broker, context, Operation.DESCRIBE, resource, transactional_id):
        return shown(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    reply = broker.transactions.coordinator.describe(transactional_id, context.now_ms)
    return reply.map(shown) if isinstance(reply, Deferred) else shown(reply)
