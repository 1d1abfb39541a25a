"""DescribeTransactions (API key 65), versions 0-0.

Behaviour: The response has the state of transactional ids. An unknown id is TRANSACTIONAL_ID_NOT_FOUND. Topics that the
client may not describe are left out. An id that the request names twice is described once. When the described
transactions have 100,000 partitions together, further ids are COORDINATOR_LOAD_IN_PROGRESS, and clients retry.
Versions: v0 flexible.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.bounds.response_bounds import ANSWER_ENTRIES
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, GROUP_COST, Work, value_of
from headrace.core.coordinator.runtime import Reply, gather
from headrace.core.coordinator.transaction.records import TransactionMetadata, by_topic
from headrace.core.coordinator.transaction.views import described
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.DESCRIBE_TRANSACTIONS
VERSIONS: Final = VersionRange(0, 0)


def handle(
    services: Services, context: RequestContext, request: DescribeTransactionsRequest
) -> Work[DescribeTransactionsResponse]:
    """Describe the transactional ids of the request."""
    ids = list(dict.fromkeys(request.transactional_ids))
    replies: list[Reply[TransactionMetadata | ErrorCode]] = []
    for transactional_id in ids:
        replies.append(_find(services, context, transactional_id))
        yield GROUP_COST
    states: list[TransactionState] = []
    entries = 0
    gathered: Reply[list[TransactionMetadata | ErrorCode]] = gather(replies)
    for transactional_id, found in zip(ids, (yield from value_of(gathered)), strict=True):
        if entries >= ANSWER_ENTRIES:
            found = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # noqa: PLW2901 - replaces the description
        if isinstance(found, ErrorCode):
            states.append(TransactionState(transactional_id=transactional_id, error_code=found))
        else:
            states.append(_describe(services, context, transactional_id, found))
            entries += len(found.partitions)
            yield len(found.partitions) * ENTRY_COST
        yield ENTRY_COST
    return DescribeTransactionsResponse(transaction_states=states)


def _find(
    services: Services, context: RequestContext, transactional_id: str
) -> Reply[TransactionMetadata | ErrorCode]:
    resource = ResourceType.TRANSACTIONAL_ID
    if not services.permissions.allows(context, Operation.DESCRIBE, resource, transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return services.transactions.coordinator.describe(transactional_id, context.now_ms)


def _describe(
    services: Services, context: RequestContext, transactional_id: str, found: TransactionMetadata
) -> TransactionState:
    state = described(transactional_id, found)
    state.topics = [
        TopicData(topic=topic, partitions=partitions)
        for topic, partitions in by_topic(found.partitions).items()
        if services.permissions.allows(
            context, Operation.DESCRIBE, ResourceType.TOPIC, topic, quietly=True
        )
    ]
    return state
