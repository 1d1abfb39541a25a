"""DeleteGroups (API key 42), versions 0-2.

Behaviour: forgets groups without members, their offsets and configuration included; that is durable before the answer.
A group with members is NON_EMPTY_GROUP, one that does not exist GROUP_ID_NOT_FOUND. A group that is named twice is
answered once.
Versions: v2 flexible.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.broker.access.authorizer import allows
from headrace.broker.context import RequestContext, VersionRange
from headrace.core.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from headrace.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.DELETE_GROUPS
VERSIONS: Final = VersionRange(0, 2)


def handle(
    broker: Broker, context: RequestContext, request: DeleteGroupsRequest
) -> DeleteGroupsResponse | Deferred[DeleteGroupsResponse]:
    """Delete groups by id."""
    group_ids = dict.fromkeys(request.groups_names)
    may = partial(allows, broker, context, Operation.DELETE, ResourceType.GROUP)
    allowed = {group_id: may(group_id) for group_id in group_ids}
    deletable = [group_id for group_id, is_allowed in allowed.items() if is_allowed]
    reply = broker.groups.delete_groups(deletable, context.now_ms)

    def response(results: list[DeletableGroupResult]) -> DeleteGroupsResponse:
        for result in results:
            result.error_code = _forget_settings(broker, result)
        results += [
            DeletableGroupResult(group_id=group_id, error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
            for group_id, is_allowed in allowed.items()
            if not is_allowed
        ]
        return DeleteGroupsResponse(results=results)

    return reply.map(response) if isinstance(reply, Deferred) else response(reply)


def _forget_settings(broker: Broker, result: DeletableGroupResult) -> int:
    settings = broker.group_settings
    gone = result.error_code == ErrorCode.NONE or (
        result.error_code == ErrorCode.GROUP_ID_NOT_FOUND and settings.is_attached(result.group_id)
    )
    if not gone or result.group_id not in settings:
        return result.error_code
    try:
        broker.group_settings.change(result.group_id, {})
    except ApiError as error:
        return error.code
    return ErrorCode.NONE
