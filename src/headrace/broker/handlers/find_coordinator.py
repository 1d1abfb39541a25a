"""FindCoordinator (API key 10), versions 0-6.

Behaviour: The coordinator of a group, or of a transactional id, is the leader of its partition of `__consumer_offsets`
or `__transaction_state`. The first request creates the topic, and waits for that. The address is as in Metadata: the
address of the listener to which the client has connected. If no live broker leads the partition, or the leader has no
such listener, the error is COORDINATOR_NOT_AVAILABLE, and clients retry.
Not implemented: Coordinators of share groups: INVALID_REQUEST, which clients do not retry.
Versions: v1 key type, error message; v3 flexible; v4 several keys; v5 TRANSACTION_ABORTABLE, which this broker never
returns; v6 keys of share groups.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.cluster_views import brokers_for
from headrace.broker.context import RequestContext
from headrace.broker.coordinators.leaders import coordinator_of
from headrace.broker.services import Services
from headrace.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.FIND_COORDINATOR
VERSIONS: Final = VersionRange(0, 6)

_KEY_LIST_VERSION: Final = 4
_RESOURCES: Final = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}
"""The type of the resource that a key names, by the type of the key."""
_TOPICS: Final = {0: OFFSETS_TOPIC, 1: TRANSACTIONS_TOPIC}
"""The topic that stores a key, by the type of the key."""
_NO_NODE: Final = -1


def handle(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> Work[FindCoordinatorResponse]:
    """Return the coordinators of groups or of transactional ids."""
    if context.header.api_version < _KEY_LIST_VERSION:
        found = yield from _find(services, context, request.key_type, request.key)
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=found.error_message,
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )
    coordinators = []
    for key in request.coordinator_keys:
        found = yield from _find(services, context, request.key_type, key)
        coordinators.append(found)
        yield ENTRY_COST
    return FindCoordinatorResponse(coordinators=coordinators)


def _find(
    services: Services, context: RequestContext, key_type: int, key: str
) -> Work[Coordinator]:
    found = yield from _permitted(services, context, key_type, key)
    found.key = key
    return found


def _permitted(
    services: Services, context: RequestContext, key_type: int, key: str
) -> Work[Coordinator]:
    resource = _RESOURCES.get(key_type)
    if resource is None:
        message = f"this broker has no coordinators for keys of type {key_type}"
        return _failed(ErrorCode.INVALID_REQUEST, message)
    try:
        services.permissions.authorize(context, Operation.DESCRIBE, resource, key)
    except ApiError as error:
        return _failed(error.code, error.message)
    try:
        yield from services.internal_topics.ensure(_TOPICS[key_type])
    except ApiError as error:
        # For any error the client retries.
        return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
    broker_id = coordinator_of(services.topics, _TOPICS[key_type], key)
    coordinator = brokers_for(services, context).get(broker_id)
    if coordinator is None:
        message = f"no live broker leads the partition that stores {key!r}: retry"
        return _failed(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)
    return Coordinator(
        node_id=broker_id,
        host=coordinator.host,
        port=coordinator.port,
        error_message=None,
    )


def _failed(error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(node_id=_NO_NODE, port=_NO_NODE, error_code=error, error_message=message)
