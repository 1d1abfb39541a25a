"""CreatePartitions (API key 37), versions 0-3.

Behaviour: The new partitions are durable before the response is sent, and in Metadata at once. Groups rebalance with
the next heartbeats of their members. Each topic is grown or refused by itself. A topic that occurs twice is refused. A
count that is not larger than the present count is INVALID_PARTITIONS. New partitions have as many replicas as the first
partition of the topic. The broker continues the placement of the present partitions. Assignments name registered
brokers, of which one is live for each partition. With `validate_only` the broker checks the request and changes
nothing. Internal topics cannot be grown, because their number of partitions decides which partition stores a group.
Versions: v2 flexible.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import (
    CHECK_COST,
    CREATION_COST,
    PARTITION_OPENING_COST,
    STEP_COST,
    Work,
)
from headrace.errors import ApiError, ErrorCode, InvalidRequestError, InvalidTopicError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.CREATE_PARTITIONS
VERSIONS: Final = VersionRange(0, 3)


def handle(
    services: Services, context: RequestContext, request: CreatePartitionsRequest
) -> Work[CreatePartitionsResponse]:
    """Grow or validate every topic of the request."""
    mentions = Counter(wanted.name for wanted in request.topics)
    results: list[CreatePartitionsTopicResult] = []
    for wanted in {wanted.name: wanted for wanted in request.topics}.values():
        result = CreatePartitionsTopicResult(name=wanted.name)
        try:
            _check_request(services, len(results), mentions[wanted.name])
            services.permissions.authorize(
                context, Operation.ALTER, ResourceType.TOPIC, wanted.name
            )
            yield from services.topics.changing.wait(wanted.name)
            yield from _grow(services, wanted, validate_only=request.validate_only)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
        results.append(result)
        if result.error_code == ErrorCode.NONE and not request.validate_only:
            yield CREATION_COST + min(wanted.count * PARTITION_OPENING_COST, STEP_COST)
        yield CHECK_COST
    return CreatePartitionsResponse(results=results)


def _check_request(services: Services, number: int, mentions: int) -> None:
    if mentions > 1:
        raise InvalidRequestError("the topic occurs more than once")
    if number >= services.settings.config.max_topics_per_request:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "too many topics in one request")


def _grow(services: Services, wanted: CreatePartitionsTopic, *, validate_only: bool) -> Work[None]:
    topic = services.topics.require(wanted.name)
    if topic.is_internal:
        raise InvalidTopicError("internal topics cannot get more partitions")
    assignments = wanted.assignments
    brokers = None if assignments is None else [each.broker_ids for each in assignments]
    new = services.topic_admin.added(topic, wanted.count, brokers)
    if not validate_only:
        yield from services.topic_admin.grow_in_steps(topic, new)
