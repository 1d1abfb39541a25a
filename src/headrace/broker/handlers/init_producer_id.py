"""InitProducerId (API key 22), versions 0-4.

Behaviour: an idempotent producer gets an id that nobody had before, with epoch 0, also when it comes back with an id
and an epoch (KIP-360): a producer without transactions raises its epoch by itself, see Kafka's
TransactionCoordinator.
Not implemented: transactions; a request with a transactional id gets TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which
every client takes as final (UNSUPPORTED_VERSION would be retried by some until they time out).
Versions: v2 flexible; v3 producer id and epoch in the request; v4 PRODUCER_FENCED.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.authorizer import allows, allows_any
from headrace.broker.context import RequestContext, VersionRange
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.INIT_PRODUCER_ID
VERSIONS: Final = VersionRange(0, 4)

_NONE: Final = -1


def handle(
    broker: Broker,
    context: RequestContext,
    request: InitProducerIdRequest,
) -> InitProducerIdResponse:
    """Give the producer an identity."""
    refusal = _refusal(broker, context, request)
    if refusal is not None:
        return _failed(refusal)
    if request.transactional_id is not None:
        code = (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            if request.transactional_id
            else ErrorCode.INVALID_REQUEST
        )
        return _failed(code)
    if (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
        return _failed(ErrorCode.INVALID_REQUEST)
    try:
        # As Kafka does for a producer without transactions: what it had is simply left behind. Sequences belong to
        # the pair of id and epoch, so a new id is always right.
        producer_id = broker.producer_ids.allocate()
    except ApiError as error:
        return _failed(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _refusal(
    broker: Broker, context: RequestContext, request: InitProducerIdRequest
) -> ErrorCode | None:
    if request.transactional_id is not None:
        resource = ResourceType.TRANSACTIONAL_ID
        if allows(broker, context, Operation.WRITE, resource, request.transactional_id):
            return None
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    # Whoever may write to any topic may do so idempotently (KIP-679).
    if allows(
        broker, context, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, quietly=True
    ) or allows_any(broker, context, Operation.WRITE, ResourceType.TOPIC):
        return None
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _failed(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
