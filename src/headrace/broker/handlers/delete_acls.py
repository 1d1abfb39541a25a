"""DeleteAcls (API key 31), versions 1-3.

Behaviour: The request removes the ACLs that its filters match, and the response lists them. An ACL that two filters
match is listed for both. The ACLs are durably removed before the response is sent. Permissions are never removed later
than the denials of the same request. When the filters have matched 20,000 ACLs together, further filters are
POLICY_VIOLATION. If no authorizer is configured, the error is SECURITY_DISABLED. A filter with unknown numbers is
INVALID_REQUEST.
Versions: v1 pattern types (KIP-290); v2 flexible; v3 the resource type USER.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.access.acl_requests import check_is_on, filter_of
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import AclBinding, Operation, ResourceType

API_KEY: Final = ApiKey.DELETE_ACLS
VERSIONS: Final = VersionRange(1, 3)
ACLS_AN_ANSWER: Final = 20_000
"""The number of ACLs in a response from which on further filters are refused."""
_TOO_MANY: Final = ApiError(
    ErrorCode.POLICY_VIOLATION, f"one answer names at most {ACLS_AN_ANSWER} ACLs: use fewer filters"
)


def handle(
    services: Services, context: RequestContext, request: DeleteAclsRequest
) -> Work[DeleteAclsResponse]:
    """Delete the ACLs that match a filter of the request."""
    found: list[list[AclBinding] | ApiError] = []
    try:
        services.permissions.authorize(context, Operation.ALTER, ResourceType.CLUSTER)
        check_is_on(services.authorizer)
    except ApiError as error:
        found = [error for _ in request.filters]
    else:
        size = 0
        for wanted in request.filters:
            acls = _find(services, wanted) if size < ACLS_AN_ANSWER else _TOO_MANY
            found.append(acls)
            size += 0 if isinstance(acls, ApiError) else len(acls)
            yield len(services.authorizer) * ENTRY_COST // 10 + ENTRY_COST
    outcomes = yield from services.authorizer.deleting(
        acl for acls in found if not isinstance(acls, ApiError) for acl in acls
    )
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=acls.code, error_message=acls.message)
            if isinstance(acls, ApiError)
            else DeleteAclsFilterResult(
                error_message=None, matching_acls=[_gone(acl, outcomes[acl]) for acl in acls]
            )
            for acls in found
        ]
    )


def _find(services: Services, wanted: DeleteAclsFilter) -> list[AclBinding] | ApiError:
    try:
        return sorted(services.authorizer.find(filter_of(wanted)))
    except ApiError as error:
        return error


def _gone(acl: AclBinding, error: ApiError | None) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )
