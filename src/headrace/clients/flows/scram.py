"""DescribeUserScramCredentials and AlterUserScramCredentials: users who prove a password by SCRAM (KIP-554).

A password never leaves the client, nor does anything that would do in its place with another server: it is salted and
hashed here.
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
        mechanisms: Their SASL names.
        iterations: How often it is hashed.
        random_bytes: Returns so many bytes that nobody can foresee, for the salts.

    Raises:
        SaslError: A mechanism is unknown, or iterations or password are none that a broker would take.
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
    """Find users and the mechanisms by which they can authenticate.

    Args:
        names: Whom; None finds all.

    Returns:
        Each user, or RESOURCE_NOT_FOUND, by name.

    Raises:
        ApiError: The broker refuses to tell.
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
        raise ProtocolError(f"user {missing[0]!r} was asked for, and is not in the answer")
    return described


def _alter(name: str, change: ScramCredentialDeletion | ScramCredentialUpsertion) -> Flow[None]:
    """Change one credential: Apache Kafka takes no two changes of a user in one request.

    Raises:
        ApiError: It was not changed, and why.
    """
    is_deletion = isinstance(change, ScramCredentialDeletion)
    request = AlterUserScramCredentialsRequest(
        deletions=[change] if isinstance(change, ScramCredentialDeletion) else [],
        upsertions=[change] if isinstance(change, ScramCredentialUpsertion) else [],
    )
    call = Call(request=request, node=ANY_NODE)
    response = yield from ask(call, AlterUserScramCredentialsResponse)
    if [result.user for result in response.results] != [name]:
        raise ProtocolError(f"user {name!r} was to be changed, others are answered")
    error = _error(response.results[0].error_code, response.results[0].error_message)
    if error is not None and not (is_deletion and error.code is ErrorCode.RESOURCE_NOT_FOUND):
        raise error


def _forget(name: str, mechanisms: Iterable[str]) -> Flow[None]:
    for mechanism in mechanisms:
        number = ScramMechanism.named(mechanism)
        yield from _alter(name, ScramCredentialDeletion(name=name, mechanism=number))


def set_user(name: str, passwords: Sequence[SaltedPassword]) -> Flow[None]:
    """Give a user a password, whether there is such a user or not; an earlier one is void for every mechanism.

    Raises:
        ApiError: It was not done, or not for every mechanism, and why.
    """
    new = {each.mechanism.sasl_name for each in passwords}
    known = (yield from describe_users([name]))[name]
    if isinstance(known, ApiError) and known.code is not ErrorCode.RESOURCE_NOT_FOUND:
        raise known
    earlier = known.iterations if isinstance(known, UserDescription) else {}
    # What is void goes first: should this be the end, no more than was there before counts, and perhaps less.
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
        ApiError: RESOURCE_NOT_FOUND: there are none.
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
