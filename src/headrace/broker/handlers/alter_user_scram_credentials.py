"""AlterUserScramCredentials (API key 51), versions 0-0.

Behaviour:
* The request stores and deletes credentials. The client sends the salted password; the broker stores only the keys that
  it derives from the salted password.
* The salted password may have any length but zero, as in Kafka: a client whose salted password results in the same keys
  can log in.
* Each change is made by itself. It is durable before the response is sent, and applies to the next authentication.
* Authenticated connections stay open until their session has to be renewed (connections.max.reauth.ms).
* A user that occurs twice in one request, even with two mechanisms, is DUPLICATE_RESOURCE. The deletion of credentials
  that do not exist is RESOURCE_NOT_FOUND. An unknown mechanism is UNSUPPORTED_SASL_MECHANISM.
* UNACCEPTABLE_CREDENTIAL is the error for fewer than 4096 or more than 16384 iterations, for a name that is empty or
  longer than 450 characters in percent-encoding, for a salt that is empty or longer than 1024 bytes, and for an empty
  salted password.
Versions: v0 flexible.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

from headrace.broker.access.credentials import CREDENTIALS_LIMIT, Credential, user_name_fits
from headrace.broker.context import RequestContext
from headrace.broker.services import Services
from headrace.broker.waiting.steps import CREATION_COST, ENTRY_COST, Work
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.versions import VersionRange
from headrace.security.acls import Operation, ResourceType
from headrace.security.scram import (
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
    credential_of_salted,
)

API_KEY: Final = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
VERSIONS: Final = VersionRange(0, 0)
_SALT_BYTES_LIMIT: Final = 1024

_Change = ScramCredentialDeletion | ScramCredentialUpsertion


def handle(
    services: Services,
    context: RequestContext,
    request: AlterUserScramCredentialsRequest,
) -> Work[AlterUserScramCredentialsResponse]:
    """Change the credentials of every user."""
    by_user: dict[str, list[_Change]] = {}
    changes: Iterator[_Change] = chain(request.deletions, request.upsertions)
    for change in changes:
        by_user.setdefault(change.name, []).append(change)
    results = []
    for number, (user, wanted) in enumerate(by_user.items()):
        code, message = ErrorCode.NONE, None
        try:
            services.permissions.authorize(context, Operation.ALTER, ResourceType.CLUSTER)
            _check_request(services, number, wanted)
            yield from _alter(services, wanted[0])
        except ApiError as error:
            code, message = error.code, error.message
        results.append(
            AlterUserScramCredentialsResult(user=user, error_code=code, error_message=message)
        )
        yield CREATION_COST if code is ErrorCode.NONE else ENTRY_COST
    return AlterUserScramCredentialsResponse(results=results)


def _check_request(services: Services, number: int, wanted: list[_Change]) -> None:
    if number >= services.settings.config.max_topics_per_request:
        raise ApiError(ErrorCode.POLICY_VIOLATION, "too many users in one request")
    if len(wanted) > 1:
        raise ApiError(
            ErrorCode.DUPLICATE_RESOURCE,
            "A user credential cannot be altered twice in the same request",
        )


def _alter(services: Services, change: _Change) -> Work[None]:
    if not user_name_fits(change.name):
        what = "The name of the user is too long" if change.name else "Username must not be empty"
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, what)
    whose = Credential(change.name, _mechanism(change.mechanism))
    known, credential = whose in services.credentials, None
    if isinstance(change, ScramCredentialUpsertion):
        credential = _credential(change, whose.mechanism)
        if not known and len(services.credentials) >= CREDENTIALS_LIMIT:
            raise ApiError(
                ErrorCode.POLICY_VIOLATION, f"{CREDENTIALS_LIMIT} credentials are stored already"
            )
    elif not known:
        raise ApiError(
            ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"
        )
    yield from services.credentials.change(whose, credential)


def _mechanism(number: int) -> ScramMechanism:
    try:
        return ScramMechanism(number)
    except ValueError:
        raise ApiError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism") from None


def _credential(change: ScramCredentialUpsertion, mechanism: ScramMechanism) -> ScramCredential:
    salt, salted = bytes(change.salt), bytes(change.salted_password)
    problem = ""
    if change.iterations < MIN_ITERATIONS:
        problem = "Too few iterations"
    elif change.iterations > MAX_ITERATIONS:
        problem = "Too many iterations"
    elif not 0 < len(salt) <= _SALT_BYTES_LIMIT:
        problem = "The salt is empty or too long"
    elif not salted:
        problem = "The salted password is empty"
    if problem:
        raise ApiError(ErrorCode.UNACCEPTABLE_CREDENTIAL, problem)
    return credential_of_salted(salted, mechanism, change.iterations, salt)
