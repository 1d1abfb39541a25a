"""DescribeUserScramCredentials (API key 50), versions 0-0.

Behaviour: The response has the mechanisms and iterations of the named users, or of all users if the request names none.
Salts and keys are never returned. A user without credentials is RESOURCE_NOT_FOUND. A user that the request names twice
is DUPLICATE_RESOURCE.
Versions: v0 flexible.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType

API_KEY: Final = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
VERSIONS: Final = VersionRange(0, 0)


def handle(
    services: Services,
    context: RequestContext,
    request: DescribeUserScramCredentialsRequest,
) -> Work[DescribeUserScramCredentialsResponse]:
    """Describe the credentials of users, without salts and keys."""
    try:
        services.permissions.authorize(context, Operation.DESCRIBE, ResourceType.CLUSTER)
    except ApiError as error:
        return DescribeUserScramCredentialsResponse(
            error_code=error.code, error_message=error.message
        )
    found: dict[str, list[CredentialInfo]] = {}
    for (user, mechanism), credential in list(services.credentials):
        info = CredentialInfo(mechanism=mechanism, iterations=credential.iterations)
        found.setdefault(user, []).append(info)
        yield ENTRY_COST // 5
    for infos in found.values():
        infos.sort(key=lambda info: info.mechanism)
    yield len(found) * ENTRY_COST // 5
    counts = Counter([user.name for user in request.users or ()] or sorted(found))
    results = []
    for user, count in counts.items():
        results.append(_asked(user, count, found.get(user)))
        yield ENTRY_COST // 5
    return DescribeUserScramCredentialsResponse(
        error_code=ErrorCode.NONE, error_message="", results=results
    )


def _asked(
    user: str, count: int, infos: list[CredentialInfo] | None
) -> DescribeUserScramCredentialsResult:
    if count > 1:
        return _result(
            user,
            ErrorCode.DUPLICATE_RESOURCE,
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
        )
    if infos is None:
        return _result(
            user,
            ErrorCode.RESOURCE_NOT_FOUND,
            f"Attempt to describe a user credential that does not exist: {user}",
        )
    return _result(user, credential_infos=infos)


def _result(
    user: str,
    code: ErrorCode = ErrorCode.NONE,
    message: str = "",
    credential_infos: list[CredentialInfo] | None = None,
) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(
        user=user,
        error_code=code,
        error_message=message,
        credential_infos=credential_infos or [],
    )
