"""InitProducerId (API key 22), versions 0-5.

Behaviour:
* With a transactional id the client becomes the producer of that id. The broker raises the epoch, which fences the
  previous producer. First it aborts an open transaction; until that is done the error is CONCURRENT_TRANSACTIONS.
* A producer that sends its id and epoch (KIP-360) gets the next epoch. If it repeats the request, it gets the same
  epoch, also after a restart of the broker.
* A producer that another one has replaced is fenced, and nothing is aborted.
* When the epochs of an id are used up, the producer gets a new id.
* Without a transactional id the producer gets a new id with epoch 0, even if it sends an id and an epoch: such a
  producer raises its epoch by itself, as in Kafka.
Not implemented: v6 (KIP-939, two-phase commit), which Apache Kafka 4.3 does not advertise either.
Versions: v2 flexible; v3 producer id and epoch in the request; v4 PRODUCER_FENCED; v5 TRANSACTION_ABORTABLE, which this
broker never returns.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.coordinators.transaction_versions import for_version
from headrace.broker.services import Services
from headrace.broker.topic_names import TRANSACTIONS_TOPIC
from headrace.broker.waiting.steps import Work
from headrace.core.coordinator.runtime import Reply
from headrace.core.coordinator.transaction.producers import ProducerIdAndEpoch
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.init_producer_id import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.INIT_PRODUCER_ID
VERSIONS: Final = VersionRange(0, 5)

_NONE: Final = -1


def handle(
    services: Services,
    context: RequestContext,
    request: InitProducerIdRequest,
) -> Work[Reply[InitProducerIdResponse]]:
    """Return a producer id and an epoch."""
    refusal = _refusal(services, context, request)
    if refusal is not None:
        return _failed(refusal)
    if (request.producer_id == _NONE) != (request.producer_epoch == _NONE):
        return _failed(ErrorCode.INVALID_REQUEST)
    ready = services.producer_ids.wait()
    failure: ApiError | None = None if ready is None else (yield ready)
    if request.transactional_id is not None:  # a known transactional id needs no new producer id
        return (yield from _transactional(services, context, request, request.transactional_id))
    if failure is not None:
        return _failed(failure.code)
    try:
        # As in Kafka, a producer without transactions abandons its previous id. Sequence numbers belong to the
        # pair of id and epoch, so a new id is always correct.
        producer_id = services.producer_ids.allocate()
    except ApiError as error:
        return _failed(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _transactional(
    services: Services,
    context: RequestContext,
    request: InitProducerIdRequest,
    transactional_id: str,
) -> Work[Reply[InitProducerIdResponse]]:
    try:
        yield from services.internal_topics.ensure(TRANSACTIONS_TOPIC)
    except ApiError:
        return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def answer(outcome: ProducerIdAndEpoch | ErrorCode) -> InitProducerIdResponse:
        if isinstance(outcome, ErrorCode):
            return _failed(for_version(outcome, context))
        return InitProducerIdResponse(
            producer_id=outcome.producer_id, producer_epoch=outcome.producer_epoch
        )

    reply = services.transactions.coordinator.init_producer_id(
        transactional_id,
        request.transaction_timeout_ms,
        ProducerIdAndEpoch(request.producer_id, request.producer_epoch),
        services.time.now_ms,
    )
    return reply.map(answer) if isinstance(reply, Deferred) else answer(reply)


def _refusal(
    services: Services, context: RequestContext, request: InitProducerIdRequest
) -> ErrorCode | None:
    if request.transactional_id is not None:
        resource = ResourceType.TRANSACTIONAL_ID
        if services.permissions.allows(
            context, Operation.WRITE, resource, request.transactional_id
        ):
            return None
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    # The permission to write to any topic includes idempotent writes (KIP-679).
    if services.permissions.allows(
        context, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, quietly=True
    ) or services.permissions.allows_any(context, Operation.WRITE, ResourceType.TOPIC):
        return None
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _failed(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)
