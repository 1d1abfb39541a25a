"""DescribeConfigs (API key 32), versions 1-4.

Behaviour:
* The request describes topics, groups, this broker and its loggers.
* The settings of a group are those that an administrator has set, whether or not the group has members.
* The resource name of the broker is its id as text. Another broker is INVALID_REQUEST, as in Kafka: clients send the
  request to the broker that it names. The empty name describes only the settings that were set for all brokers while
  they ran.
* Each value has its source. If requested, it also has its synonyms in the order in which they apply, its type and its
  documentation. The value of a secret setting (`Option.sensitive`) is null. The documentation of a setting says if the
  broker accepts the setting but ignores it.
* The settings of loggers are their levels; an embedded broker has no loggers.
Not implemented: Client metrics (INVALID_REQUEST), and Kafka's own settings of groups.
Versions: v1 source and synonyms; v3 type and documentation; v4 flexible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from headrace.broker.configs.config_entries import (
    DescribedConfig,
    broker_entries,
    cluster_entries,
    group_entries,
    topic_entries,
)
from headrace.broker.context import RequestContext
from headrace.broker.coordinators.group_settings import check_group_name
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
) -> Iterable[DescribedConfig]:
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
            f"resources of type {resource.resource_type} have no configuration"
        )
    if not name:
        return cluster_entries(services.settings.layers)
    services.settings.require_this_broker(name)
    return broker_entries(services.settings.layers)


def _levels(
    services: Services, resource: DescribeConfigsResource
) -> list[DescribeConfigsResourceResult]:
    services.settings.require_this_broker(resource.resource_name)
    return [
        DescribeConfigsResourceResult(
            name=name,
            value=logger.level,
            read_only=logger.is_fixed,
            config_source=Source.LOGGER,
        )
        for name, logger in services.settings.loggers.named(resource.configuration_keys)
    ]


def _wanted(
    resource: DescribeConfigsResource, entries: Iterable[DescribedConfig]
) -> Iterable[DescribedConfig]:
    if not resource.configuration_keys:  # as in Kafka, an empty list means all keys, too
        return entries
    keys = set(resource.configuration_keys)
    return [entry for entry in entries if entry.name in keys]


def _result(
    entry: DescribedConfig, request: DescribeConfigsRequest
) -> DescribeConfigsResourceResult:
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
