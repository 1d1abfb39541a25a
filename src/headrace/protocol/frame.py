"""The frames of requests and responses: a four-byte length, a header, the message.

The version of the header follows from the message: in flexible versions the header ends with tagged fields. There are
two exceptions. The client id is never compact. The ApiVersions response has the oldest header in every version, because
a client reads it before it knows the versions of the broker.
"""

from __future__ import annotations

from importlib import import_module
from struct import Struct
from struct import error as StructError  # noqa: N812 - the class's name says too little
from typing import NamedTuple, TypeVar

from headrace.errors import ProtocolError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message, skip_tags
from headrace.protocol.messages import API_MODULES
from headrace.protocol.pieces import Pieces, encode_in_pieces
from headrace.types import Payload

M = TypeVar("M", bound=Message)

_LENGTH = Struct(">i")
_REQUEST_HEADER = Struct(">hhih")
_read_request_header = _REQUEST_HEADER.unpack_from
_REQUEST_PREFIX = Struct(">ihhih")
_RESPONSE_PREFIX = Struct(">ii")
_TAGGED_RESPONSE_PREFIX = Struct(">iix")
_API_VERSIONS = int(ApiKey.API_VERSIONS)
_HEADER_TAGS = 1_000
"""The most tagged fields of a header. No tagged field of headers is defined."""


class RequestHeader(NamedTuple):
    """The header of every request.

    Attributes:
        api_key: The API's number, which need not be one that `ApiKey` knows.
        api_version: The version of the request, and of its response.
        correlation_id: The number by which the client finds the request of a response.
        client_id: The name of the client; None if it sends none.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class UnsupportedVersion(ProtocolError):  # noqa: N818 - Kafka's name
    """The API or the version of a request has no message class here.

    A broker answers an ApiVersions request of an unknown version in version 0 with the error UNSUPPORTED_VERSION. After
    any other such request it closes the connection, because it does not know the format of the response.

    Attributes:
        header: The header of the request. Its client id is None if it cannot be read.
    """

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"API {header.api_key} has no version {header.api_version} here")
        self.header = header


_REQUEST_CLASSES: dict[int, type[Message]] = {}
_RESPONSE_CLASSES: dict[int, type[Message]] = {}


def request_class(api_key: int) -> type[Message] | None:
    """Return the class of an API's requests, or None when there is none."""
    return _REQUEST_CLASSES.get(api_key) or _import_class(api_key, 1, _REQUEST_CLASSES)


def response_class(api_key: int) -> type[Message] | None:
    """Return the class of an API's responses, or None when there is none."""
    return _RESPONSE_CLASSES.get(api_key) or _import_class(api_key, 2, _RESPONSE_CLASSES)


def _import_class(
    api_key: int, index: int, known: dict[int, type[Message]]
) -> type[Message] | None:
    # On first use: a client needs a handful of the modules.
    names = API_MODULES.get(api_key)
    if names is None:
        return None
    module = import_module(f"headrace.protocol.messages.{names[0]}")
    known[api_key] = getattr(module, names[index])
    return known[api_key]


def decode_request(frame: memoryview) -> tuple[RequestHeader, Message]:
    """Decode the header and the message of a request. Bytes after the message are ignored.

    Args:
        frame: The frame without its length. `records` fields of the message are views into it.

    Raises:
        UnsupportedVersion: The API or the version is unknown.
        ProtocolError: The frame is malformed.
    """
    try:
        api_key, api_version, correlation_id, length = _read_request_header(frame)
        cls = _REQUEST_CLASSES.get(api_key) or request_class(api_key)
        if cls is None or not cls.MIN_VERSION <= api_version <= cls.MAX_VERSION:
            raise UnsupportedVersion(_readable_header(frame))
        position = _REQUEST_HEADER.size
        client_id = None
        if length >= 0:
            stop = position + length
            client_id = str(frame[position:stop], "utf-8")
            position = stop
        elif length != -1:
            raise ProtocolError(f"the client id has a length of {length}")
        if api_version >= cls.FLEXIBLE_VERSION:
            tags = frame[position]
            position += 1
            if tags:
                position, _ = skip_tags(frame, position, tags, _HEADER_TAGS)
    except (StructError, IndexError) as error:
        raise ProtocolError("the request header is cut short") from error
    except UnicodeDecodeError as error:
        raise ProtocolError("the client id is not UTF-8") from error
    # If the client id is cut off, the position is past the end, and decoding fails.
    message, _ = cls.decode(frame, position, api_version)
    return RequestHeader(api_key, api_version, correlation_id, client_id), message


