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
"""The type of a group's configuration, in requests about configurations."""
SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"


def session_timeout(group: str) -> Flow[int | None]:
    """Return how long the coordinator keeps a member of the group that is silent, in milliseconds.

    It is a configuration of the group. None where it cannot be known: the broker has no such configurations, or the
    client may not read them.
    """
    resource = DescribeConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configuration_keys=[SESSION_TIMEOUT]
    )
    request = DescribeConfigsRequest(
        resources=[resource], include_synonyms=False, include_documentation=False
    )
    try:
        response = yield from ask(Call(request=request), DescribeConfigsResponse)
    except ApiError:  # a broker that does not speak DescribeConfigs
        return None
    for result in response.results:
        for entry in result.configs:
            if entry.name == SESSION_TIMEOUT and (entry.value or "").isdigit():
                return int(entry.value or "")
    return None
