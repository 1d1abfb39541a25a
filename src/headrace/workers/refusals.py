"""The reasons why a record could not be written: whether a retry can help, and what to do otherwise."""

from __future__ import annotations

from typing import Final

from headrace.errors import ApiError, ClosedError, ErrorCode, KinesisError, TransportError

WRITE_FOR_MS: Final = 300_000
"""For how long a record is written again that no broker takes, before the worker stops."""
REFUSED_FOR_MS: Final = 5_000
"""For how long it is where the broker's reason is one that stays: a new topic or a grant needs a moment to be known."""

_REMEDIES: Final = {
    ErrorCode.MESSAGE_TOO_LARGE: "Raise the topic's max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Raise the topic's segment.bytes",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "Grant the worker's user Write and Create on the topic (headrace acl create --producer)"
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Grant the worker's user Create, or create the topic",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "Name another topic",
    ErrorCode.INVALID_PARTITIONS: "Create the topic by hand",
    ErrorCode.INVALID_REPLICATION_FACTOR: "Create the topic by hand, or start more brokers",
    ErrorCode.POLICY_VIOLATION: "Create the topic by hand, as the cluster's policy asks for",
}


def passes(error: BaseException) -> bool:
    """Whether the same may succeed when it is tried again."""
    if isinstance(error, ApiError):
        return error.retriable
    return isinstance(error, TransportError | KinesisError | ClosedError)


def is_over(error: BaseException, since_ms: int, now_ms: int) -> bool:
    """Whether a record that was first refused at a time is not to be written again."""
    return now_ms - since_ms > (WRITE_FOR_MS if passes(error) else REFUSED_FOR_MS)


def remedy(error: BaseException) -> str:
    """Return what to do so that it succeeds."""
    code = error.code if isinstance(error, ApiError) else None
    return _REMEDIES.get(code, "See to the topic and its broker") if code else "See to the brokers"
