"""The checks and filters that the handlers of the ACL APIs share."""

from __future__ import annotations

from headrace.broker.access.authorizer import Authorizer
from headrace.errors import ApiError, ErrorCode, InvalidRequestError
from headrace.protocol.messages.delete_acls import DeleteAclsFilter
from headrace.protocol.messages.describe_acls import DescribeAclsRequest
from headrace.security.acls import AclFilter, Operation, PatternType, Permission, ResourceType


def check_is_on(authorizer: Authorizer) -> None:
    """Raise an error if no authorizer is configured, so that ACLs have no effect.

    Raises:
        ApiError: SECURITY_DISABLED.
    """
    if not authorizer.active:
        raise ApiError.for_code(
            ErrorCode.SECURITY_DISABLED,
            "no authorizer is configured: start the broker with authorizer.class.name=headrace",
        )


def filter_of(wanted: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
    """Return the filter of a request.

    Raises:
        ApiError: INVALID_REQUEST: the filter has an unknown number.
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
        raise InvalidRequestError("the filter has an unknown number")
    return acl_filter
