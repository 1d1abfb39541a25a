"""EndTxn (API key 26), versions 0-3.

Behaviour: answered when the outcome is durable, while the markers of the transaction are still being written; what
follows at once gets CONCURRENT_TRANSACTIONS until they are. A repeated request with the outcome of the transaction that
was last ended is answered as the first; with the other outcome, or without a transaction, it is INVALID_TXN_STATE.
Not implemented: v4 and v5 (KIP-890, an epoch for each transaction).
Versions: v2 PRODUCER_FENCED; v3 flexible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.access.authorizer import allows
from headrace.broker.context import RequestContext, VersionRange
from headrace.broker.coordinators.transaction_requests import for_version
from headrace.core.coordinator.transaction.producers import Producer
from headrace.core.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.END_TXN
VERSIONS: Final = VersionRange(0, 3)


def handle(
    broker: Broker, context: RequestContext, request: EndTxnRequest
) -> EndTxnResponse | Deferred[EndTxnResponse]:
    """Commit or abort a transaction."""
    transactional_id = request.transactional_id
    resource = ResourceType.TRANSACTIONAL_ID
    if not allows(broker, context, Operation.WRITE, resource, transactional_id):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    reply = broker.transactions.coordinator.end(
        transactional_id,
        Producer(request.producer_id, request.producer_epoch),
        context.now_ms,
        committed=request.committed,
    )

    def answer(error: ErrorCode) -> EndTxnResponse:
        return EndTxnResponse(error_code=for_version(error, context))

    return reply.map(answer) if isinstance(reply, Deferred) else answer(reply)
