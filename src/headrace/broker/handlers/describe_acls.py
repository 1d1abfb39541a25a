"""DescribeAcls (API key 29), versions 1-3.

Behaviour: The response lists the ACLs that a filter matches, grouped by resource. A filter with the pattern type MATCH
matches all ACLs that apply to a resource of that name: its own ACLs, those of prefixes, and those of `*`. If no
authorizer is configured, the error is SECURITY_DISABLED. A filter with unknown numbers is INVALID_REQUEST.
Versions: v1 pattern types (KIP-290); v2 flexible; v3 the resource type USER.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.access.acl_requests import check_is_on, filter_of
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import ApiError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.DESCRIBE_ACLS
VERSIONS: Final = VersionRange(1, 3)


def handle(
    services: Services, context: RequestContext, request: DescribeAclsRequest
) -> Work[DescribeAclsResponse]:
    """Return the ACLs that match the filter."""
    try:
        services.permissions.authorize(context, Operation.DESCRIBE, ResourceType.CLUSTER)
        check_is_on(services.authorizer)
        wanted = filter_of(request)
    except ApiError as error:
        return DescribeAclsResponse(error_code=error.code, error_message=error.message)
    found = yield from services.authorizer.finding(wanted)
    yield len(found) * ENTRY_COST // 5
    resources: dict[tuple[int, str, int], DescribeAclsResource] = {}
    for acl in sorted(found):
        resource = resources.setdefault(
            (acl.resource_type, acl.resource_name, acl.pattern_type),
            DescribeAclsResource(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
            ),
        )
        resource.acls.append(
            AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=acl.operation,
                permission_type=acl.permission,
            )
        )
        yield ENTRY_COST // 2
    return DescribeAclsResponse(error_message=None, resources=list(resources.values()))
