"""Changing configurations: what AlterConfigs and IncrementalAlterConfigs have in common.

A change is looked at as a whole before anything is stored: every name is known, every value acceptable. For topics and
groups everything can be changed, for brokers what is dynamic. What is changed is durable and in force when the answer
leaves; levels of loggers are in force, and not durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from headrace.broker.access.authorizer import authorize_configs
from headrace.broker.configs import loggers
from headrace.broker.context import RequestContext
from headrace.broker.coordinators.group_settings import (
    check_group_name,
    check_times,
    parse_settings,
)
from headrace.broker.resources import ResourceType
from headrace.broker.steps import CHECK_COST, CREATION_COST, Work
from headrace.broker.topic_names import check_topic_name
from headrace.config.broker import dynamic_option
from headrace.config.group import ATTACHMENTS_PREFIX, DEFAULT_ASSIGNOR, group_option
from headrace.config.options import Option, OptionType, render_value, unknown_key
from headrace.config.topic import TOPIC_OPTIONS, UNSUPPORTED_TOPIC_OPTIONS
from headrace.errors import (
    ApiError,
    ConfigError,
    ErrorCode,
    InvalidConfigError,
    InvalidRequestError,
)
from headrace.security import acls

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

T = TypeVar("T")


class Operation(IntEnum):
    """Kafka's `AlterConfigOp.OpType`."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Change(NamedTuple):
    """One configuration of a resource that is to be changed."""

    name: str
    value: str | None
    operation: int = Operation.SET


class Resource(NamedTuple):
    """A resource, and what is to be changed."""

    type: int
    name: str
    changes: Sequence[Change]
    replaces: bool
    """Whether what is not named goes back to its default (AlterConfigs), or stays (IncrementalAlterConfigs)."""


def alter_all(
    broker: Broker,
    context: RequestContext,
    resources: Sequence[Resource],
    respond: Callable[[Resource, ErrorCode, str | None], T],
    *,
    validate_only: bool,
) -> Work[list[T]]:
    """Change every resource for itself, and return the responses in the same order."""
    mentions = Counter((resource.type, resource.name) for resource in resources)
    responses = []
    for number, resource in enumerate(resources):
        code, message = ErrorCode.NONE, None
        try:
            _check_request(broker, number, mentions[resource.type, resource.name])
            authorize_configs(
                broker, context, acls.Operation.ALTER_CONFIGS, resource.type, resource.name
            )
            _alter(broker, resource, validate_only=validate_only, now_ms=context.now_ms)
        except ApiError as error:
            code, message = error.code, error.message
        responses.append(respond(resource, code, message))
        changed = code is ErrorCode.NONE and not validate_only
        yield CREATION_COST if changed else CHECK_COST
    return responses


def _check_request(broker: Broker, number: int, mentions: int) -> None:
    if mentions > 1:
        raise InvalidRequestError("each resource can be named once")
    if number >= broker.config.max_topics_per_request:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "too many resources in one request")


def _alter(broker: Broker, resource: Resource, *, validate_only: bool, now_ms: int) -> None:
    _check_names(resource.changes)
    if resource.type == ResourceType.TOPIC:
        _alter_topic(broker, resource, validate_only=validate_only)
    elif resource.type == ResourceType.BROKER:
        _alter_broker(broker, resource, validate_only=validate_only)
    elif resource.type == ResourceType.GROUP:
        _alter_group(broker, resource, validate_only=validate_only, now_ms=now_ms)
    elif resource.type == ResourceType.BROKER_LOGGER and not resource.replaces:
        loggers.check_resource(broker, resource.name)
        loggers.alter(broker, resource.changes, validate_only=validate_only)
    else:
        raise InvalidRequestError(
            f"resources of type {resource.type} have no configuration here that could be changed"
        )


def _check_names(changes: Iterable[Change]) -> None:
    twice = [
        name for name, count in Counter(change.name for change in changes).items() if count > 1
    ]
    if twice:
        raise InvalidRequestError(f"given more than once: {', '.join(sorted(twice)[:10])[:1000]}")