def _readable_header(frame: memoryview) -> RequestHeader:
    """Return the header of a request that is refused.

    The bytes after the length of the client id may have any form: the id is used only for logging.
    """
    api_key, api_version, correlation_id, length = _read_request_header(frame)
    start = _REQUEST_HEADER.size
    client_id = None
    if 0 <= length <= len(frame) - start:
        client_id = str(frame[start : start + length], "utf-8", "replace")
    return RequestHeader(api_key, api_version, correlation_id, client_id)


def encode_request(header: RequestHeader, request: Message) -> list[Payload]:
    """Return the buffers of a request, which begin with the length and the header."""
    client_id = header.client_id
    encoded = b"" if client_id is None else client_id.encode()
    prefix = (
        _REQUEST_PREFIX.pack(
            0,
            request.API_KEY,
            header.api_version,
            header.correlation_id,
            -1 if client_id is None else len(encoded),
        )
        + encoded
    )
    if header.api_version >= request.FLEXIBLE_VERSION:
        prefix += b"\x00"
    return _with_length(request.encode(header.api_version, prefix))


def encode_response(header: RequestHeader, response: Message) -> list[Payload]:
    """Return the buffers of the response to a request, which begin with the length and the header."""
    version = header.api_version
    tagged = version >= response.FLEXIBLE_VERSION and response.API_KEY != _API_VERSIONS
    layout = _TAGGED_RESPONSE_PREFIX if tagged else _RESPONSE_PREFIX
    return _with_length(response.encode(version, layout.pack(0, header.correlation_id)))


def encode_long_response(header: RequestHeader, response: Message) -> Pieces:
    """Encode a response as `encode_response` does, in several steps; see `headrace.protocol.pieces`."""
    version = header.api_version
    tagged = version >= response.FLEXIBLE_VERSION and response.API_KEY != _API_VERSIONS
    layout = _TAGGED_RESPONSE_PREFIX if tagged else _RESPONSE_PREFIX
    prefix = layout.pack(0, header.correlation_id)
    return _with_length((yield from encode_in_pieces(response, version, prefix)))


def encode_unsupported_version(header: RequestHeader, response: Message) -> list[Payload]:
    """Return the buffers of the response to an ApiVersions request of an unknown version, in version 0."""
    return encode_response(header._replace(api_version=0), response)


def _with_length(buffers: list[Payload]) -> list[Payload]:
    first = buffers[0]
    assert isinstance(first, bytearray), "a message with a prefix begins with it"
    size = len(first) if len(buffers) == 1 else sum(map(len, buffers))
    _LENGTH.pack_into(first, 0, size - _LENGTH.size)
    return buffers


def decode_response(frame: memoryview, cls: type[M], version: int) -> tuple[int, M]:
    """Decode the correlation id and the message of a response.

    Args:
        frame: The frame without its length. `records` fields of the message are views into it.
        cls: The class of the response; see `response_class`.
        version: The version of the request.

    Raises:
        ProtocolError: The frame is malformed.
    """
    correlation_id = read_correlation_id(frame)
    position = _LENGTH.size
    if version >= cls.FLEXIBLE_VERSION and cls.API_KEY != _API_VERSIONS:
        try:
            position, _ = skip_tags(frame, position + 1, frame[position], _HEADER_TAGS)
        except IndexError as error:
            raise ProtocolError("the response header is cut short") from error
    message, _ = cls.decode(frame, position, version)
    return correlation_id, message


def read_correlation_id(frame: memoryview) -> int:
    """Return the correlation id of a response, by which a client finds the request."""
    if len(frame) < _LENGTH.size:
        raise ProtocolError("the response header is cut short")
    correlation_id: int = _LENGTH.unpack_from(frame)[0]
    return correlation_id
