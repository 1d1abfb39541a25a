"""CreateAcls (API key 30), versions 1-3.

Behaviour: Each ACL is added or refused by itself. An ACL that exists already is no error. The ACLs are durable and in
force before the response is sent. Denials are never in force later than the permissions of the same request. If no
authorizer is configured, the error is SECURITY_DISABLED. INVALID_REQUEST is the error for a principal without a type,
an empty resource name, a cluster name other than kafka-cluster, and unknown numbers. When there are 10,000 ACLs,
further ones are POLICY_VIOLATION.
Versions: v1 pattern types (KIP-290); v2 flexible; v3 the resource type USER.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.access.acl_requests import check_is_on
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import Work
from headrace.errors import ApiError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsRequest,
    CreateAclsResponse,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import AclBinding, Operation, PatternType, Permission, ResourceType

API_KEY: Final = ApiKey.CREATE_ACLS
VERSIONS: Final = VersionRange(1, 3)


def handle(
    services: Services, context: RequestContext, request: CreateAclsRequest
) -> Work[CreateAclsResponse]:
    """Create the ACLs of the request."""
    try:
        services.permissions.authorize(context, Operation.ALTER, ResourceType.CLUSTER)
        check_is_on(services.authorizer)
    except ApiError as error:
        return CreateAclsResponse(results=[_result(error) for _ in request.creations])
    bindings = [_binding(creation) for creation in request.creations]
    outcomes = yield from services.authorizer.creating(bindings)
    return CreateAclsResponse(results=[_result(outcome) for outcome in outcomes])


def _binding(creation: AclCreation) -> AclBinding:
    return AclBinding(
        ResourceType(creation.resource_type),
        creation.resource_name,
        PatternType(creation.resource_pattern_type),
        creation.principal,
        creation.host,
        Operation(creation.operation),
        Permission(creation.permission_type),
    )


def _result(error: ApiError | None) -> AclCreationResult:
    if error is None:
        return AclCreationResult(error_message=None)
    return AclCreationResult(error_code=error.code, error_message=error.message)
