"""Answers that refuse a request: the response of its API, with an error code wherever one belongs.

A request that changes something is answered without being handled: the answer has a row for each row of the request.
One that only asks is handled, and every error code in its answer is overwritten.
"""

from __future__ import annotations

import typing
from functools import cache
from typing import Any, Final, TypeVar

from headrace.core.deferred import Deferred
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
    """Return the answer that refuses a request."""
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
    assert response is not None, "a request that was decoded has a response"
    answer: Reply = _mirrored(response, request, code)
    return answer


def _refused_fetch(exchange: Exchange, code: ErrorCode) -> Reply:
    """Refuse every partition; in a fetch session those that the session remembers."""
    try:
        fetch = exchange.core.services.fetch_sessions.begin(
            exchange.request, exchange.context.now_ms, exchange.context.session.principal
        )
    except ApiError:
        return exchange.proceed()  # there is no such session, and the broker says so
    refused = [
        FetchedTopic(
            topic=topic.topic,
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
    """Return a struct of a response with the names and numbers of the request's, and an error code."""
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
    """Return the request's rows that belong to a list of the response: of the same name, else the first there are."""
    same = getattr(source, name, None)
    if isinstance(same, list):
        return same
    lists = (getattr(source, each) for each in source.__slots__)
    return next((found for found in lists if isinstance(found, list) and found), [])


@cache
def _row_kinds(kind: Any) -> dict[str, Any]:
    """Return the lists of structs of a struct: the class of each one's rows."""
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
    """Return the names of all fields of a struct and of those below it."""
    names = set(kind.__slots__)
    for row in _row_kinds(kind).values():
        names |= _names_within(row)
    return frozenset(names)
