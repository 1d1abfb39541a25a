"""ConsumerGroupHeartbeat (API key 68), versions 0-1.

Behaviour:
* The server-side group protocol (KIP-848); see `headrace.core.coordinator.consumer`.
* group.consumer.migration.policy says whether a classic group of consumers becomes a consumer group when the first
  member joins by this protocol, and a classic group again when the last such member leaves. A classic group without
  members always becomes a consumer group.
* Regular expressions need `headrace[server]` or `headrace[regex]` in the broker's environment. They match topics that
  the client may describe.
* The tagged field 26738 of the response is true for a member that an administrator stops
  (docs/reference/client-protocol-kip848.md).
Not implemented: Headrace's assignors ignore racks. The broker stores racks and passes them to assignors.
Versions: v1 regular expressions; clients choose their member ids.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.coordinators.group_origin import origin_of
from headrace.broker.services import Services
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.CONSUMER_GROUP_HEARTBEAT
VERSIONS: Final = VersionRange(0, 1)


def handle(
    services: Services, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | Deferred[ConsumerGroupHeartbeatResponse]:
    """Join a group, stay in it, or leave it."""
    if not services.permissions.allows(
        context, Operation.READ, ResourceType.GROUP, request.group_id
    ):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    may = partial(services.permissions.allows, context, Operation.DESCRIBE, ResourceType.TOPIC)
    if not all(may(name) for name in request.subscribed_topic_names or ()):
        return ConsumerGroupHeartbeatResponse(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    visible = partial(
        services.permissions.allows, context, Operation.DESCRIBE, ResourceType.TOPIC, quietly=True
    )
    return services.groups.consumer_group_heartbeat(
        origin_of(context), request, visible, context.now_ms
    )
