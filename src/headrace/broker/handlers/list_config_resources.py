"""ListConfigResources (API key 74), versions 0-1.

Behaviour: The response lists the topics, the live brokers and their loggers, and the groups that an administrator has
configured. Version 0 is the older ListClientMetricsResources. It lists subscriptions of client metrics only, and there
are none.
Not implemented: Subscriptions of client metrics: none is listed.
Versions: v1 resource types; an empty list of types means all types, and an unknown type is UNSUPPORTED_VERSION.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.config.resources import ConfigResourceType
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security import acls
from headrace.security.acls import Operation

API_KEY: Final = ApiKey.LIST_CONFIG_RESOURCES
VERSIONS: Final = VersionRange(0, 1)

TYPES_VERSION: Final = 1
_KNOWN: Final = frozenset(int(known) for known in ConfigResourceType)


def handle(
    services: Services, context: RequestContext, request: ListConfigResourcesRequest
) -> Work[ListConfigResourcesResponse]:
    """List the resources that have a configuration."""
    if not services.permissions.allows(
        context, Operation.DESCRIBE_CONFIGS, acls.ResourceType.CLUSTER
    ):
        return ListConfigResourcesResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if context.header.api_version < TYPES_VERSION:
        return ListConfigResourcesResponse()
    wanted = frozenset(request.resource_types)
    if not wanted <= _KNOWN:
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    response = ListConfigResourcesResponse()
    for kind, name in _resources(services):
        if not wanted or kind in wanted:
            resource = ConfigResource(resource_name=name, resource_type=kind)
            response.config_resources.append(resource)
        yield ENTRY_COST // 5
    return response


def _resources(services: Services) -> Iterator[tuple[ConfigResourceType, str]]:
    for topic in services.topics:
        yield ConfigResourceType.TOPIC, topic.name
    for kind in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
        for broker_id in sorted(services.membership.live):
            yield kind, str(broker_id)
    for group in services.group_settings:
        yield ConfigResourceType.GROUP, group
