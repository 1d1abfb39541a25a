"""DescribeAcls, CreateAcls and DeleteAcls: access control lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace.clients.flows.effects import ANY_NODE, Call, Flow, ask
from headrace.errors import ApiError, ErrorCode, ProtocolError
from headrace.protocol.messages.create_acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
)
from headrace.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from headrace.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from headrace.security.acls import (
    WILDCARD,
    AclBinding,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)


class Deleted(NamedTuple):
    """The result of one filter."""

    bindings: list[AclBinding]
    """The bindings that were deleted."""
    error: ApiError | None
    """The error because of which matching bindings were not deleted; None if there is none."""


def words(binding: AclBinding) -> str:
    """Return the text of a binding on one line: `ALLOW User:alice READ on TOPIC orders*`."""
    star = "*" if binding.pattern_type is PatternType.PREFIXED else ""
    host = "" if binding.host == WILDCARD else f" from {binding.host}"
    return (
        f"{binding.permission.name} {binding.principal} {binding.operation.name} on "
        f"{binding.resource_type.name} {binding.resource_name}{star}{host}"
    )


def describe_acls(which: AclFilter) -> Flow[list[AclBinding]]:
    """Return the bindings that match a filter, sorted.

    Raises:
        ApiError: SECURITY_DISABLED, if the broker has no authorizer; CLUSTER_AUTHORIZATION_FAILED.
    """
    request = DescribeAclsRequest(
        resource_type_filter=which.resource_type,
        resource_name_filter=which.resource_name,
        pattern_type_filter=which.pattern_type,
        principal_filter=which.principal,
        host_filter=which.host,
        operation=which.operation,
        permission_type=which.permission,
    )
    response = yield from ask(Call(request=request, node=ANY_NODE), DescribeAclsResponse)
    if error := _error(response.error_code, response.error_message):
        raise error
    return sorted(
        AclBinding(
            ResourceType(resource.resource_type),
            resource.resource_name,
            PatternType(resource.pattern_type),
            acl.principal,
            acl.host,
            Operation(acl.operation),
            Permission(acl.permission_type),
        )
        for resource in response.resources
        for acl in resource.acls
    )


def create_acls(bindings: Sequence[AclBinding]) -> Flow[list[ApiError | None]]:
    """Create bindings. A binding that exists already is not changed.

    Returns:
        One entry for each binding: None, or the reason why it was not created.
    """
    request = CreateAclsRequest(
        creations=[
            AclCreation(
                resource_type=each.resource_type,
                resource_name=each.resource_name,
                resource_pattern_type=each.pattern_type,
                principal=each.principal,
                host=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in bindings
        ]
    )
    response = yield from ask(Call(request=request, node=ANY_NODE), CreateAclsResponse)
    _check_count("bindings", bindings, response.results)
    return [_error(result.error_code, result.error_message) for result in response.results]


def delete_acls(filters: Sequence[AclFilter]) -> Flow[list[Deleted]]:
    """Delete all bindings that match any of the filters.

    Returns:
        The result of each filter.
    """
    request = DeleteAclsRequest(
        filters=[
            DeleteAclsFilter(
                resource_type_filter=each.resource_type,
                resource_name_filter=each.resource_name,
                pattern_type_filter=each.pattern_type,
                principal_filter=each.principal,
                host_filter=each.host,
                operation=each.operation,
                permission_type=each.permission,
            )
            for each in filters
        ]
    )
    response = yield from ask(Call(request=request, node=ANY_NODE), DeleteAclsResponse)
    _check_count("filters", filters, response.filter_results)
    return [_deleted(result) for result in response.filter_results]


def _deleted(result: DeleteAclsFilterResult) -> Deleted:
    errors = [_error(result.error_code, result.error_message)]
    errors += [_error(acl.error_code, acl.error_message) for acl in result.matching_acls]
    gone = [_binding(acl) for acl in result.matching_acls if not acl.error_code]
    return Deleted(sorted(gone), next(filter(None, errors), None))


def _binding(acl: DeleteAclsMatchingAcl) -> AclBinding:
    return AclBinding(
        ResourceType(acl.resource_type),
        acl.resource_name,
        PatternType(acl.pattern_type),
        acl.principal,
        acl.host,
        Operation(acl.operation),
        Permission(acl.permission_type),
    )


def _check_count(what: str, asked: Sequence[object], answered: Sequence[object]) -> None:
    if len(asked) != len(answered):
        raise ProtocolError(
            f"the request has {len(asked)} {what}, the response has results for {len(answered)}"
        )


def _error(code: int, message: str | None) -> ApiError | None:
    return ApiError.for_code(code, message or ErrorCode(code).description) if code else None
