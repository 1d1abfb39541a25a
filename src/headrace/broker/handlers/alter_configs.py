"""AlterConfigs (API key 33), versions 0-2.

Behaviour: replaces all settings of a topic or a group, or all dynamic settings of this broker or (with an empty name)
of all brokers: what is not given goes back to its default. IncrementalAlterConfigs changes single ones. Every resource
is changed or refused for itself; what is changed is durable before the answer and in force at once, without a restart.
`validate_only` checks and changes nothing. Unknown names and values that are not acceptable are INVALID_CONFIG; broker
settings that are fixed at the start, values that are missing, and names or resources that are given twice are
INVALID_REQUEST.
Not implemented: client metrics (INVALID_REQUEST; so are loggers, as in Kafka); Kafka's own settings of groups, which
belong to newer protocols of groups (INVALID_CONFIG).
Versions: v2 flexible.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.requests.alter_configs import Resource, alter_all
from headrace.broker.requests.config_changes import ConfigChange
from headrace.broker.services import Services
from headrace.broker.waiting.steps import Work
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from headrace.protocol.versions import VersionRange

API_KEY: Final = ApiKey.ALTER_CONFIGS
VERSIONS: Final = VersionRange(0, 2)


def handle(
    services: Services,
    context: RequestContext,
    request: AlterConfigsRequest,
) -> Work[AlterConfigsResponse]:
    """Replace the settings of every resource."""
    resources = [
        Resource(
            wanted.resource_type,
            wanted.resource_name,
            [ConfigChange(config.name, config.value) for config in wanted.configs],
            replaces=True,
        )
        for wanted in request.resources
    ]
    responses = yield from alter_all(
        services, context, resources, _response, validate_only=request.validate_only
    )
    return AlterConfigsResponse(responses=responses)


def _response(
    resource: Resource, error: ErrorCode, message: str | None
) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error,
        error_message=message,
        resource_type=resource.type,
        resource_name=resource.name,
    )
