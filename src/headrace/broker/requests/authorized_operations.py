"""The authorized operations that some responses report.

Each number is a set of operations, one bit each at the place that Kafka's `AclOperation` gives it. Tools hide what is
not in the set, and an empty or unknown one hides everything.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
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
    services: Services, context: RequestContext, resource_type: ResourceType, name: str
) -> int:
    """Return the set of operations on a resource for which the client is authorized."""
    return sum(
        1 << operation
        for operation in _OPERATIONS[resource_type]
        if services.permissions.allows(context, operation, resource_type, name, quietly=True)
    )


def cluster_operations(services: Services, context: RequestContext) -> int:
    """Return the authorized operations on the cluster; the empty set if the client may not describe the cluster."""
    if not services.permissions.allows(context, Operation.DESCRIBE, ResourceType.CLUSTER):
        return 0
    return authorized_operations(services, context, ResourceType.CLUSTER, CLUSTER_NAME)
