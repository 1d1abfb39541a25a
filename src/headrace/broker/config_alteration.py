"""Changes of configurations, for the handlers of AlterConfigs and IncrementalAlterConfigs.

A change is checked as a whole before anything is stored: every name must be known, and every value valid. All settings
of topics and groups can be changed, and the dynamic settings of brokers. A change is durable and in force before the
response is sent. The exception are levels of loggers: they are in force, but not durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from headrace.broker.configs.config_changes import RequestedChange, settings_after
from headrace.broker.context import RequestContext
from headrace.broker.coordinators.group_settings import (
    check_group_name,
    check_times,
    parse_settings,
)
from headrace.broker.services import Services
from headrace.broker.topic_names import check_topic_name
from headrace.broker.waiting.steps import CHECK_COST, CREATION_COST, Work
from headrace.config.broker import dynamic_option
from headrace.config.group import DEFAULT_ASSIGNOR, group_option
from headrace.config.options import Option, render_value, unknown_key
from headrace.config.resources import ConfigResourceType
from headrace.config.topic import TOPIC_OPTIONS, UNSUPPORTED_TOPIC_OPTIONS
from headrace.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    InvalidConfigError,
    InvalidRequestError,
)
from headrace.security import acls

T = TypeVar("T")


class Resource(NamedTuple):
    """The changes of one resource."""

    type: int
    name: str
    changes: Sequence[RequestedChange]
    replaces: bool
    """Whether settings without a change get their defaults (AlterConfigs), or keep their values
    (IncrementalAlterConfigs)."""


def alter_all(
    services: Services,
    context: RequestContext,
    resources: Sequence[Resource],
    respond: Callable[[Resource, ErrorCode, str | None], T],
    *,
    validate_only: bool,
) -> Work[list[T]]:
    """Change each resource by itself, and return the results in the same order."""
    mentions = Counter((resource.type, resource.name) for resource in resources)
    responses = []
    for number, resource in enumerate(resources):
        code, message = ErrorCode.NONE, None
        try:
            _check_request(services, number, mentions[resource.type, resource.name])
            services.permissions.authorize_configs(
                context, acls.Operation.ALTER_CONFIGS, resource.type, resource.name
            )
            yield from _alter(services, resource, validate_only=validate_only)
        except ApiError as error:
            code, message = error.code, error.message
        responses.append(respond(resource, code, message))
        changed = code is ErrorCode.NONE and not validate_only
        yield CREATION_COST if changed else CHECK_COST
    return responses


def _check_request(services: Services, number: int, mentions: int) -> None:
    if mentions > 1:
        raise InvalidRequestError("each resource can be named once")
    if number >= services.settings.config.max_topics_per_request:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "too many resources in one request")


def _alter(services: Services, resource: Resource, *, validate_only: bool) -> Work[None]:
    _check_names(resource.changes)
    if resource.type == ConfigResourceType.TOPIC:
        yield from _alter_topic(services, resource, validate_only=validate_only)
    elif resource.type == ConfigResourceType.BROKER:
        yield from _alter_broker(services, resource, validate_only=validate_only)
    elif resource.type == ConfigResourceType.GROUP:
        yield from _alter_group(services, resource, validate_only=validate_only)
    elif resource.type == ConfigResourceType.BROKER_LOGGER and not resource.replaces:
        services.settings.require_this_broker(resource.name)
        services.settings.loggers.alter(resource.changes, validate_only=validate_only)
    else:
        raise InvalidRequestError(
            f"resources of type {resource.type} have no configuration that could be changed"
        )


def _check_names(changes: Iterable[RequestedChange]) -> None:
    twice = [
        name for name, count in Counter(change.name for change in changes).items() if count > 1
    ]
    if twice:
        raise InvalidRequestError(f"given more than once: {', '.join(sorted(twice)[:10])[:1000]}")


def _alter_topic(services: Services, resource: Resource, *, validate_only: bool) -> Work[None]:
    check_topic_name(resource.name)
    services.topics.follow_image()
    topic = services.topics.require(resource.name)

    def effective(name: str) -> str:
        return render_value(getattr(topic.config, name.replace(".", "_")))

    merge = partial(_merged, resource, _topic_option, effective)
    if validate_only:
        services.topic_admin.check_change(topic, merge(topic.settings))
    else:
        yield from services.topic_admin.configure(topic, merge)


def _merged(
    resource: Resource,
    option: Callable[[str], Option],
    effective: Callable[[str], str],
    present: Mapping[str, str],
) -> Mapping[str, str]:
    """Return the settings of a resource after its changes. `settings_after` describes the other arguments."""
    before: Mapping[str, str] = {} if resource.replaces else present
    return settings_after(before, resource.changes, option, effective)


def _topic_option(name: str) -> Option:
    described = TOPIC_OPTIONS.get(name)
    if described is None:
        if name in UNSUPPORTED_TOPIC_OPTIONS:
            raise ConfigError(f"{name}: not supported: {UNSUPPORTED_TOPIC_OPTIONS[name]}")
        raise unknown_key(name, TOPIC_OPTIONS)
    return described


def _alter_broker(services: Services, resource: Resource, *, validate_only: bool) -> Work[None]:
    settings, all_brokers = services.settings, not resource.name
    if not all_brokers:
        settings.require_this_broker(resource.name)

    def effective(name: str) -> str:
        return render_value(getattr(settings.config, name.replace(".", "_")))

    merge = partial(_merged, resource, dynamic_option, effective)
    if validate_only:
        after = merge(settings.stored(all_brokers=all_brokers))
        settings.check_change(after, all_brokers=all_brokers)
    else:
        yield from settings.change(merge, all_brokers=all_brokers)


def _alter_group(services: Services, resource: Resource, *, validate_only: bool) -> Work[None]:
    check_group_name(resource.name)

    def merge(present: Mapping[str, str]) -> Mapping[str, str]:
        settings = _merged(resource, group_option, lambda _: "", present)
        _check_group(services, resource.name, present, settings)
        return settings

    if validate_only:
        merge(services.group_settings.get(resource.name))
    else:
        yield from services.group_settings.change(resource.name, merge)


def _check_group(
    services: Services, group: str, former: Mapping[str, str], settings: Mapping[str, str]
) -> None:
    attachments = parse_settings(settings)
    check_times(settings, services.settings.config)
    assignor = attachments.headrace_assignor or DEFAULT_ASSIGNOR
    present = parse_settings(former).headrace_assignor or DEFAULT_ASSIGNOR
    if assignor != present and not services.groups.supports(group, assignor):
        raise InvalidConfigError(
            f"headrace.assignor: the group has members that do not know {assignor!r} while they run; "
            "stop all of them, change it, and start them again"
        )
