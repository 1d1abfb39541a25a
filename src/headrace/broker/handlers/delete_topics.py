"""DeleteTopics (API key 20), versions 1-6.

Behaviour: by name, or from version 6 on by id. When the answer says success the topic, its data, its metadata and what
groups have committed for it are gone durably, and its name can be used again at once, with a new id. Whoever waits on
it is answered with UNKNOWN_TOPIC_OR_PARTITION. Internal topics cannot be deleted. A topic that is named twice is
refused. With delete.topic.enable=false the answer is TOPIC_DELETION_DISABLED.
Versions: v3 TOPIC_DELETION_DISABLED; v4 flexible; v5 error messages; v6 topic ids.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.broker.access.authorizer import allows
from headrace.broker.context import RequestContext, VersionRange
from headrace.broker.steps import CREATION_COST, ENTRY_COST, FIRST_BATCH_COST, STEP_COST, Work
from headrace.broker.topic import Topic
from headrace.core.coordinator.runtime import Reply, gather
from headrace.core.deferred import Deferred
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
from headrace.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

API_KEY: Final = ApiKey.DELETE_TOPICS
VERSIONS: Final = VersionRange(1, 6)

TOPIC_IDS_VERSION: Final = 6
DELETION_DISABLED_VERSION: Final = 3


def handle(
    broker: Broker, context: RequestContext, request: DeleteTopicsRequest
) -> Work[Reply[DeleteTopicsResponse]]:
    """Delete every topic of the request."""
    version = context.header.api_version
    wanted = (
        request.topics
        if version >= TOPIC_IDS_VERSION
        else [DeleteTopicState(name=name) for name in request.topic_names]
    )
    known = [_find_if_known(broker, context, state) for state in wanted]
    mentions = Counter(topic.name for topic in known if topic is not None)
    results = []
    forgotten: list[Reply[list[None]]] = []
    for state, topic in zip(wanted, known, strict=True):
        if topic is None or mentions[topic.name] == 1:
            name = state.name if topic is None else topic.name
            if name is not None:
                yield from broker.topics.unchanging(name)
            result = yield from _delete(broker, context, state, forgotten)
            results.append(result)
            if topic is not None and result.error_code == ErrorCode.NONE:
                yield CREATION_COST + min(len(topic.partitions) * FIRST_BATCH_COST, STEP_COST)
            yield ENTRY_COST
        elif mentions.pop(topic.name, 0):
            # One answer for all mentions, and none of them counts.
            results.append(_named_twice(topic.name))
    response = DeleteTopicsResponse(responses=results)
    durable = gather(forgotten)
    return durable.map(lambda _: response) if isinstance(durable, Deferred) else response


def _find_if_known(
    broker: Broker, context: RequestContext, wanted: DeleteTopicState
) -> Topic | None:
    """Return a topic whose name and id the client may know to be the same."""
    if wanted.name is None:
        topic = broker.topics.by_id(bytes(wanted.topic_id))
    else:
        topic = broker.topics.get(wanted.name)
    if topic is None or not _may(broker, context, Operation.DESCRIBE, topic.name, quietly=True):
        return None
    return topic


def _may(
    broker: Broker,
    context: RequestContext,
    operation: Operation,
    name: str,
    *,
    quietly: bool = False,
) -> bool:
    """Return whether the client may do something to a topic; whoever may delete the cluster may do all."""
    return allows(broker, context, Operation.DELETE, ResourceType.CLUSTER, quietly=True) or allows(
        broker, context, operation, ResourceType.TOPIC, name, quietly=quietly
    )


def _named_twice(name: str) -> DeletableTopicResult:
    return DeletableTopicResult(
        name=name,
        error_code=ErrorCode.INVALID_REQUEST,
        error_message="the topic is named more than once",
    )


def _delete(
    broker: Broker,
    context: RequestContext,
    wanted: DeleteTopicState,
    forgotten: list[Reply[list[None]]],
) -> Work[DeletableTopicResult]:
    result = DeletableTopicResult(name=wanted.name, topic_id=wanted.topic_id)
    try:
        _check_enabled(broker, context)
        topic = _find(broker, context, wanted)
        result.name, result.topic_id = topic.name, topic.topic_id
        forgotten.append((yield from broker.delete_topic_in_steps(topic, context.now_ms)))
    except ApiError as error:
        result.error_code, result.error_message = error.code, error.message
        result.name = result.name or wanted.name
    return result


def _check_enabled(broker: Broker, context: RequestContext) -> None:
    if broker.config.delete_topic_enable:
        return
    known = context.header.api_version >= DELETION_DISABLED_VERSION
    raise ApiError(
        ErrorCode.TOPIC_DELETION_DISABLED if known else ErrorCode.INVALID_REQUEST,
        "delete.topic.enable is false",
    )


def _find(broker: Broker, context: RequestContext, wanted: DeleteTopicState) -> Topic:
    topic_id = bytes(wanted.topic_id)
    if (wanted.name is None) == (topic_id == ZERO_UUID):
        raise InvalidRequestError("a topic is named either by its name or by its id")
    if wanted.name is None:
        topic = broker.topics.by_id(topic_id)
        if topic is None:
            raise UnknownTopicIdError
    else:
        if not _may(broker, context, Operation.DESCRIBE, wanted.name):
            raise ApiError.for_code(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = broker.topics.require(wanted.name)
    if not _may(broker, context, Operation.DELETE, topic.name):
        if wanted.name is None and _may(
            broker, context, Operation.DESCRIBE, topic.name, quietly=True
        ):
            wanted.name = (
                topic.name
            )  # it may be told, while other ids keep their names to themselves
        raise ApiError.for_code(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if topic.is_internal:
        raise InvalidTopicError("internal topics cannot be deleted")
    return topic
