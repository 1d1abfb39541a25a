"""DescribeTopicPartitions (API key 75), versions 0-0.

Behaviour: Like Metadata for topics, in the order of their names, in pages. A page has at most as many partitions as the
request and the broker (2,000) allow, and a cursor for the next page. A request without topics means all topics. The
request never creates a topic. Topics are identified by name. A topic that does not exist is UNKNOWN_TOPIC_OR_PARTITION
if the request names it. A topic that the client may not describe is TOPIC_AUTHORIZATION_FAILED if the request names it.
A request for all topics omits both. Authorized operations are the operations of the client.
The last known eligible leader replicas are those that have left ISR and ELR after a power cut. Kafka has at most one.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.access.authorized_operations import (
    OPERATIONS_COST,
    authorized_operations,
)
from headrace.broker.cluster_views import PartitionView, brokers_for, partition_views
from headrace.broker.context import RequestContext
from headrace.broker.partitions.topic import Topic
from headrace.broker.services import Services
from headrace.broker.topic_names import check_topic_name
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponseCursor,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.DESCRIBE_TOPIC_PARTITIONS
VERSIONS: Final = VersionRange(0, 0)

PARTITIONS_LIMIT: Final = 2000
"""Kafka's default of max.request.partition.size.limit."""


def handle(
    services: Services,
    context: RequestContext,
    request: DescribeTopicPartitionsRequest,
) -> Work[DescribeTopicPartitionsResponse]:
    """Describe one page of topics."""
    asked = sorted({topic.name for topic in request.topics})
    cursor = request.cursor
    if cursor is None:
        pages = _Pages(services, context, request.response_partition_limit)
        return (yield from pages.describe(asked, 0))
    if cursor.partition_index < 0 or (asked and cursor.topic_name not in asked):
        error = ErrorCode.INVALID_REQUEST
        return DescribeTopicPartitionsResponse(topics=[_failed(name, error) for name in asked])
    pages = _Pages(services, context, request.response_partition_limit, cursor.topic_name)
    return (yield from pages.describe(asked, cursor.partition_index))


class _Pages:
    """Collects the topics of one page, from a topic name on."""

    __slots__ = ("_brokers", "_context", "_remaining", "_response", "_services", "_start")

    def __init__(
        self, services: Services, context: RequestContext, limit: int, start: str = ""
    ) -> None:
        self._services = services
        self._context = context
        self._brokers = brokers_for(services, context)
        self._start = start
        self._remaining = max(1, min(limit, PARTITIONS_LIMIT))
        self._response = DescribeTopicPartitionsResponse()

    def describe(self, asked: list[str], first: int) -> Work[DescribeTopicPartitionsResponse]:
        """Return the page: the requested topics or all, and the topic of the cursor from its partition `first` on."""
        for name in asked or [topic.name for topic in self._services.topics]:
            yield ENTRY_COST
            if name < self._start or not (asked or self._sees(name, quietly=True)):
                continue
            if not self._remaining:
                # The topics before this one are complete.
                self._continue_at(name, 0)
                break
            if asked and not self._sees(name):
                refusal = _failed(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                self._response.topics.append(refusal)
                continue
            topic = self._services.topics.get(name)
            yield OPERATIONS_COST
            if topic is None:
                self._response.topics.append(_unknown(name, self._operations(name)))
            elif not self._add(topic, first if name == self._start else 0):
                break
        return self._response

    def _sees(self, name: str, *, quietly: bool = False) -> bool:
        return self._services.permissions.allows(
            self._context,
            Operation.DESCRIBE,
            ResourceType.TOPIC,
            name,
            quietly=quietly,
        )

    def _operations(self, name: str) -> int:
        return authorized_operations(
            self._services.permissions, self._context, ResourceType.TOPIC, name
        )

    def _add(self, topic: Topic, first: int) -> bool:
        """Add the partitions of a topic that fit. Return whether that was all of them."""
        partitions = self._services.partitions.of(topic)
        end = min(len(partitions), first + self._remaining)
        views = partition_views(self._services, self._brokers, topic, first, end)
        self._response.topics.append(
            DescribeTopicPartitionsResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                is_internal=topic.is_internal,
                partitions=[_described(first + at, view) for at, view in enumerate(views)],
                topic_authorized_operations=self._operations(topic.name),
            )
        )
        if end < len(partitions):
            self._continue_at(topic.name, end)
            return False
        self._remaining -= max(0, end - first)
        return True

    def _continue_at(self, name: str, index: int) -> None:
        self._response.next_cursor = DescribeTopicPartitionsResponseCursor(
            topic_name=name, partition_index=index
        )


def _described(index: int, view: PartitionView) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=ErrorCode.NONE,  # as in Kafka and unlike Metadata: a missing leader shows it
        partition_index=index,
        leader_id=view.leader,
        leader_epoch=view.leader_epoch,
        replica_nodes=view.replicas,
        isr_nodes=view.isr,
        eligible_leader_replicas=view.elr,
        last_known_elr=view.last_known_elr,
        offline_replicas=view.offline,
    )


def _unknown(name: str, operations: int) -> DescribeTopicPartitionsResponseTopic:
    try:
        check_topic_name(name)
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    except ApiError as error:
        code = error.code
    topic = _failed(name, code)
    topic.topic_authorized_operations = operations
    return topic


def _failed(name: str, error: ErrorCode) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(error_code=error, name=name)
