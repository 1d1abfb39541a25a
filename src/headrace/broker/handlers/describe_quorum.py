"""DescribeQuorum (API key 55), versions 0-2.

Behaviour: The controller is the leader of the metadata quorum, -1 if there is none at the moment. The controller epoch
is the leader epoch. All registered brokers are voters, because each of them may become the controller. The times of a
voter are the present time if its broker is live, else -1. A broker without a cluster is the leader and the only voter,
and its leader epoch grows with every start. As in Kafka the broker knows one partition: unless a request names just
partition 0 of `__cluster_metadata`, every partition is UNKNOWN_TOPIC_OR_PARTITION. There is no metadata log, so the
high watermark and the log end offsets are -1. Nodes are the live brokers.
Not implemented: Controller listeners: the nodes have the listener to which the client has connected.
Versions: v1 times of the last fetch; v2 error messages, nodes, directory ids.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.cluster_views import brokers_for
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.core.cluster.records import CONTROLLER_EPOCH_KEY
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
_NONE: Final = -1
"""An offset or time that is not known."""


def handle(
    services: Services, context: RequestContext, request: DescribeQuorumRequest
) -> Work[DescribeQuorumResponse]:
    """Describe the metadata quorum: the controller, and the brokers that may replace it."""
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
    membership, controller = services.membership, services.metadata.image.get(CONTROLLER_EPOCH_KEY)
    registered = {*services.topics.states.broker_epochs, *membership.live}
    partition = DescribeQuorumResponsePartitionData(
        partition_index=0,
        leader_id=membership.controller_id,
        leader_epoch=services.replicas.registration if controller is None else controller.version,
        high_watermark=_NONE,
        current_voters=[
            _voter(broker_id, context.now_ms if broker_id in membership.live else _NONE)
            for broker_id in sorted(registered)
        ],
    )
    response = DescribeQuorumResponse(
        topics=[DescribeQuorumResponseTopicData(topic_name=METADATA_TOPIC, partitions=[partition])]
    )
    if context.header.api_version >= NODES_VERSION:
        name = context.session.listener
        for node_id, each in brokers_for(services, context).items():
            listener = Listener(name=name, host=each.host, port=each.port)
            response.nodes.append(Node(node_id=node_id, listeners=[listener]))
    return response


def _voter(broker_id: int, seen_ms: int) -> ReplicaState:
    return ReplicaState(
        replica_id=broker_id,
        replica_directory_id=ZERO_UUID,
        log_end_offset=_NONE,
        last_fetch_timestamp=seen_ms,
        last_caught_up_timestamp=seen_ms,
    )
