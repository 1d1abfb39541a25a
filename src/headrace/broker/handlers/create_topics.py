"""CreateTopics (API key 19), versions 2-7.

Behaviour: -1 partitions and a replication factor of -1 stand for the broker's defaults in every version. (KIP-464
specifies that from v4 on, but clients send -1 before.) The replication factor is at most the number of brokers that
have ever registered. The broker spreads leaders and replicas over live brokers and racks. As in Kafka, other brokers
get replicas only if there are not enough live ones. Assignments name registered brokers, of which one is live for each
partition. The replicas on brokers that are not live join the in-sync replicas later. With `validate_only` the broker
checks the request and creates nothing. A topic is durable before the response is sent. Each topic is created
or refused by itself. A topic that occurs twice is refused.
Not implemented: Internal topics: the broker creates them when it needs them.
Versions: v4 defaults; v5 flexible, returns the configuration; v7 topic ids.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import Final

from headrace.broker.configs.config_entries import topic_entries
from headrace.broker.context import RequestContext
from headrace.broker.partitions.replica_placement import BROKER_DEFAULT, NewPartitions
from headrace.broker.services import Services
from headrace.broker.topic_names import INTERNAL_TOPICS
from headrace.broker.waiting.steps import (
    CHECK_COST,
    CREATION_COST,
    PARTITION_OPENING_COST,
    STEP_COST,
    Work,
)
from headrace.config.topic import TopicConfig
from headrace.errors import (
    ApiError,
    ErrorCode,
    InvalidConfigError,
    InvalidRequestError,
    InvalidTopicError,
)
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.CREATE_TOPICS
VERSIONS: Final = VersionRange(2, 7)


def handle(
    services: Services,
    context: RequestContext,
    request: CreateTopicsRequest,
) -> Work[CreateTopicsResponse]:
    """Create or validate every topic of the request."""
    names = Counter(wanted.name for wanted in request.topics)
    results = []
    for wanted in request.topics:
        if not names[wanted.name]:
            continue
        mentions = names[wanted.name]
        # One result for all occurrences, because clients index the results by name.
        names[wanted.name] = 0
        try:
            _check_request(services, request, mentions)
            services.permissions.authorize_creation(context, wanted.name)
            yield from services.topics.changing.wait(wanted.name)
            result = yield from _create(
                services, context, wanted, validate_only=request.validate_only
            )
        except ApiError as error:
            result = CreatableTopicResult(
                name=wanted.name, error_code=error.code, error_message=error.message
            )
        results.append(result)
        created = result.error_code == ErrorCode.NONE and not request.validate_only
        yield (
            CREATION_COST + min(result.num_partitions * PARTITION_OPENING_COST, STEP_COST)
            if created
            else CHECK_COST
        )
    return CreateTopicsResponse(topics=results)


def _check_request(services: Services, request: CreateTopicsRequest, mentions: int) -> None:
    if mentions > 1:
        raise InvalidRequestError("the topic occurs more than once")
    if len(request.topics) > services.settings.config.max_topics_per_request:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "too many topics in one request")


def _create(
    services: Services, context: RequestContext, wanted: CreatableTopic, *, validate_only: bool
) -> Work[CreatableTopicResult]:
    if wanted.name in INTERNAL_TOPICS and services.topics.get(wanted.name) is None:
        raise InvalidTopicError("internal topics are created by the broker")
    settings = _settings(wanted)
    new = _new_partitions(services, wanted)
    config = services.topic_admin.validate_new(wanted.name, new, settings)
    topic_id = None
    if not validate_only:
        topic = yield from services.topic_admin.create_in_steps(wanted.name, new, settings)
        topic_id, config = topic.topic_id, topic.config
    result = CreatableTopicResult(name=wanted.name, error_message=None)
    if services.permissions.allows(
        context,
        Operation.DESCRIBE_CONFIGS,
        ResourceType.TOPIC,
        wanted.name,
        quietly=True,
    ):
        result.num_partitions, result.replication_factor = (
            new.partitions_count,
            new.replication_factor,
        )
        result.configs = _configs(services, config, settings)
    else:
        result.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if topic_id is not None:
        result.topic_id = topic_id
    return result


def _settings(wanted: CreatableTopic) -> dict[str, str | None]:
    settings = {config.name: config.value for config in wanted.configs}
    if len(settings) != len(wanted.configs):
        raise InvalidConfigError("a configuration occurs twice")
    nulls = sorted(name for name, value in settings.items() if value is None)
    if nulls:
        raise InvalidConfigError(f"no value for {', '.join(nulls)}")
    return settings


def _new_partitions(services: Services, wanted: CreatableTopic) -> NewPartitions:
    placement = services.topic_admin.placement
    if not wanted.assignments:
        return placement.wanted(wanted.num_partitions, wanted.replication_factor)
    if wanted.num_partitions != BROKER_DEFAULT or wanted.replication_factor != BROKER_DEFAULT:
        raise InvalidRequestError(
            "with an assignment, partitions and replication factor have to be -1"
        )
    assignments = sorted(wanted.assignments, key=attrgetter("partition_index"))
    if [each.partition_index for each in assignments] != list(range(len(assignments))):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions have to be numbered from 0 on"
        )
    return placement.assigned([each.broker_ids for each in assignments])


def _configs(
    services: Services, config: TopicConfig, settings: dict[str, str | None]
) -> list[CreatableTopicConfigs]:
    return [
        CreatableTopicConfigs(name=entry.name, value=entry.value, config_source=entry.source)
        for entry in topic_entries(config, settings, services.settings.layers)
    ]
