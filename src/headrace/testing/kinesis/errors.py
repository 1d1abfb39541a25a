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
    """A refusal as AWS words it.

    Attributes:
        kind: The type, such as `ResourceNotFoundException`.
        message: What AWS says about it.
        status: The HTTP status: 500 if it is the service's own fault, else 400.
        extra: More members of the answer, such as the `Item` of DynamoDB's failed conditions.
    """

    def __init__(self, kind: str, message: str, extra: dict[str, object] | None = None) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message
        self.status = 500 if kind in _SERVER_ERRORS else 400
        self.extra = extra or {}

    def body(self, namespace: str = "") -> bytes:
        """Return the answer's body; DynamoDB puts a namespace before the type."""
        told = {"__type": namespace + self.kind, "message": self.message, **self.extra}
        return msgspec.json.encode(told)


def not_found(message: str) -> AwsError:
    """Return the refusal to find something."""
    return AwsError("ResourceNotFoundException", message)


def in_use(message: str) -> AwsError:
    """Return the refusal to change what is changing, or to create what exists."""
    return AwsError("ResourceInUseException", message)


def invalid(message: str) -> AwsError:
    """Return the refusal of an argument that is well formed and wrong."""
    return AwsError("InvalidArgumentException", message)


def malformed(value: object, member: str, constraint: str) -> AwsError:
    """Return the refusal of a member that breaks the model's constraints.

    Args:
        value: What was given.
        member: Its name, which AWS begins with a small letter here.
        constraint: What it must be.
    """
    shown = "null" if value is None else f"'{str(value)[:200]}'"
    where = member[0].lower() + member[1:]
    return AwsError(
        "ValidationException",
        f"1 validation error detected: Value {shown} at '{where}' failed to satisfy constraint: "
        f"Member must {constraint}",
    )
