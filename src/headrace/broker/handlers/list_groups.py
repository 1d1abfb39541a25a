"""ListGroups (API key 16), versions 0-5.

Behaviour: all groups of this broker, also those that only have committed offsets. COORDINATOR_LOAD_IN_PROGRESS while
one of its partitions is being loaded.
Versions: v3 flexible; v4 states, and a filter by state (KIP-518); v5 types, and a filter by type (KIP-848); names in
filters match in any case, all groups are of type "classic".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.context import RequestContext, VersionRange
from headrace.core.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.LIST_GROUPS
VERSIONS: Final = VersionRange(0, 5)


def handle(
    broker: Broker, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse | Deferred[ListGroupsResponse]:
    """List groups."""
    reply = broker.groups.list_groups(request.states_filter, request.types_filter, context.now_ms)
    return reply.map(_response) if isinstance(reply, Deferred) else _response(reply)


def _response(listed: tuple[ErrorCode, list[ListedGroup]]) -> ListGroupsResponse:
    error, groups = listed
    return ListGroupsResponse(error_code=error, groups=groups)
