"""What a group is attached to by an administrator: configurations of the group, kept by its broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headrace.clients.flows.effects import Call, ClientState, Flow, ask
from headrace.errors import ConfigError, ErrorCode, TransportError
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

GROUP_RESOURCE: Final = 32
TOPICS_CONFIG: Final = "headrace.topics"
PATTERN_CONFIG: Final = "headrace.pattern"
ASSIGNOR_CONFIG: Final = "headrace.assignor"


@dataclass(frozen=True, slots=True)
class Attachments:
    """The topics of a group, by name or by pattern, and the assignor that its members use."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    assignor: str | None = None


def group_attachments(state: ClientState, group: str) -> Flow[Attachments]:
    """Ask what a group is attached to.

    Raises:
        ConfigError: The broker does not keep such a thing; only Headrace does.
    """
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=GROUP_RESOURCE, resource_name=group, configuration_keys=None
            )
        ],
        include_synonyms=False,
        include_documentation=False,
    )
    backoff = state.backoff()
    while True:
        try:
            response = yield from ask(Call(request=request), DescribeConfigsResponse)
        except TransportError as error:
            yield backoff.after(error)
            continue
        break
    [result] = response.results
    entries = {entry.name: entry.value or "" for entry in result.configs}
    if result.error_code or TOPICS_CONFIG not in entries:
        why = result.error_message or (
            ErrorCode(result.error_code).description if result.error_code else "it is not Headrace"
        )
        raise ConfigError(
            f"this broker does not keep what group {group!r} is attached to ({why}): subscribe to topics, or to a "
            "pattern"
        )
    names = (name.strip() for name in entries[TOPICS_CONFIG].split(","))
    return Attachments(
        frozenset(name for name in names if name),
        entries.get(PATTERN_CONFIG) or None,
        entries.get(ASSIGNOR_CONFIG) or None,
    )
