"""AlterPartitionReassignments (API key 45), versions 0-1.

Behaviour: The replicas of a partition stay the same. A reassignment to its present replicas, in their order, succeeds
and changes nothing. Any other list of replicas is INVALID_REPLICA_ASSIGNMENT. No reassignment is ever in progress, so a
cancellation is NO_REASSIGNMENT_IN_PROGRESS. Each partition has a result of its own.
Versions: v1 whether the number of replicas may change; this broker ignores the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.ALTER_PARTITION_REASSIGNMENTS
VERSIONS: Final = VersionRange(0, 1)

_PARTITION_COST: Final = ENTRY_COST // 4
_Outcome = tuple[ErrorCode, str | None]


def handle(
    services: Services, context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> Work[AlterPartitionReassignmentsResponse]:
    """Return for each partition whether its replicas are the requested ones."""
    response = AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change
    )
    refused: _Outcome | None = None
    if not services.permissions.allows(context, Operation.ALTER, ResourceType.CLUSTER):
        code = response.error_code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        refused = code, code.description
    for topic in request.topics:
        result = ReassignableTopicResponse(name=topic.name)
        for wanted in topic.partitions:
            index = wanted.partition_index
            code, message = refused or _outcome(services, topic.name, index, wanted.replicas)
            result.partitions.append(
                ReassignablePartitionResponse(
                    partition_index=index, error_code=code, error_message=message
                )
            )
            yield _PARTITION_COST
        response.responses.append(result)
        yield _PARTITION_COST
    return response


def _outcome(services: Services, name: str, index: int, replicas: Sequence[int] | None) -> _Outcome:
    topic = services.topics.get(name)
    if topic is None or not 0 <= index < topic.partitions_count:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return code, code.description
    if replicas is None:
        code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
        return code, code.description
    present = list(topic.replicas[index])
    if list(replicas) == present:
        return ErrorCode.NONE, None
    problem = (
        f"the replicas of a partition cannot be changed: {name}-{index} has the replicas {present}"
    )
    return ErrorCode.INVALID_REPLICA_ASSIGNMENT, problem
