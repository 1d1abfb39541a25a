"""EndTxn (API key 26), versions 0-5.

Behaviour:
* The response is sent when the outcome is durable. The broker may still be writing the markers of the transaction;
  until they are written, further requests of the producer get CONCURRENT_TRANSACTIONS.
* A repeated request with the outcome of the last transaction gets the same response again. With the other outcome, or
  without a transaction, the error is INVALID_TXN_STATE.
* From v5 on the end of a transaction raises the producer's epoch (KIP-890). The response has the epoch of the next
  transaction, or a new producer id with epoch 0 when the epochs are used up. A repeated request gets the same response.
  Requests that arrive later with the old epoch are PRODUCER_FENCED.
* A producer may abort without a transaction.
Versions: v2 PRODUCER_FENCED; v3 flexible; v4 TRANSACTION_ABORTABLE, which this broker never returns; v5 producer id and
epoch in the response.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.coordinators.transaction_versions import bumps_epoch, for_version
from headrace.broker.services import Services
from headrace.core.coordinator.transaction.producers import ProducerIdAndEpoch
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.END_TXN
VERSIONS: Final = VersionRange(0, 5)


def handle(
    services: Services, context: RequestContext, request: EndTxnRequest
) -> EndTxnResponse | Deferred[EndTxnResponse]:
    """Commit or abort a transaction."""
    transactional_id = request.transactional_id
    resource = ResourceType.TRANSACTIONAL_ID
    if not services.permissions.allows(context, Operation.WRITE, resource, transactional_id):
        return EndTxnResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    coordinator = services.transactions.coordinator
    producer, committed = (
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        request.committed,
    )
    reply = (
        coordinator.end_bumping(transactional_id, producer, context.now_ms, committed=committed)
        if bumps_epoch(context)
        else coordinator.end(transactional_id, producer, context.now_ms, committed=committed)
    )

    def answer(outcome: ProducerIdAndEpoch | ErrorCode) -> EndTxnResponse:
        if isinstance(outcome, ErrorCode):
            return EndTxnResponse(error_code=for_version(outcome, context))
        return EndTxnResponse(
            producer_id=outcome.producer_id, producer_epoch=outcome.producer_epoch
        )

    return reply.map(answer) if isinstance(reply, Deferred) else answer(reply)
