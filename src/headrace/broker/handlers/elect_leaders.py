"""ElectLeaders (API key 43), versions 0-2.

Behaviour: Each partition has one replica, so its leader is the preferred one: ELECTION_NOT_NEEDED. A partition whose
log directory has failed or is missing has no replica to elect. Its error is PREFERRED_LEADER_NOT_AVAILABLE, or
ELIGIBLE_LEADERS_NOT_AVAILABLE for an unclean election. A request that names no partitions means all. As in Kafka its
response leaves out the partitions that need no election.
Versions: v1 type of the election, top-level error code; v2 flexible.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import (
    ApiError,
    ErrorCode,
    NotLeaderOrFollowerError,
    StorageUnavailableError,
)
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.ELECT_LEADERS
VERSIONS: Final = VersionRange(0, 2)

_PARTITION_COST: Final = ENTRY_COST // 4
_NOBODY: Final = {
    0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    1: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
"""The error code for a partition without a replica in service, by the type of the election."""


def handle(
    services: Services, context: RequestContext, request: ElectLeadersRequest
) -> Work[ElectLeadersResponse]:
    """Return for each partition that it needs no election, or that it has no replica to elect."""
    refusal = ErrorCode.NONE
    if not services.permissions.allows(context, Operation.ALTER, ResourceType.CLUSTER):
        refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif request.election_type not in _NOBODY and request.topic_partitions != []:
        refusal = ErrorCode.INVALID_REQUEST
    response = ElectLeadersResponse(error_code=refusal)
    if request.topic_partitions is None:
        if refusal is ErrorCode.NONE:
            yield from _elect_all(services, request.election_type, response)
        return response
    for wanted in request.topic_partitions:
        result = ReplicaElectionResult(topic=wanted.topic)
        for index in wanted.partitions:
            code = refusal or _outcome(services, wanted.topic, index, request.election_type)
            result.partition_result.append(
                PartitionResult(partition_id=index, error_code=code, error_message=code.description)
            )
            yield _PARTITION_COST
        response.replica_election_results.append(result)
        yield _PARTITION_COST
    return response


def _elect_all(
    services: Services, election_type: int, response: ElectLeadersResponse
) -> Work[None]:
    for topic in services.topics:
        result = ReplicaElectionResult(topic=topic.name)
        code = _NOBODY[election_type]
        result.partition_result = [
            PartitionResult(partition_id=index, error_code=code, error_message=code.description)
            for index, partition in enumerate(services.partitions.of(topic))
            if partition is None and services.partitions.has_replica(topic, index)
        ]
        response.replica_election_results.append(result)
        yield _PARTITION_COST + topic.partitions_count * _PARTITION_COST // 20


def _outcome(services: Services, name: str, index: int, election_type: int) -> ErrorCode:
    try:
        services.partitions.require(name, index)
    except StorageUnavailableError:
        return _NOBODY[election_type]
    except NotLeaderOrFollowerError:
        return ErrorCode.ELECTION_NOT_NEEDED  # another broker leads the partition
    except ApiError as error:
        return error.code
    return ErrorCode.ELECTION_NOT_NEEDED
