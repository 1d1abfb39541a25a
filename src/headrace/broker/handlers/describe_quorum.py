"""DescribeQuorum (API key 55), versions 0-2.

Behaviour: This broker is the leader and the only voter of the metadata quorum. The leader epoch grows with every start.
As in Kafka the broker knows one partition: unless a request names just partition 0 of `__cluster_metadata`, every
partition is UNKNOWN_TOPIC_OR_PARTITION. There is no metadata log, so the high watermark and the log end offset are -1.
Not implemented: Controller listeners: the node has the listener to which the client has connected.
Versions: v1 times of the last fetch; v2 error messages, nodes, directory ids.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import ZERO_UUID
from headrace.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.DESCRIBE_QUORUM
VERSIONS: Final = VersionRange(0, 2)

METADATA_TOPIC: Final = "__cluster_metadata"
NODES_VERSION: Final = 2
_NO_OFFSET: Final = -1


def handle(
    services: Services, context: RequestContext, request: DescribeQuorumRequest
) -> Work[DescribeQuorumResponse]:
    """Describe the metadata quorum, which is this broker."""
    if not services.permissions.allows(context, Operation.DESCRIBE, ResourceType.CLUSTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return DescribeQuorumResponse(error_code=code, error_message=code.description)
    named = [
        (topic.topic_name, [each.partition_index for each in topic.partitions])
        for topic in request.topics
    ]
    if named == [(METADATA_TOPIC, [0])]:
        return _quorum(services, context)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = DescribeQuorumResponse()
    for name, indexes in named:
        partitions = [
            DescribeQuorumResponsePartitionData(
                partition_index=index, error_code=unknown, error_message=unknown.description
            )
            for index in indexes
        ]
        response.topics.append(
            DescribeQuorumResponseTopicData(topic_name=name, partitions=partitions)
        )
        yield (1 + len(indexes)) * ENTRY_COST // 4
    return response


def _quorum(services: Services, context: RequestContext) -> DescribeQuorumResponse:
    broker_id = services.settings.config.broker_id
    voter = ReplicaState(
        replica_id=broker_id,
        replica_directory_id=ZERO_UUID,
        log_end_offset=_NO_OFFSET,
        last_fetch_timestamp=context.now_ms,
        last_caught_up_timestamp=context.now_ms,
    )
    partition = DescribeQuorumResponsePartitionData(
        partition_index=0,
        leader_id=broker_id,
        leader_epoch=services.replicas.registration,
        high_watermark=_NO_OFFSET,
        current_voters=[voter],
    )
    response = DescribeQuorumResponse(
        topics=[DescribeQuorumResponseTopicData(topic_name=METADATA_TOPIC, partitions=[partition])]
    )
    if context.header.api_version >= NODES_VERSION:
        endpoint = services.endpoints.endpoint_for(context)
        listener = Listener(name=context.session.listener, host=endpoint.host, port=endpoint.port)
        response.nodes = [Node(node_id=broker_id, listeners=[listener])]
    return response
