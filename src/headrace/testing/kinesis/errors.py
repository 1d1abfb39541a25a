"""The errors with which AWS refuses requests."""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.errors import HeadraceError

THROTTLED: Final = "ProvisionedThroughputExceededException"
_SERVER_ERRORS: Final = frozenset(
    {"InternalFailure", "InternalFailureException", "InternalServerError", "ServiceUnavailable"}
)


class AwsError(HeadraceError):
    """A refusal with the error type and the message of AWS.

    Attributes:
        kind: The error type, such as `ResourceNotFoundException`.
        message: The message of AWS.
        status: The HTTP status: 500 for errors of the service, else 400.
        extra: Further members of the response, such as the `Item` of a failed condition of DynamoDB.
    """

    def __init__(self, kind: str, message: str, extra: dict[str, object] | None = None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.status = 500 if kind in _SERVER_ERRORS else 400
        self.extra = extra or {}

    def body(self, namespace: str = "") -> bytes:
        """Return the body of the response. DynamoDB puts a namespace before the type."""
        reply = {"__type": namespace + self.kind, "message": self.message, **self.extra}
        return msgspec.json.encode(reply)


def not_found(message: str) -> AwsError:
    """Return the refusal for a resource that does not exist."""
    return AwsError("ResourceNotFoundException", message)


def in_use(message: str) -> AwsError:
    """Return the refusal for a resource that is being changed, or that exists already."""
    return AwsError("ResourceInUseException", message)


def invalid(message: str) -> AwsError:
    """Return the refusal of an argument that is well formed but not allowed."""
    return AwsError("InvalidArgumentException", message)


def malformed(value: object, member: str, constraint: str) -> AwsError:
    """Return the refusal of a member that breaks a constraint of the API model.

    Args:
        value: The value of the member.
        member: The name of the member. AWS writes it with a small first character here.
        constraint: The constraint, which follows "Member must".
    """
    shown = "null" if value is None else f"'{str(value)[:200]}'"
    where = member[0].lower() + member[1:]
    return AwsError(
        "ValidationException",
        f"1 validation error detected: Value {shown} at '{where}' failed to satisfy constraint: "
        f"Member must {constraint}",
    )
