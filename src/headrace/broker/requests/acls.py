"""What the handlers of the APIs of ACLs share."""

from __future__ import annotations

from headrace.broker.access.authorizer import Authorizer
from headrace.errors import ApiError, ErrorCode, InvalidRequestError
from headrace.protocol.messages.delete_acls import DeleteAclsFilter
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from headrace.security.acls import AclFilter, Operation, PatternType, Permission, ResourceType


def check_is_on(authorizer: Authorizer) -> None:
    """Refuse to speak of ACLs that do not count.

    Raises:
        ApiError: SECURITY_DISABLED.
    """
    if not authorizer.active:
        raise ApiError.for_code(
            ErrorCode.SECURITY_DISABLED,
            "no authorizer is configured: start the broker with authorizer.class.name=headrace",
        )


def filter_of(wanted: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Read a filter of a request.

    Raises:
        ApiError: INVALID_REQUEST: it asks for something that nothing is.
    """
    acl_filter = AclFilter(
        ResourceType(wanted.resource_type_filter),
        wanted.resource_name_filter,
        PatternType(wanted.pattern_type_filter),
        wanted.principal_filter,
        wanted.host_filter,
        Operation(wanted.operation),
        Permission(wanted.permission_type),
    )
    if acl_filter.is_unknown:
        raise InvalidRequestError("the filter holds a number that has no meaning here")
    return acl_filter
