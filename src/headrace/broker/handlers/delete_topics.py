"""DeleteTopics (API key 20), versions 1-6.

Behaviour: The request names topics by name, or by id from version 6 on. After a success the topic, its data, its
metadata and the offsets that groups have committed for it are durably deleted. A topic of the same name can be created
at once, with a new id. Requests that wait for the topic get UNKNOWN_TOPIC_OR_PARTITION. Internal topics cannot be
deleted. A topic that occurs twice is refused. With delete.topic.enable=false the error is TOPIC_DELETION_DISABLED.
Versions: v3 TOPIC_DELETION_DISABLED; v4 flexible; v5 error messages; v6 topic ids.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from headrace.broker.context import RequestContext
from headrace.broker.partitions.topic import Topic
from headrace.broker.services import Services
from headrace.broker.waiting.steps import (
    CREATION_COST,
    ENTRY_COST,
    FIRST_BATCH_COST,
    STEP_COST,
    Work,
)
from headrace.core.coordinator.runtime import Reply, gather
from headrace.deferred import Deferred
from headrace.errors import (
    ApiError,
    ErrorCode,
    InvalidRequestError,
    InvalidTopicError,
    UnknownTopicIdError,
)
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import ZERO_UUID
from headrace.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.DELETE_TOPICS
VERSIONS: Final = VersionRange(1, 6)

TOPIC_IDS_VERSION: Final = 6
DELETION_DISABLED_VERSION: Final = 3


def handle(
    services: Services, context: RequestContext, request: DeleteTopicsRequest
) -> Work[Reply[DeleteTopicsResponse]]:
    """Delete every topic of the request."""
    version = context.header.api_version
    wanted = (
        request.topics
        if version >= TOPIC_IDS_VERSION
        else [DeleteTopicState(name=name) for name in request.topic_names]
    )
    known = [_find_if_known(services, context, state) for state in wanted]
    mentions = Counter(topic.name for topic in known if topic is not None)
    results = []
    forgotten: list[Reply[Any]] = []
    for state, topic in zip(wanted, known, strict=True):
        if topic is None or mentions[topic.name] == 1:
            name = state.name if topic is None else topic.name
            if name is not None:
                yield from services.topics.changing.wait(name)
            result = yield from _delete(services, context, state, forgotten)
            results.append(result)
            if topic is not None and result.error_code == ErrorCode.NONE:
                yield CREATION_COST + min(topic.partitions_count * FIRST_BATCH_COST, STEP_COST)
            yield ENTRY_COST
        elif mentions.pop(topic.name, 0):
            # One result for all occurrences, and the topic is not deleted.
            results.append(_named_twice(topic.name))
    response = DeleteTopicsResponse(responses=results)
    durable = gather(forgotten)
    return durable.map(lambda _: response) if isinstance(durable, Deferred) else response


def _find_if_known(
    services: Services, context: RequestContext, wanted: DeleteTopicState
) -> Topic | None:
    """Return a topic. Refuse the request if the client may not learn that name and id belong together."""
    if wanted.name is None:
        topic = services.topics.by_id(bytes(wanted.topic_id))
    else:
        topic = services.topics.get(wanted.name)
    if topic is None or not _may(services, context, Operation.DESCRIBE, topic.name, quietly=True):
        return None
    return topic


def _may(
    services: Services,
    context: RequestContext,
    operation: Operation,
    name: str,
    *,
    quietly: bool = False,
) -> bool:
    """Check a permission of the client on a topic. The permission to delete the cluster includes all of them."""
    return services.permissions.allows(
        context, Operation.DELETE, ResourceType.CLUSTER, quietly=True
    ) or services.permissions.allows(context, operation, ResourceType.TOPIC, name, quietly=quietly)


def _named_twice(name: str) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name,
        error_code=ErrorCode.INVALID_REQUEST,
        error_message="the topic occurs more than once",
    )


def _delete(
    services: Services,
    context: RequestContext,
    wanted: DeleteTopicState,
    forgotten: list[Reply[Any]],
) -> Work[DeletableTopicResult]:
    result = DeletableTopicResult(name=wanted.name, topic_id=wanted.topic_id)
    try:
        _check_enabled(services, context)
        topic = _find(services, context, wanted)
        result.name, result.topic_id = topic.name, topic.topic_id
        forgotten.append((yield from services.topic_admin.delete_in_steps(topic)))
    except ApiError as error:
        result.error_code, result.error_message = error.code, error.message
        result.name = result.name or wanted.name
    return result


def _check_enabled(services: Services, context: RequestContext) -> None:
    if services.settings.config.delete_topic_enable:
        return
    known = context.header.api_version >= DELETION_DISABLED_VERSION
    raise ApiError(
        ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST,
        "delete.topic.enable is false",
    )


def _find(services: Services, context: RequestContext, wanted: DeleteTopicState) -> Topic:
    topic_id = bytes(wanted.topic_id)
    if (wanted.name is None) == (topic_id == ZERO_UUID):
        raise InvalidRequestError("a topic is named either by its name or by its id")
    if wanted.name is None:
        topic = services.topics.by_id(topic_id)
        if topic is None:
            raise UnknownTopicIdError
    else:
        if not _may(services, context, Operation.DESCRIBE, wanted.name):
            raise ApiError.for_code(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = services.topics.require(wanted.name)
    if not _may(services, context, Operation.DELETE, topic.name):
        if wanted.name is None and _may(
            services, context, Operation.DESCRIBE, topic.name, quietly=True
        ):
            wanted.name = (
                topic.name
            )  # the client may learn the name; other ids must not reveal their names
        raise ApiError.for_code(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if topic.is_internal:
        raise InvalidTopicError("internal topics cannot be deleted")
    return topic
