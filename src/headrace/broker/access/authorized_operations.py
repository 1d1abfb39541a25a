"""The authorized operations that some responses report.

Each number is a set of operations: the bit of an operation has the number of Kafka's `AclOperation`. Tools hide the
operations that are not in the set. An empty or unknown set hides all.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.access.permissions import Permissions
from headrace.broker.context import RequestContext
from headrace.broker.waiting.steps import ENTRY_COST
from headrace.security.acls import CLUSTER_NAME, Operation, ResourceType

NOT_ASKED: Final = -(1 << 31)
OPERATIONS_COST: Final = 20 * ENTRY_COST
"""The cost of `authorized_operations`, which makes eight decisions (unit: see `ENTRY_COST`)."""
_CONFIGS: Final = (Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
_OPERATIONS: Final = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        *_CONFIGS,
    ),
    ResourceType.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE, *_CONFIGS),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.IDEMPOTENT_WRITE,
        *_CONFIGS,
    ),
}
"""The operations of each type of resource."""


def authorized_operations(
    permissions: Permissions, context: RequestContext, resource_type: ResourceType, name: str
) -> int:
    """Return the set of operations on a resource for which the client is authorized."""
    return sum(
        1 << operation
        for operation in _OPERATIONS[resource_type]
        if permissions.allows(context, operation, resource_type, name, quietly=True)
    )


def cluster_operations(permissions: Permissions, context: RequestContext) -> int:
    """Return the authorized operations on the cluster; the empty set if the client may not describe the cluster."""
    if not permissions.allows(context, Operation.DESCRIBE, ResourceType.CLUSTER):
        return 0
    return authorized_operations(permissions, context, ResourceType.CLUSTER, CLUSTER_NAME)
