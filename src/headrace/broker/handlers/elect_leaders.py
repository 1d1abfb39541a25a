"""ElectLeaders (API key 43), versions 0-2.

Behaviour: The controller elects the first replica of each partition, or, in an unclean election, a live replica of each
partition without a leader. Other brokers respond with NOT_CONTROLLER. A request that names no partitions means all. As
in Kafka its response leaves out the partitions that need no election.
A broker without a cluster has the only replica of each partition: ELECTION_NOT_NEEDED. A partition whose log directory
has failed or is missing has no replica to elect. Its error is PREFERRED_LEADER_NOT_AVAILABLE, or
ELIGIBLE_LEADERS_NOT_AVAILABLE for an unclean election.
Versions: v1 type of the election, top-level error code; v2 flexible.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.broker.cluster.requested_elections import (
    PREFERRED,
    UNCLEAN,
    elect_as_requested,
)
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
from headrace.types import TopicPartition

API_KEY: Final = ApiKey.ELECT_LEADERS
VERSIONS: Final = VersionRange(0, 2)

_PARTITION_COST: Final = ENTRY_COST // 4
_RESULT_COST: Final = _PARTITION_COST // 8
_NOBODY: Final = {
    PREFERRED: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    UNCLEAN: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}
"""The error code for a partition without a replica in service, by the type of the election."""


def handle(
    services: Services, context: RequestContext, request: ElectLeadersRequest
) -> Work[ElectLeadersResponse]:
    """Elect the leaders of partitions."""
    refusal = ErrorCode.NONE
    if not services.permissions.allows(context, Operation.ALTER, ResourceType.CLUSTER):
        refusal = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    elif request.election_type not in _NOBODY and request.topic_partitions != []:
        refusal = ErrorCode.INVALID_REQUEST
    elif services.control is not None and not services.control.is_controller:
        refusal = ErrorCode.NOT_CONTROLLER
    response = ElectLeadersResponse(error_code=refusal)
    if request.topic_partitions is None:
        if refusal is ErrorCode.NONE:
            yield from _elect_all(services, request.election_type, response)
        return response
    for wanted in request.topic_partitions:
        if refusal:
            codes = [refusal] * len(wanted.partitions)
        else:
            codes = yield from _outcomes(
                services, wanted.topic, wanted.partitions, request.election_type
            )
        result = ReplicaElectionResult(topic=wanted.topic)
        for index, code in zip(wanted.partitions, codes, strict=True):
            result.partition_result.append(_result(index, code))
            yield _RESULT_COST
        response.replica_election_results.append(result)
        yield _PARTITION_COST
    return response


def _elect_all(
    services: Services, election_type: int, response: ElectLeadersResponse
) -> Work[None]:
    for topic in services.topics:
        indexes: Sequence[int] = range(topic.partitions_count)
        if services.control is None:
            indexes = [
                index
                for index, partition in enumerate(services.partitions.of(topic))
                if partition is None and services.partitions.has_replica(topic, index)
            ]
        codes = yield from _outcomes(services, topic.name, indexes, election_type)
        result = ReplicaElectionResult(topic=topic.name)
        result.partition_result = [
            _result(index, code)
            for index, code in zip(indexes, codes, strict=True)
            if code is not ErrorCode.ELECTION_NOT_NEEDED
        ]
        response.replica_election_results.append(result)
        yield _PARTITION_COST + topic.partitions_count * _PARTITION_COST // 20


def _outcomes(
    services: Services, name: str, indexes: Sequence[int], election_type: int
) -> Work[list[ErrorCode]]:
    """Elect the leaders of partitions of a topic, and return the error code of each."""
    if services.control is None:
        codes: list[ErrorCode] = []
        for index in indexes:
            codes.append(_outcome(services, name, index, election_type))
            yield _PARTITION_COST
        return codes
    wanted = [TopicPartition(name, index) for index in indexes]
    return (yield from elect_as_requested(services.control, services.topics, wanted, election_type))


def _outcome(services: Services, name: str, index: int, election_type: int) -> ErrorCode:
    """Return the error code of a partition, without a cluster."""
    try:
        services.partitions.require(name, index)
    except StorageUnavailableError:
        return _NOBODY[election_type]
    except NotLeaderOrFollowerError:
        return ErrorCode.ELECTION_NOT_NEEDED  # another broker leads the partition
    except ApiError as error:
        return error.code
    return ErrorCode.ELECTION_NOT_NEEDED


def _result(index: int, code: ErrorCode) -> PartitionResult:
    message = code.description if code else None
    return PartitionResult(partition_id=index, error_code=code, error_message=message)
