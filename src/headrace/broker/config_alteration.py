"""Changes of configurations, for the handlers of AlterConfigs and IncrementalAlterConfigs.

A change is checked as a whole before anything is stored: every name must be known, and every value valid. All settings
of topics and groups can be changed, and the dynamic settings of brokers. A change is durable and in force before the
response is sent. The exception are levels of loggers: they are in force, but not durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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

    before: Mapping[str, str] = {} if resource.replaces else topic.settings
    settings = settings_after(before, resource.changes, _topic_option, effective)
    if validate_only:
        services.topic_admin.check_change(topic, settings)
    elif settings != topic.settings:
        yield from services.topic_admin.configure(topic, settings)


def _topic_option(name: str) -> Option:
    described = TOPIC_OPTIONS.get(name)
    if described is None:
        if name in UNSUPPORTED_TOPIC_OPTIONS:
            raise ConfigError(f"{name}: not supported: {UNSUPPORTED_TOPIC_OPTIONS[name]}")
        raise unknown_key(name, TOPIC_OPTIONS)
    return described


def _alter_broker(services: Services, resource: Resource, *, validate_only: bool) -> Work[None]:
    all_brokers = not resource.name
    if not all_brokers:
        services.settings.require_this_broker(resource.name)
    layers = services.settings.layers
    present = layers.cluster if all_brokers else layers.broker

    def effective(name: str) -> str:
        return render_value(getattr(services.settings.config, name.replace(".", "_")))

    before: Mapping[str, str] = {} if resource.replaces else present
    settings = settings_after(before, resource.changes, dynamic_option, effective)
    if validate_only:
        check_settings(services, settings, all_brokers=all_brokers)
    elif settings != present:
        yield from change_settings(services, settings, all_brokers=all_brokers)


def _alter_group(services: Services, resource: Resource, *, validate_only: bool) -> Work[None]:
    check_group_name(resource.name)
    present = services.group_settings.get(resource.name)
    before: Mapping[str, str] = {} if resource.replaces else present
    settings = settings_after(before, resource.changes, group_option, lambda _: "")
    attachments = parse_settings(settings)
    check_times(settings, services.settings.config)
    assignor = attachments.headrace_assignor or DEFAULT_ASSIGNOR
    former = parse_settings(present).headrace_assignor or DEFAULT_ASSIGNOR
    if assignor != former and not services.groups.supports(resource.name, assignor):
        raise InvalidConfigError(
            f"headrace.assignor: the group has members that do not know {assignor!r} while they run; "
            "stop all of them, change it, and start them again"
        )
    if not validate_only and settings != present:
        yield from services.group_settings.change(resource.name, settings)


def check_settings(services: Services, settings: Mapping[str, str], *, all_brokers: bool) -> None:
    """Raise an error if the broker cannot accept these dynamic settings, or a topic could not inherit from them.

    Args:
        services: The services of the broker.
        settings: All dynamic settings of this broker, or of all brokers.
        all_brokers: Whether the settings are those of all brokers.

    Raises:
        ApiError: A setting is invalid.
    """
    layers = services.settings.changed(settings, all_brokers=all_brokers)
    services.topics.check_defaults(layers.effective)


def change_settings(
    services: Services, settings: Mapping[str, str], *, all_brokers: bool
) -> Work[None]:
    """Replace the dynamic settings of this broker, or of all brokers. They are in force when the work is done.

    Raises:
        ApiError: A setting is invalid, or the metadata store could not store the settings.
    """
    check_settings(services, settings, all_brokers=all_brokers)
    yield from services.settings.change(settings, all_brokers=all_brokers)
