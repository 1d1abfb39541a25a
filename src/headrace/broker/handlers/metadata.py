"""Metadata (API key 3), versions 0-13.

Behaviour:
* The response has the live brokers, each with its address for the listener to which the client has connected. A broker
  without such a listener is left out. The address of the broker that responds is the configured address, or the address
  to which the client has connected.
* The controller is any of these brokers if there is no controller: every broker accepts the requests for a controller.
* A partition that no live broker leads has leader -1 and the error LEADER_NOT_AVAILABLE. From version 6 on the error is
  LISTENER_NOT_FOUND if the leader is live, but has no listener for the client. A replica is offline if its broker is
  not live or has no such listener, or if the replica is damaged on the broker that responds.
* Null topics mean all topics. An empty list means no topics; in version 0 it means all.
* A topic that does not exist is created at once with the broker's defaults, if both client and broker allow that. It
  has fewer replicas if there are fewer live brokers. The response has the new topic, so that no client has to retry.
* There is one exception: if the topic was deleted after clients last asked for it, the broker creates the topic again
  but returns UNKNOWN_TOPIC_OR_PARTITION once. As in Kafka the client learns in this way that its topic is gone.
* Each topic has an error of its own. Unknown names are UNKNOWN_TOPIC_OR_PARTITION, unknown ids UNKNOWN_TOPIC_ID. A
  topic that the client may not describe is TOPIC_AUTHORIZATION_FAILED if the request names it, whether or not it
  exists. A request for all topics omits it.
* Authorized operations, if requested, are the operations of the client.
Not implemented: Topics by id before version 12 (INVALID_REQUEST).
Versions: v1 controller, internal flag; v2 cluster id; v4 allow_auto_topic_creation; v7 leader epochs; v9 flexible; v10
topic ids in responses; v12 topics by id; v13 top-level error code, which is always 0: no client has to bootstrap again.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from headrace.broker.access.authorized_operations import (
    NOT_ASKED,
    OPERATIONS_COST,
    authorized_operations,
    cluster_operations,
)
from headrace.broker.cluster_views import (
    Brokers,
    brokers_for,
    controller_for,
    partition_views,
)
from headrace.broker.context import RequestContext
from headrace.broker.partitions.topic import Topic
from headrace.broker.services import Services
from headrace.broker.topic_names import INTERNAL_TOPICS, OFFSETS_TOPIC, check_topic_name
from headrace.broker.waiting.steps import CREATION_COST, ENTRY_COST, Work
from headrace.core.replica.role import NO_LEADER
from headrace.deferred import Deferred
from headrace.errors import (
    ApiError,
    ErrorCode,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import ZERO_UUID
from headrace.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.METADATA
VERSIONS: Final = VersionRange(0, 13)

TOPIC_IDS_VERSION: Final = 12
LISTENERS_VERSION: Final = 6
"""The first version that says that a leader has no listener for the client."""
_PARTITION_COST: Final = ENTRY_COST // 10
CREATIONS_PER_REQUEST: Final = 100
"""The greatest number of topics that one request creates, each with a commit to disk. Clients retry for the others."""


def handle(
    services: Services, context: RequestContext, request: MetadataRequest
) -> Work[MetadataResponse]:
    """Describe the cluster, and the requested topics."""
    brokers = brokers_for(services, context)
    topics: list[MetadataResponseTopic] = []
    for topic, cost in _topics(services, context, brokers, request):
        yield cost
        if topic is None:
            continue
        topics.append(topic)
        yield len(topic.partitions) * _PARTITION_COST
        if request.include_topic_authorized_operations and topic.error_code == ErrorCode.NONE:
            topic.topic_authorized_operations = authorized_operations(
                services.permissions, context, ResourceType.TOPIC, topic.name or ""
            )
            yield OPERATIONS_COST
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(
                node_id=each.broker_id, host=each.host, port=each.port, rack=each.rack
            )
            for each in brokers.values()
        ],
        cluster_id=services.cluster_id,
        controller_id=controller_for(services, brokers),
        topics=topics,
        cluster_authorized_operations=(
            cluster_operations(services.permissions, context)
            if request.include_cluster_authorized_operations
            else NOT_ASKED
        ),
    )


def _topics(
    services: Services, context: RequestContext, brokers: Brokers, request: MetadataRequest
) -> Iterator[tuple[MetadataResponseTopic | None, int]]:
    """Yield the entry of each topic, None for a topic that is not in the response, and the cost of the entry."""
    version = context.header.api_version
    if request.topics is None or (version == 0 and not request.topics):
        for topic in services.topics:
            sees = _sees(services, context, topic.name, quietly=True)
            yield (_describe(services, context, brokers, topic) if sees else None), ENTRY_COST
        return
    may_create = (
        request.allow_auto_topic_creation and services.settings.config.auto_create_topics_enable
    )
    creations_left = CREATIONS_PER_REQUEST if may_create else 0
    seen: set[bytes | str | None] = set()
    for wanted in request.topics:
        # An entry with an id is looked up by the id only.
        topic_id = bytes(wanted.topic_id)
        key = wanted.name if topic_id == ZERO_UUID else topic_id
        if key in seen:
            continue
        seen.add(key)
        before = services.topic_admin.creations
        found = _find(services, context, brokers, wanted, creations_left)
        created = services.topic_admin.creations > before
        creations_left -= created
        yield found, CREATION_COST if created else ENTRY_COST


def _find(
    services: Services,
    context: RequestContext,
    brokers: Brokers,
    wanted: MetadataRequestTopic,
    creations_left: int,
) -> MetadataResponseTopic:
    name, topic_id = wanted.name, bytes(wanted.topic_id)
    if topic_id != ZERO_UUID or name is None:
        if context.header.api_version < TOPIC_IDS_VERSION:
            return _failed(ErrorCode.INVALID_REQUEST, name or "", ZERO_UUID)
        return _find_by_id(services, context, brokers, topic_id)
    if not _sees(services, context, name):
        # The response must not show whether the topic exists or would be internal.
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return MetadataResponseTopic(error_code=code, name=name, topic_id=ZERO_UUID)
    try:
        topic = services.topics.get(name)
        if topic is None:
            topic = _create(services, context, name, may_create=creations_left > 0)
    except ApiError as error:
        return _failed(error.code, name, ZERO_UUID)
    return _describe(services, context, brokers, topic)


def _find_by_id(
    services: Services, context: RequestContext, brokers: Brokers, topic_id: bytes
) -> MetadataResponseTopic:
    topic = services.topics.by_id(topic_id)
    if topic is None:
        return _failed(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
    if not _sees(services, context, topic.name):
        return _failed(ErrorCode.TOPIC_AUTHORIZATION_FAILED, None, topic_id)
    return _describe(services, context, brokers, topic)


def _sees(services: Services, context: RequestContext, name: str, *, quietly: bool = False) -> bool:
    return services.permissions.allows(
        context, Operation.DESCRIBE, ResourceType.TOPIC, name, quietly=quietly
    )


def _create(services: Services, context: RequestContext, name: str, *, may_create: bool) -> Topic:
    if may_create:
        services.permissions.authorize_creation(context, name)
    check_topic_name(name)
    if not may_create or name in INTERNAL_TOPICS - {OFFSETS_TOPIC}:
        raise UnknownTopicOrPartitionError
    if name == OFFSETS_TOPIC:
        found = services.steps.run(services.internal_topics.ensure(name))
        if isinstance(found, Deferred):  # clients retry
            raise UnknownTopicOrPartitionError
        return found
    if name in services.topics.changing:
        raise UnknownTopicOrPartitionError
    try:
        topic = services.steps.run(services.topic_admin.create_in_steps(name), finishes=True)
    except TopicAlreadyExistsError as error:
        # Another broker was faster: the client finds the topic when it retries.
        raise UnknownTopicOrPartitionError from error
    services.audit.changed(context, "topic_created", topic=name, automatic=True)
    was_deleted = services.topics.deleted_names.forget(name)
    if was_deleted or isinstance(topic, Deferred):
        # The client has to learn that its topic was deleted, or the topic has many partitions.
        raise UnknownTopicOrPartitionError
    return topic


def _failed(error: ErrorCode, name: str | None, topic_id: bytes) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=error, name=name, topic_id=topic_id, is_internal=name in INTERNAL_TOPICS
    )


def _describe(
    services: Services, context: RequestContext, brokers: Brokers, topic: Topic
) -> MetadataResponseTopic:
    leaderless = partial(_leaderless, services, context, brokers, topic)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.is_internal,
        partitions=[
            MetadataResponsePartition(
                error_code=leaderless(index) if view.leader == NO_LEADER else ErrorCode.NONE,
                partition_index=index,
                leader_id=view.leader,
                leader_epoch=view.leader_epoch,
                replica_nodes=view.replicas,
                isr_nodes=view.isr,
                offline_replicas=view.offline,
            )
            for index, view in enumerate(partition_views(services, brokers, topic))
        ],
    )


def _leaderless(
    services: Services, context: RequestContext, brokers: Brokers, topic: Topic, index: int
) -> ErrorCode:
    """Return why a client gets no leader for a partition."""
    leader = services.topics.state(topic, index).leader
    is_hidden = leader in services.membership.live and leader not in brokers
    if is_hidden and context.header.api_version >= LISTENERS_VERSION:
        return ErrorCode.LISTENER_NOT_FOUND
    return ErrorCode.LEADER_NOT_AVAILABLE
