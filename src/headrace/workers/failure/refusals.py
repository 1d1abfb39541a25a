"""Errors of writes: how long a refused record is written again, and what a person can do about the error."""

from __future__ import annotations

from typing import Final

from headrace.errors import ApiError, ClosedError, ErrorCode, KinesisError, TransportError

WRITE_FOR_MS: Final = 300_000
"""The time in milliseconds for which a write is repeated after errors that may pass. Then the worker stops."""
REFUSED_FOR_MS: Final = 5_000
"""The time in milliseconds for which a write is repeated after other errors. Brokers learn of new topics and new
permissions late."""

_REMEDIES: Final = {
    ErrorCode.MESSAGE_TOO_LARGE: "Raise the topic's max.message.bytes",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Raise the topic's segment.bytes",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
        "Grant the worker's user Write and Create on the topic (headrace acl create --producer)"
    ),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Grant the worker's user Create, or create the topic",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "Choose another topic name",
    ErrorCode.INVALID_PARTITIONS: "Create the topic by hand",
    ErrorCode.INVALID_REPLICATION_FACTOR: "Create the topic by hand, or start more brokers",
    ErrorCode.POLICY_VIOLATION: "Create the topic by hand, as the cluster's policy requires",
}


def may_pass(error: BaseException) -> bool:
    """Whether the same write may succeed later without a change by a person."""
    if isinstance(error, ApiError):
        return error.retriable
    return isinstance(error, TransportError | KinesisError | ClosedError)


def is_over(error: BaseException, since_ms: int, now_ms: int) -> bool:
    """Whether a write that fails since `since_ms`, in milliseconds since 1970, is repeated no longer."""
    return now_ms - since_ms > (WRITE_FOR_MS if may_pass(error) else REFUSED_FOR_MS)


def remedy(error: BaseException) -> str:
    """Return an instruction for a person, so that the write can succeed."""
    code = error.code if isinstance(error, ApiError) else None
    return _REMEDIES.get(code, "Check the topic and its broker") if code else "Check the brokers"
