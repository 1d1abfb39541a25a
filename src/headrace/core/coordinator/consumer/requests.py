"""Validation of ConsumerGroupHeartbeat requests."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sized
from typing import Final

from headrace.core.coordinator.state.consumer_group import LEFT_STATIC_EPOCH
from headrace.core.coordinator.state.consumer_records import Partitions
from headrace.errors import ApiError, ErrorCode, InvalidRequestError
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

_CLIENTS_NAME_THEMSELVES_VERSION: Final = 1
_MAX_STORED_BYTES: Final = 32_767
REGEXES_LIMIT: Final = 100
"""The largest number of different regular expressions that the members of a group may have."""


def check_request(
    request: ConsumerGroupHeartbeatRequest, version: int, assignors: Container[str]
) -> None:
    """Refuse a request that is invalid for every group.

    Raises:
        ApiError: INVALID_REQUEST or UNSUPPORTED_ASSIGNOR, with the reason.
    """
    _check_texts(request, version)
    if request.member_epoch == 0:
        _check_first(request)
    elif request.member_epoch < LEFT_STATIC_EPOCH:
        raise InvalidRequestError(f"MemberEpoch {request.member_epoch} is invalid.")
    elif request.member_epoch == LEFT_STATIC_EPOCH and request.instance_id is None:
        raise InvalidRequestError("InstanceId can't be null.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        names = ", ".join(assignors) if isinstance(assignors, Iterable) else ""
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. Supported assignors: {names}.",
        )


def _check_texts(request: ConsumerGroupHeartbeatRequest, version: int) -> None:
    for name in ("group_id", "instance_id", "rack_id"):
        if getattr(request, name) is not None and not getattr(request, name).strip():
            raise InvalidRequestError(f"{_spelled(name)} can't be empty.")
    named = request.member_epoch != 0 or version >= _CLIENTS_NAME_THEMSELVES_VERSION
    if named and not request.member_id.strip():
        raise InvalidRequestError("MemberId can't be empty.")
    for name in ("member_id", "subscribed_topic_regex"):
        if len((getattr(request, name) or "").encode()) > _MAX_STORED_BYTES:
            raise InvalidRequestError(f"{_spelled(name)} is too long.")


def _check_first(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise InvalidRequestError("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise InvalidRequestError("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and not request.subscribed_topic_regex:
        raise InvalidRequestError(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        )


def check_regexes_count(regexes: Sized) -> None:
    """Refuse more regular expressions than a group may have, because all are evaluated when topics change.

    Raises:
        ApiError: INVALID_REGULAR_EXPRESSION.
    """
    if len(regexes) > REGEXES_LIMIT:
        raise ApiError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"The members of the group have {REGEXES_LIMIT} different regular expressions already.",
        )


def is_full(request: ConsumerGroupHeartbeatRequest) -> bool:
    """Return whether a request has all fields, so that the response must have the assignment."""
    subscribed = (request.subscribed_topic_names, request.subscribed_topic_regex) != (None, None)
    return request.member_epoch == 0 or (
        request.rebalance_timeout_ms != -1 and subscribed and request.topic_partitions is not None
    )


def owned_partitions(request: ConsumerGroupHeartbeatRequest) -> Partitions | None:
    """Return the partitions that a member reports as owned, None if the request has no such field."""
    if request.topic_partitions is None:
        return None
    return frozenset(
        (bytes(topic.topic_id), index)
        for topic in request.topic_partitions
        for index in topic.partitions
    )


def _spelled(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
