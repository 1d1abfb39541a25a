"""ListGroups (API key 16), versions 0-5.

Behaviour: The response lists all groups of this broker, including groups that only have committed offsets or a
configuration. While a partition of the group coordinator is being loaded the error is COORDINATOR_LOAD_IN_PROGRESS, as
in Kafka, because the list would not be complete. Clients retry.
Versions: v3 flexible; v4 states, and a filter by state (KIP-518); v5 types, and a filter by type (KIP-848). Filters
ignore case. The types are "classic" and "consumer".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work, value_of
from headrace.core.coordinator.any_group.describe import CLASSIC_TYPE
from headrace.core.coordinator.state.classic_group import CONSUMER_PROTOCOL_TYPE
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.list_groups import (
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.LIST_GROUPS
VERSIONS: Final = VersionRange(0, 5)


def handle(
    services: Services, context: RequestContext, request: ListGroupsRequest
) -> Work[ListGroupsResponse]:
    """List the groups that match the filters."""
    reply = services.groups.list_groups(request.states_filter, request.types_filter, context.now_ms)
    error, groups = yield from value_of(reply)
    if error is ErrorCode.NONE:
        groups = sorted([*groups, *_configured(services, request)], key=lambda g: g.group_id)
        groups = yield from _visible(services, context, groups)
    return ListGroupsResponse(error_code=error, groups=groups)


def _visible(
    services: Services, context: RequestContext, groups: list[ListedGroup]
) -> Work[list[ListedGroup]]:
    may = partial(services.permissions.allows, context, Operation.DESCRIBE, quietly=True)
    if may(ResourceType.CLUSTER):
        return groups
    visible: list[ListedGroup] = []
    for group in groups:
        if may(ResourceType.GROUP, group.group_id):
            visible.append(group)
        yield ENTRY_COST
    return visible


def _configured(services: Services, request: ListGroupsRequest) -> Iterator[ListedGroup]:
    """Yield the groups that an administrator has configured and that no member has joined yet."""
    facts = (("Empty", request.states_filter), (CLASSIC_TYPE, request.types_filter))
    for fact, wanted in facts:
        if wanted and fact.lower() not in {word.lower() for word in wanted}:
            return
    for group in services.group_settings.attached:
        if not services.groups.exists(group):
            yield ListedGroup(
                group_id=group,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                group_state="Empty",
                group_type=CLASSIC_TYPE,
            )
