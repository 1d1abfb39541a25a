"""DescribeUserScramCredentials and AlterUserScramCredentials: users that authenticate by SCRAM (KIP-554).

The client salts and hashes passwords here. It sends neither the password nor a value that another server would accept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.clients.flows.effects import ANY_NODE, Call, Flow, ask
from headrace.errors import ApiError, ErrorCode, ProtocolError
from headrace.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from headrace.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from headrace.security.scram import MIN_ITERATIONS, ScramMechanism, check_password
from headrace.security.unknown_users import SALT_BYTES

MECHANISMS: Final = tuple(mechanism.sasl_name for mechanism in ScramMechanism)
"""The mechanisms for which a new user gets credentials by default: all of them, so that any client can use one."""
DEFAULT_ITERATIONS: Final = MIN_ITERATIONS
"""The number of hash iterations by default, as in Kafka."""


@dataclass(frozen=True, slots=True)
class UserDescription:
    """A user with SCRAM credentials."""

    name: str
    iterations: dict[str, int]
    """The hash iterations of each mechanism with which the user can authenticate."""


@dataclass(frozen=True, slots=True)
class SaltedPassword:
    """A salted and hashed password for one mechanism, as it is sent to a broker."""

    mechanism: ScramMechanism
    iterations: int
    salt: bytes = field(repr=False)
    value: bytes = field(repr=False)


def salt_password(
    password: str,
    mechanisms: Iterable[str],
    iterations: int,
    random_bytes: Callable[[int], bytes],
) -> list[SaltedPassword]:
    """Salt and hash a password for each mechanism.

    Args:
        password: The password.
        mechanisms: The SASL names of the mechanisms.
        iterations: The number of hash iterations.
        random_bytes: Returns a number of unpredictable bytes, for the salts.

    Raises:
        SaslError: A mechanism is unknown, or a broker would refuse the iterations or the password.
    """
    check_password(password, iterations)
    salted = []
    for mechanism in map(ScramMechanism.named, dict.fromkeys(mechanisms)):
        salt = random_bytes(SALT_BYTES)
        value = mechanism.salted(password, salt, iterations)
        salted.append(SaltedPassword(mechanism, iterations, salt, value))
    return salted


def describe_users(
    names: Sequence[str] | None,
) -> Flow[dict[str, UserDescription | ApiError]]:
    """Return users with the mechanisms by which they can authenticate.

    Args:
        names: The names of the users; None is all users.

    Returns:
        Each user by name, or RESOURCE_NOT_FOUND.

    Raises:
        ApiError: The broker refuses the request.
    """
    request = DescribeUserScramCredentialsRequest(
        users=None if names is None else [UserName(name=name) for name in dict.fromkeys(names)]
    )
    call = Call(request=request, node=ANY_NODE)
    response = yield from ask(call, DescribeUserScramCredentialsResponse)
    if refused := _error(response.error_code, response.error_message):
        raise refused
    described = {
        result.user: _error(result.error_code, result.error_message)
        or UserDescription(
            result.user,
            {
                _mechanism(info.mechanism): info.iterations
                for info in sorted(result.credential_infos, key=lambda info: info.mechanism)
            },
        )
        for result in sorted(response.results, key=lambda result: result.user)
    }
    if missing := [name for name in names or () if name not in described]:
        raise ProtocolError(f"the response has no result for the requested user {missing[0]!r}")
    return described


def _alter(name: str, change: ScramCredentialDeletion | ScramCredentialUpsertion) -> Flow[None]:
    """Change one credential. Apache Kafka refuses two changes of one user in the same request.

    Raises:
        ApiError: The credential was not changed.
    """
    is_deletion = isinstance(change, ScramCredentialDeletion)
    request = AlterUserScramCredentialsRequest(
        deletions=[change] if isinstance(change, ScramCredentialDeletion) else [],
        upsertions=[change] if isinstance(change, ScramCredentialUpsertion) else [],
    )
    call = Call(request=request, node=ANY_NODE)
    response = yield from ask(call, AlterUserScramCredentialsResponse)
    if [result.user for result in response.results] != [name]:
        raise ProtocolError(
            f"the request changes user {name!r}, the response has no result for this user"
        )
    error = _error(response.results[0].error_code, response.results[0].error_message)
    if error is not None and not (is_deletion and error.code is ErrorCode.RESOURCE_NOT_FOUND):
        raise error


def _forget(name: str, mechanisms: Iterable[str]) -> Flow[None]:
    for mechanism in mechanisms:
        number = ScramMechanism.named(mechanism)
        yield from _alter(name, ScramCredentialDeletion(name=name, mechanism=number))


def set_user(name: str, passwords: Sequence[SaltedPassword]) -> Flow[None]:
    """Set the password of a user, who need not exist. An earlier password is no longer valid for any mechanism.

    Raises:
        ApiError: The password was not set, or not for every mechanism.
    """
    new = {each.mechanism.sasl_name for each in passwords}
    known = (yield from describe_users([name]))[name]
    if isinstance(known, ApiError) and known.code is not ErrorCode.RESOURCE_NOT_FOUND:
        raise known
    earlier = known.iterations if isinstance(known, UserDescription) else {}
    # Old credentials are deleted first: if this fails half way, no credential is valid that was not valid before.
    yield from _forget(name, [each for each in earlier if each not in new])
    for each in passwords:
        upsertion = ScramCredentialUpsertion(
            name=name,
            mechanism=each.mechanism,
            iterations=each.iterations,
            salt=each.salt,
            salted_password=each.value,
        )
        yield from _alter(name, upsertion)


def delete_user(name: str) -> Flow[None]:
    """Delete all credentials of a user.

    Raises:
        ApiError: RESOURCE_NOT_FOUND, if the user has no credentials.
    """
    known = (yield from describe_users([name]))[name]
    if isinstance(known, ApiError):
        raise known
    yield from _forget(name, known.iterations)


def _mechanism(number: int) -> str:
    try:
        return ScramMechanism(number).sasl_name
    except ValueError:
        return f"mechanism {number}"


def _error(code: int, message: str | None) -> ApiError | None:
    return ApiError.for_code(code, message or ErrorCode(code).description) if code else None
