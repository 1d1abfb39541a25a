"""DescribeConfigs (API key 32), versions 1-4.

Behaviour: topics, groups and this broker. Of a group it is what an administrator attached it to, whether or not it
has members. The broker's resource name is its id as text; the empty name is what was set for all brokers while they
ran, and nothing else. Every value comes with its source, and on request with its synonyms in the order in which they
count, its type and its documentation; of a secret one (`Option.sensitive`) the value is null. Options that are
accepted but not acted on yet say so in their documentation. Of loggers it is their levels; a broker inside a program
has none.
Not implemented: client metrics (INVALID_REQUEST); Kafka's own settings of groups.
Versions: v1 source and synonyms; v3 type and documentation; v4 flexible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headrace.broker.access.authorizer import authorize_configs
from headrace.broker.configs import loggers
from headrace.broker.configs.config_entries import (
    ConfigEntry,
    broker_entries,
    cluster_entries,
    group_entries,
    topic_entries,
)
from headrace.broker.context import RequestContext, VersionRange
from headrace.broker.coordinators.group_settings import check_group_name
from headrace.broker.resources import ResourceType
from headrace.broker.steps import ENTRY_COST, Work
from headrace.broker.topic_names import check_topic_name
from headrace.config.options import Source
from headrace.errors import ApiError, ErrorCode, InvalidRequestError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from headrace.security.acls import Operation

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.DESCRIBE_CONFIGS
VERSIONS: Final = VersionRange(1, 4)


def handle(
    broker: Broker,
    context: RequestContext,
    request: DescribeConfigsRequest,
) -> Work[DescribeConfigsResponse]:
    """Describe the configurations of every resource."""
    results = []
    once: dict[tuple[int, str], DescribeConfigsResource] = {}
    for wanted in request.resources:
        once.setdefault((wanted.resource_type, wanted.resource_name), wanted)
    for number, resource in enumerate(once.values()):
        result = DescribeConfigsResult(
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            error_message=None,
        )
        try:
            authorize_configs(
                broker,
                context,
                Operation.DESCRIBE_CONFIGS,
                resource.resource_type,
                resource.resource_name,
            )
            if resource.resource_type == ResourceType.BROKER_LOGGER:
                result.configs = _levels(broker, resource)
            else:
                entries = _entries(broker, resource, number)
                result.configs = [_result(entry, request) for entry in _wanted(resource, entries)]
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        results.append(result)
        yield ENTRY_COST + len(result.configs) * ENTRY_COST // 2
    return DescribeConfigsResponse(results=results)


def _entries(
    broker: Broker, resource: DescribeConfigsResource, number: int
) -> Iterable[ConfigEntry]:
    if number >= broker.config.max_topics_per_request:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "too many resources in one request")
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        check_topic_name(name)
        topic = broker.topics.require(name)
        return topic_entries(topic.config, topic.settings, broker.settings.layers)
    if resource.resource_type == ResourceType.GROUP:
        check_group_name(name)
        return group_entries(broker.group_settings.get(name), broker.settings.layers)
    if resource.resource_type != ResourceType.BROKER:
        raise InvalidRequestError(
            f"resources of type {resource.resource_type} have no configuration here"
        )
    if not name:
        return cluster_entries(broker.settings.layers)
    if name != str(broker.config.broker_id):
        raise InvalidRequestError(
            f"broker {name[:40]!r} is not this one, which is {broker.config.broker_id}"
        )
    return broker_entries(broker.settings.layers)


def _levels(
    broker: Broker, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    loggers.check_resource(broker, resource.resource_name)
    return [
        DescribeConfigsResourceResult(
            name=name,
            value=logger.level,
            read_only=logger.is_fixed,
            config_source=Source.LOGGER,
        )
        for name, logger in loggers.described(broker, resource.configuration_keys)
    ]


def _wanted(
    resource: DescribeConfigsResource, entries: Iterable[ConfigEntry]
) -> Iterable[ConfigEntry]:
    if not resource.configuration_keys:  # as Kafka has it, none means all too
        return entries
    keys = set(resource.configuration_keys)
    return [entry for entry in entries if entry.name in keys]


def _result(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    secret = entry.option.sensitive
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=None if secret else entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=secret,
        synonyms=[
            DescribeConfigsSynonym(name=s.name, value=None if secret else s.value, source=s.source)
            for s in synonyms
        ],
        config_type=entry.option.type,
        documentation=entry.option.documentation if request.include_documentation else None,
    )
