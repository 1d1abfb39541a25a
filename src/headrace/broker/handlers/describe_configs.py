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
from typing import Final

from headrace.broker.configs.config_entries import (
    ConfigEntry,
    broker_entries,
    cluster_entries,
    group_entries,
    topic_entries,
)
from headrace.broker.context import RequestContext
from headrace.broker.coordinators.group_settings import check_group_name
from headrace.broker.requests import loggers
from headrace.broker.requests.broker_settings import require_this_broker
from headrace.broker.services import Services
from headrace.broker.topic_names import check_topic_name
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.config.options import Source
from headrace.config.resources import ConfigResourceType
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
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation

API_KEY: Final = ApiKey.DESCRIBE_CONFIGS
VERSIONS: Final = VersionRange(1, 4)

_EXAMINED_COST: Final = ENTRY_COST // 8
"""The cost of looking up the value of one configuration, which the response may then omit."""


def handle(
    services: Services,
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
        examined = 0
        try:
            services.permissions.authorize_configs(
                context,
                Operation.DESCRIBE_CONFIGS,
                resource.resource_type,
                resource.resource_name,
            )
            if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
                result.configs = _levels(services, resource)
            else:
                entries = list(_entries(services, resource, number))
                examined = len(entries)
                result.configs = [_result(entry, request) for entry in _wanted(resource, entries)]
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        results.append(result)
        yield ENTRY_COST + (4 * len(result.configs) + examined) * _EXAMINED_COST
    return DescribeConfigsResponse(results=results)


def _entries(
    services: Services, resource: DescribeConfigsResource, number: int
) -> Iterable[ConfigEntry]:
    if number >= services.settings.config.max_topics_per_request:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "too many resources in one request")
    name = resource.resource_name
    if resource.resource_type == ConfigResourceType.TOPIC:
        check_topic_name(name)
        topic = services.topics.require(name)
        return topic_entries(topic.config, topic.settings, services.settings.layers)
    if resource.resource_type == ConfigResourceType.GROUP:
        check_group_name(name)
        return group_entries(services.group_settings.get(name), services.settings.layers)
    if resource.resource_type != ConfigResourceType.BROKER:
        raise InvalidRequestError(
            f"resources of type {resource.resource_type} have no configuration here"
        )
    if not name:
        return cluster_entries(services.settings.layers)
    require_this_broker(services, name)
    return broker_entries(services.settings.layers)


def _levels(
    services: Services, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    require_this_broker(services, resource.resource_name)
    return [
        DescribeConfigsResourceResult(
            name=name,
            value=logger.level,
            read_only=logger.is_fixed,
            config_source=Source.LOGGER,
        )
        for name, logger in loggers.described(services, resource.configuration_keys)
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
