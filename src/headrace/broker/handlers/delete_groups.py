"""DeleteGroups (API key 42), versions 0-2.

Behaviour: The request deletes groups without members, including their offsets and configuration. The deletion is
durable before the response is sent. A group with members is NON_EMPTY_GROUP. A group that does not exist is
GROUP_ID_NOT_FOUND. A group that the request names twice has one result.
Versions: v2 flexible.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, GROUP_COST, Work, value_of
from headrace.core.coordinator.runtime import Reply, gather
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.DELETE_GROUPS
VERSIONS: Final = VersionRange(0, 2)


def handle(
    services: Services, context: RequestContext, request: DeleteGroupsRequest
) -> Work[DeleteGroupsResponse]:
    """Delete groups by id."""
    refused: list[DeletableGroupResult] = []
    replies: list[Reply[list[DeletableGroupResult]]] = []
    for group_id in dict.fromkeys(request.groups_names):
        if services.permissions.allows(context, Operation.DELETE, ResourceType.GROUP, group_id):
            count = services.groups.offsets_count(group_id)
            replies.append(services.groups.delete_groups([group_id], context.now_ms))
            yield GROUP_COST + count * ENTRY_COST
        else:
            error = ErrorCode.GROUP_AUTHORIZATION_FAILED
            refused.append(DeletableGroupResult(group_id=group_id, error_code=error))
        yield ENTRY_COST
    results: list[DeletableGroupResult] = []
    for (result,) in (yield from value_of(gather(replies))):
        result.error_code = yield from _forget_settings(services, result)
        results.append(result)
        yield ENTRY_COST
    return DeleteGroupsResponse(results=results + refused)


def _forget_settings(services: Services, result: DeletableGroupResult) -> Work[int]:
    settings = services.group_settings
    gone = result.error_code == ErrorCode.NONE or (
        result.error_code == ErrorCode.GROUP_ID_NOT_FOUND and settings.is_attached(result.group_id)
    )
    if not gone or result.group_id not in settings:
        return result.error_code
    try:
        yield from settings.change(result.group_id, lambda _: {})
    except ApiError as error:
        return error.code
    return ErrorCode.NONE