def _alter_topic(broker: Broker, resource: Resource, *, validate_only: bool) -> None:
    check_topic_name(resource.name)
    topic = broker.topics.require(resource.name)

    def effective(name: str) -> str:
        return render_value(getattr(topic.config, name.replace(".", "_")))

    before: Mapping[str, str] = {} if resource.replaces else topic.settings
    settings = _changed(before, resource.changes, _topic_option, effective)
    if validate_only:
        broker.topics.check_change(topic, settings)
    elif settings != topic.settings:
        broker.topics.configure(topic, settings)


def _topic_option(name: str) -> Option:
    described = TOPIC_OPTIONS.get(name)
    if described is None:
        if name in UNSUPPORTED_TOPIC_OPTIONS:
            raise ConfigError(f"{name}: not supported: {UNSUPPORTED_TOPIC_OPTIONS[name]}")
        raise unknown_key(name, TOPIC_OPTIONS)
    return described


def _alter_broker(broker: Broker, resource: Resource, *, validate_only: bool) -> None:
    all_brokers = not resource.name
    if not all_brokers and resource.name != str(broker.config.broker_id):
        raise InvalidRequestError(
            f"broker {resource.name[:40]!r} is not this one, which is {broker.config.broker_id}"
        )
    layers = broker.settings.layers
    present = layers.cluster if all_brokers else layers.broker

    def effective(name: str) -> str:
        return render_value(getattr(broker.config, name.replace(".", "_")))

    before: Mapping[str, str] = {} if resource.replaces else present
    settings = _changed(before, resource.changes, dynamic_option, effective)
    if validate_only:
        broker.check_settings(settings, all_brokers=all_brokers)
    elif settings != present:
        broker.configure(settings, all_brokers=all_brokers)


def _alter_group(broker: Broker, resource: Resource, *, validate_only: bool, now_ms: int) -> None:
    check_group_name(resource.name)
    present = broker.group_settings.get(resource.name)
    before: Mapping[str, str] = {} if resource.replaces else present
    settings = _changed(before, resource.changes, group_option, lambda _: "")
    attachments = parse_settings(settings)
    check_times(settings, broker.config)
    assignor = attachments.headrace_assignor or DEFAULT_ASSIGNOR
    former = parse_settings(present).headrace_assignor or DEFAULT_ASSIGNOR
    if assignor != former and not broker.groups.supports(resource.name, assignor):
        raise InvalidConfigError(
            f"headrace.assignor: the group has members that do not know {assignor!r} while they run; "
            "stop all of them, change it, and start them again"
        )
    if not validate_only and settings != present:
        broker.group_settings.change(resource.name, settings)
        if any(
            settings.get(name) != present.get(name)
            for name in {*settings, *present}
            if name.startswith(ATTACHMENTS_PREFIX)
        ):
            broker.groups.rebalance(resource.name, "what the group is attached to changed", now_ms)


def _changed(
    before: Mapping[str, str],
    changes: Iterable[Change],
    option: Callable[[str], Option],
    effective: Callable[[str], str],
) -> dict[str, str]:
    """Return the settings after the changes.

    Args:
        before: The settings that the resource has of its own.
        changes: What is to be changed.
        option: Returns the option of a name, or raises if it cannot be changed.
        effective: Returns the value in force of an option, which a list starts from that has no setting of its own.
    """
    settings = dict(before)
    for change in changes:
        name, value = change.name, change.value
        try:
            described = option(name)
        except ConfigError as error:
            if change.operation == Operation.DELETE:
                continue  # it is not there, which is all that was asked for; Kafka says so, too
            raise InvalidConfigError(str(error)) from error
        if change.operation == Operation.DELETE:
            settings.pop(name, None)
        elif value is None:
            raise InvalidRequestError(f"no value for {name}")
        elif change.operation == Operation.SET:
            settings[name] = value
        else:
            words = _words(settings.get(name, effective(name)))
            settings[name] = _changed_list(words, change, described, _words(value))
    return settings


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _changed_list(
    present: list[str], change: Change, described: Option, given: Iterable[str]
) -> str:
    if change.operation not in {Operation.APPEND, Operation.SUBTRACT}:
        raise InvalidRequestError(f"operation {change.operation} is not known")
    if described.type is not OptionType.LIST:
        word = Operation(change.operation).name
        raise InvalidConfigError(f"{change.name} is not a list, so {word} does not apply")
    if change.operation == Operation.APPEND:
        return ",".join(dict.fromkeys([*present, *given]))
    gone = frozenset(given)
    return ",".join(word for word in present if word not in gone)
