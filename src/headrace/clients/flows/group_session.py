"""The session timeout in a group's configuration."""

from __future__ import annotations

from typing import Final

from headrace.clients.flows.effects import Call, Flow, ask
from headrace.errors import ApiError
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

GROUP_RESOURCE: Final = 32
"""The resource type of a group in requests about configurations."""
SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"


def session_timeout(group: str) -> Flow[int | None]:
    """Return the session timeout of a group in milliseconds, from the group's configuration.

    None if the broker has no such configuration, or if the client may not read it.
    """
    resource = DescribeConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configuration_keys=[SESSION_TIMEOUT]
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=False, include_documentation=False
    )
    try:
        response = yield from ask(Call(request=request), DescribeConfigsResponse)
    except ApiError:  # the broker does not support DescribeConfigs
        return None
    for result in response.results:
        for entry in result.configs:
            if entry.name == SESSION_TIMEOUT and (entry.value or "").isdigit():
                return int(entry.value or "")
    return None
