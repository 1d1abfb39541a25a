"""Responses that refuse a request: a response of its API in which every error code is set.

A request that changes something is not executed: the response has one row for each row of the request. A request that
only reads is executed, and every error code in its response is overwritten.
"""

from __future__ import annotations

import typing
from functools import cache
from typing import Any, Final, TypeVar

from headrace.broker.handlers.fetch import TOPIC_IDS_VERSION
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Structure
from headrace.protocol.frame import response_class
from headrace.protocol.messages.fetch import FetchableTopicResponse as FetchedTopic
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.fetch import PartitionData as FetchedPartition
from headrace.testing.interception import Exchange, Reply

S = TypeVar("S", bound=Structure)

_ASKING: Final = frozenset({
    ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_FETCH, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS, ApiKey.API_VERSIONS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_LOG_DIRS, ApiKey.DESCRIBE_CLIENT_QUOTAS, ApiKey.DESCRIBE_CLUSTER, ApiKey.LIST_CONFIG_RESOURCES,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS,
})  # fmt: skip
_NAMES: Final = ("name", "group_id")


def refuse(exchange: Exchange, code: ErrorCode) -> Reply:
    """Return the response that refuses a request with an error code."""
    request = exchange.request
    if isinstance(request, FetchRequest):
        return _refused_fetch(exchange, code)
    if exchange.api in _ASKING:
        reply = exchange.proceed()
        if isinstance(reply, Deferred):
            return reply.map(lambda response: _overwritten(response, code))
        return None if reply is None else _overwritten(reply, code)
    if exchange.api == ApiKey.PRODUCE and request.acks == 0:
        return None
    response = response_class(request.API_KEY)
    assert response is not None, "a decoded request has a response class"
    answer: Reply = _mirrored(response, request, code)
    return answer


def _refused_fetch(exchange: Exchange, code: ErrorCode) -> Reply:
    """Refuse every partition of a fetch, in a fetch session all partitions of the session."""
    try:
        fetch = exchange.core.services.fetch_sessions.begin(
            exchange.request,
            exchange.context.now_ms,
            exchange.context.session.principal,
            uses_topic_ids=exchange.version >= TOPIC_IDS_VERSION,
        )
    except ApiError:
        return exchange.proceed()  # the broker reports that the session does not exist
    refused = [
        FetchedTopic(
            topic=topic.topic,
            topic_id=topic.topic_id,
            partitions=[
                FetchedPartition(
                    partition_index=partition.partition,
                    error_code=code,
                    high_watermark=-1,
                    records=b"",
                )
                for partition in topic.partitions
            ],
        )
        for topic in fetch.topics
    ]
    return fetch.finish(FetchResponse(responses=refused))


def _overwritten(message: S, code: ErrorCode) -> S:
    """Set every error code in a response."""
    for name in message.__slots__:
        value = getattr(message, name)
        if name == "error_code":
            setattr(message, name, code)
        elif isinstance(value, list):
            for row in value:
                if isinstance(row, Structure):
                    _overwritten(row, code)
    return message


def _mirrored(kind: Any, source: Any, code: ErrorCode) -> Any:
    """Return a struct of a response with the names and numbers of a struct in the request, and an error code."""
    made = kind()
    for name in kind.__slots__:
        row = _row_kinds(kind).get(name)
        if name == "error_code":
            made.error_code = code
        elif row is not None:
            if "error_code" in _names_within(row):
                setattr(made, name, [_row(row, each, code) for each in _rows(source, name)])
        elif hasattr(source, name) and not isinstance(getattr(source, name), list):
            setattr(made, name, getattr(source, name))
    return made


def _row(kind: Any, source: Any, code: ErrorCode) -> Any:
    if not isinstance(source, str):
        return _mirrored(kind, source, code)
    made = kind(error_code=code)
    setattr(made, next(name for name in _NAMES if name in kind.__slots__), source)
    return made


def _rows(source: Any, name: str) -> list[Any]:
    """Return the request's rows for a list of the response: the list of the same name, or the first list with rows."""
    same = getattr(source, name, None)
    if isinstance(same, list):
        return same
    lists = (getattr(source, each) for each in source.__slots__)
    return next((found for found in lists if isinstance(found, list) and found), [])


@cache
def _row_kinds(kind: Any) -> dict[str, Any]:
    """Return the fields of a struct that are lists of structs, with the class of the rows."""
    hints = typing.get_type_hints(kind)
    kinds = {}
    for name in kind.__slots__:
        inside = [hints[name], *typing.get_args(hints[name])]
        for hint in inside:
            rows = [each for each in typing.get_args(hint) if _is_struct(each)]
            if typing.get_origin(hint) is list and rows:
                kinds[name] = rows[0]
    return kinds


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Structure)


@cache
def _names_within(kind: Any) -> frozenset[str]:
    """Return the names of all fields of a struct and of the structs inside it."""
    names = set(kind.__slots__)
    for row in _row_kinds(kind).values():
        names |= _names_within(row)
    return frozenset(names)
