"""Responses of a coordinator that wait for the high watermark, and the errors that clients get in their place."""

from __future__ import annotations

from collections.abc import Callable

from headrace.errors import ErrorCode


class Parked:
    """A response that waits for the high watermark to reach `end_offset`, or for its deadline."""

    __slots__ = ("_resolve", "deadline_ms", "end_offset")

    def __init__(
        self, end_offset: int, deadline_ms: int, resolve: Callable[[ErrorCode], None]
    ) -> None:
        self.end_offset = end_offset
        self.deadline_ms = deadline_ms
        self._resolve: Callable[[ErrorCode], None] | None = resolve

    def resolve(self, error: ErrorCode) -> None:
        """Send the response, or the error if it is not NONE, unless the response was given up."""
        if self._resolve is not None:
            self._resolve(error)

    def give_up(self) -> None:
        """Drop the response, because its client no longer waits."""
        self._resolve = None


APPEND_ERRORS: dict[ErrorCode, ErrorCode] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""The error for a client of the coordinator, by the error of the append to the internal topic."""
