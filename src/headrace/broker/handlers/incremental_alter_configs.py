"""IncrementalAlterConfigs (API key 44), versions 0-1.

Behaviour: The request changes single settings of a topic, of a group, or of this broker. An empty name stands for all
brokers. SET sets a value, and DELETE removes it, so that the inherited value applies. APPEND and SUBTRACT change a
list, starting from the value in force. Everything else is as in AlterConfigs. The levels of loggers (FATAL, ERROR,
WARN, INFO, DEBUG, TRACE) can be SET and DELETEd. They apply until the broker stops. The level of the audit log is
fixed.
Not implemented: Client metrics (INVALID_REQUEST). Kafka's own settings of groups, which belong to newer group protocols
(INVALID_CONFIG).
Versions: v1 flexible.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.config_alteration import Resource, alter_all
from headrace.broker.configs.config_changes import RequestedChange
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import Work
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace.protocol.versions import VersionRange

API_KEY: Final = ApiKey.INCREMENTAL_ALTER_CONFIGS
VERSIONS: Final = VersionRange(0, 1)


def handle(
    services: Services,
    context: RequestContext,
    request: IncrementalAlterConfigsRequest,
) -> Work[IncrementalAlterConfigsResponse]:
    """Change settings of every resource."""
    resources = [
        Resource(
            wanted.resource_type,
            wanted.resource_name,
            [
                RequestedChange(config.name, config.value, config.config_operation)
                for config in wanted.configs
            ],
            replaces=False,
        )
        for wanted in request.resources
    ]
    responses = yield from alter_all(
        services, context, resources, _response, validate_only=request.validate_only
    )
    return IncrementalAlterConfigsResponse(responses=responses)


def _response(
    resource: Resource, error: ErrorCode, message: str | None
) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=error,
        error_message=message,
        resource_type=resource.type,
        resource_name=resource.name,
    )
