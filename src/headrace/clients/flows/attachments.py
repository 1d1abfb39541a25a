"""Attachments of groups to topics. An administrator changes these settings of a group, and the broker stores them.

Only Headrace supports them. Members read them when they join, and a change makes the members join again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from headrace.clients.flows.admin import ConfigSource
from headrace.clients.flows.alter import ConfigAlteration, alter_configs
from headrace.clients.flows.effects import Call, ClientState, Flow, ask
from headrace.clients.flows.groups import describe_groups
from headrace.config.resources import ConfigResourceType
from headrace.errors import ApiError, ConfigError, ErrorCode, GroupIdNotFoundError, TransportError
from headrace.protocol.config_operation import ConfigOperation
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

TOPICS_CONFIG: Final = "headrace.topics"
PATTERN_CONFIG: Final = "headrace.pattern"
ASSIGNOR_CONFIG: Final = "headrace.assignor"
_PREFIX: Final = "headrace."
"""The prefix of the settings for attachments. A group may have other settings."""


@dataclass(frozen=True, slots=True)
class Attachments:
    """The topics of a group, by name or by pattern, and the assignor that its members use."""

    topics: frozenset[str] = frozenset()
    """The topics by name; empty if there are none."""
    pattern: str | None = None
    """The regular expression for names of topics; None if there is none."""
    assignor: str | None = None
    """The name of the assignor; None is the members' own."""
    configured: bool = False
    """Whether an administrator has created the group or has ever attached it."""

    def reads(self, topic: str) -> bool:
        """Return whether a topic is attached by its name or by the pattern."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics


def group_attachments(state: ClientState, group: str) -> Flow[Attachments]:
    """Request the attachments of a group.

    Raises:
        ConfigError: The broker does not support attachments. Only Headrace does.
        ApiError: GROUP_AUTHORIZATION_FAILED.
    """
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(
                resource_type=ConfigResourceType.GROUP, resource_name=group, configuration_keys=None
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
    if result.error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED:
        raise ApiError.for_code(
            result.error_code,
            f"the attachments of group {group!r} cannot be read: the principal lacks DescribeConfigs on the group. "
            f"Grant it: headrace acl create --allow-principal User:NAME --operation DescribeConfigs --group {group}",
        )
    if result.error_code or TOPICS_CONFIG not in entries:
        why = result.error_message or (
            ErrorCode(result.error_code).description if result.error_code else "it is not Headrace"
        )
        raise ConfigError(
            f"this broker does not store attachments, so group {group!r} has none ({why}): its consumers must "
            "subscribe to topics or to a pattern, and choose the assignor (partition.assignment.strategy)"
        )
    names = (name.strip() for name in entries[TOPICS_CONFIG].split(","))
    return Attachments(
        frozenset(name for name in names if name),
        entries.get(PATTERN_CONFIG) or None,
        entries.get(ASSIGNOR_CONFIG) or None,
        any(
            entry.config_source == ConfigSource.GROUP and entry.name.startswith(_PREFIX)
            for entry in result.configs
        ),
    )


def create_group(
    state: ClientState,
    group: str,
    *,
    assignor: str | None,
    topics: Collection[str],
    pattern: str | None,
    validate_only: bool = False,
) -> Flow[None]:
    """Create a group, which then exists with or without members.

    Raises:
        ConfigError: The broker does not support attachments, or both topics and a pattern are given.
        ApiError: The group exists already; INVALID_CONFIG.
    """
    if topics and pattern:
        raise ConfigError("a group is attached to topics or to a pattern, not both")
    found = yield from group_attachments(state, group)
    if found.configured:
        raise ApiError.for_code(
            ErrorCode.INVALID_REQUEST,
            f"group {group!r} is attached to {_text(found)} already: use attach or detach to change this",
        )
    changes = [_set(TOPICS_CONFIG, ",".join(topics))]
    if assignor is not None:
        changes.append(_set(ASSIGNOR_CONFIG, assignor))
    if pattern is not None:
        changes.append(_set(PATTERN_CONFIG, pattern))
    yield from _change(state, group, changes, validate_only=validate_only)


def attach(
    state: ClientState,
    group: str,
    topics: Iterable[str],
    pattern: str | None,
    *,
    validate_only: bool = False,
) -> Flow[Attachments]:
    """Attach a group to more topics, or to a pattern; return all its attachments.

    Raises:
        ConfigError: The broker does not support attachments.
        ApiError: GROUP_ID_NOT_FOUND; INVALID_CONFIG: topics and a pattern exclude each other.
    """
    yield from _check_exists(state, group, (yield from group_attachments(state, group)))
    changes = [_set(TOPICS_CONFIG, ",".join(topics), ConfigOperation.APPEND)]
    if pattern is not None:
        changes.append(_set(PATTERN_CONFIG, pattern))
    yield from _change(state, group, changes, validate_only=validate_only)
    return (yield from group_attachments(state, group))


def detach(
    state: ClientState,
    group: str,
    topics: Iterable[str] | None,
    *,
    validate_only: bool = False,
) -> Flow[Attachments]:
    """Detach a group from topics; return its remaining attachments. None is all topics and the pattern.

    Raises:
        ConfigError: The broker does not support attachments.
        ApiError: GROUP_ID_NOT_FOUND; UNKNOWN_TOPIC_OR_PARTITION, if the group is not attached to one of the topics.
    """
    found = yield from group_attachments(state, group)
    yield from _check_exists(state, group, found)
    if topics is None:
        changes = [
            _set(TOPICS_CONFIG, ""),
            ConfigAlteration(PATTERN_CONFIG, None, ConfigOperation.DELETE),
        ]
    else:
        names = list(topics)
        for name in names:
            if name not in found.topics:
                raise ApiError.for_code(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"group {group!r} is not attached to {name!r} but to {_text(found)}",
                )
        changes = [_set(TOPICS_CONFIG, ",".join(names), ConfigOperation.SUBTRACT)]
    yield from _change(state, group, changes, validate_only=validate_only)
    return (yield from group_attachments(state, group))


def _set(
    name: str, value: str, operation: ConfigOperation = ConfigOperation.SET
) -> ConfigAlteration:
    return ConfigAlteration(name, value, operation)


def _change(
    state: ClientState, group: str, changes: list[ConfigAlteration], *, validate_only: bool
) -> Flow[None]:
    wanted = {group: changes}
    outcomes = yield from alter_configs(
        state, ConfigResourceType.GROUP, wanted, validate_only=validate_only
    )
    for error in outcomes.values():
        if error is not None:
            raise error


def _check_exists(state: ClientState, group: str, found: Attachments) -> Flow[None]:
    if found.configured:
        return
    described = yield from describe_groups(state, [group])
    if described[group].state == "Dead":
        raise GroupIdNotFoundError(f"group {group!r} does not exist: create it first")


def _text(found: Attachments) -> str:
    if found.pattern is not None:
        return f"the pattern {found.pattern!r}"
    return ", ".join(sorted(found.topics)) or "nothing"
