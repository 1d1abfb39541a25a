"""AlterConfigs (API key 33), versions 0-2.

Behaviour:
* The request replaces all settings of a topic or a group, or all dynamic settings of this broker. An empty name stands
  for all brokers. A setting that the request omits has its default again. IncrementalAlterConfigs changes single
  settings.
* Each resource is changed or refused by itself. A change is durable before the response is sent, and in force without a
  restart. With `validate_only` the broker checks the request and changes nothing.
* Unknown names and invalid values are INVALID_CONFIG. INVALID_REQUEST is the error for broker settings that are fixed
  at the start, for missing values, and for names or resources that occur twice.
Not implemented: Client metrics (INVALID_REQUEST). Loggers are refused too, as in Kafka. Kafka's own settings of groups,
which belong to newer group protocols (INVALID_CONFIG).
Versions: v2 flexible.
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
            [RequestedChange(config.name, config.value) for config in wanted.configs],
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
