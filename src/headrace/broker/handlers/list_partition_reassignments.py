"""ListPartitionReassignments (API key 46), versions 0-0.

Behaviour: There is one broker, so no reassignment is ever in progress: the list is always empty.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.errors import ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.LIST_PARTITION_REASSIGNMENTS
VERSIONS: Final = VersionRange(0, 0)


def handle(
    services: Services,
    context: RequestContext,
    request: ListPartitionReassignmentsRequest,  # noqa: ARG001 - no partition is being reassigned
) -> ListPartitionReassignmentsResponse:
    """List the reassignments in progress: there are none."""
    if not services.permissions.allows(context, Operation.DESCRIBE, ResourceType.CLUSTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return ListPartitionReassignmentsResponse(error_code=code, error_message=code.description)
    return ListPartitionReassignmentsResponse()
