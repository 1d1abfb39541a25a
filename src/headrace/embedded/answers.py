"""The outcomes that clients in the process of an embedded broker get for their requests."""

from __future__ import annotations

from typing import Any, Final

from headrace.broker.context import CloseConnection
from headrace.clients.drivers.common import report
from headrace.errors import ApiError, ErrorCode, HeadraceError, TransportError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.messages.fetch import FetchResponse
from headrace.types import FileRange

PEER: Final = "the embedded broker"
"""The name of the broker in the messages of errors."""


def failure(request: Message, error: Exception) -> HeadraceError:
    """Return the error that a client gets when the broker has raised an exception. Unexpected ones are reported."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, CloseConnection):
        return TransportError(f"{PEER} closed the connection: {error.reason}")
    report(error)
    name = ApiKey(request.API_KEY).name
    return ApiError.for_code(ErrorCode.UNKNOWN_SERVER_ERROR, f"{name} failed: {error!r}")


def with_records_in_memory(response: Message) -> Any:
    """Return a response whose records are bytes. File ranges are read here: clients do not read the broker's files."""
    if isinstance(response, FetchResponse):
        for topic in response.responses:
            for partition in topic.partitions:
                if isinstance(partition.records, FileRange):
                    partition.records = partition.records.read()
    return response
