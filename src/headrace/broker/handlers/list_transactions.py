"""ListTransactions (API key 66), versions 0-1.

Behaviour: lists the transactional ids that the client may describe, and that pass the filters; what is not the name of
a state is returned. The duration counts for transactions that have not ended.
Not implemented: v2, a pattern for ids.
Versions: v0 flexible; v1 duration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.access.authorizer import allows
from headrace.broker.context import RequestContext, VersionRange
from headrace.core.coordinator.transaction.views import STATE_NAMES, Filter
from headrace.core.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionState,
)
from headrace.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.LIST_TRANSACTIONS
VERSIONS: Final = VersionRange(0, 1)


def handle(
    broker: Broker, context: RequestContext, request: ListTransactionsRequest
) -> ListTransactionsResponse | Deferred[ListTransactionsResponse]:
    """List transactional ids."""
    unknown = [name for name in request.state_filters if name not in STATE_NAMES]
    states = {STATE_NAMES[name] for name in request.state_filters if name in STATE_NAMES}

    def answer(
        found: tuple[ErrorCode, list[TransactionState]],
    ) -> ListTransactionsResponse:
        error, transactions = found
        return ListTransactionsResponse(
            error_code=error,
            unknown_state_filters=unknown,
            transaction_states=[
                transaction
                for transaction in transactions
                if allows(
                    broker,
                    context,
                    Operation.DESCRIBE,
                    ResourceType.TRANSACTIONAL_ID,
                    transaction.transactional_id,
                    quietly=True,
                )
            ],
        )

    if request.state_filters and not states:
        return answer((ErrorCode.NONE, []))
    wanted = Filter(states, frozenset(request.producer_id_filters), request.duration_filter)
    reply = broker.transactions.coordinator.list_all(wanted, context.now_ms)
    return reply.map(answer) if isinstance(reply, Deferred) else answer(reply)
