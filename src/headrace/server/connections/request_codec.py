"""The bytes of requests and responses on a connection, including SASL tokens that have no header."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from headrace.broker.access.authentication import BEFORE_AUTHENTICATION, UNAUTHENTICATED
from headrace.broker.session import Session
from headrace.broker.waiting.steps import ENCODING_COST, Work
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.codec import Message
from headrace.protocol.frame import (
    RequestHeader,
    decode_request,
    encode_long_response,
    encode_response,
)
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.server.hub_interface import CloseConnectionError
from headrace.types import Payload

TOKEN: Final = RequestHeader(ApiKey.SASL_AUTHENTICATE, 0, 0, None)
"""The header of a frame that has none: after SaslHandshake version 0 a frame is a SASL token and nothing else."""


def decode(session: Session, frame: memoryview) -> tuple[RequestHeader, Message]:
    """Decode a request or a SASL token.

    Raises:
        CloseConnectionError: The client has not authenticated, and the request is not a part of authentication.
        ProtocolError: The request cannot be decoded.
    """
    if session.raw_tokens:
        return TOKEN, SaslAuthenticateRequest(auth_bytes=frame)
    if not session.authenticated:
        api_key = int.from_bytes(frame[:2], signed=True)
        if api_key not in BEFORE_AUTHENTICATION:
            raise CloseConnectionError(f"{api_name(api_key)}: {UNAUTHENTICATED}")
    return decode_request(frame)


def encode(header: RequestHeader, response: Any) -> Sequence[Payload]:
    """Encode a response. The response to a token without a header has no header, and is empty after a failure."""
    if header is not TOKEN:
        return encode_response(header, response)
    if response.error_code:
        return ()
    token = bytes(response.auth_bytes)
    return [len(token).to_bytes(4) + token]


def encode_in_steps(header: RequestHeader, response: Message) -> Work[Sequence[Payload]]:
    """Encode a long response in steps."""
    pieces = encode_long_response(header, response)
    while True:
        try:
            size = next(pieces)
        except StopIteration as end:
            payloads: Sequence[Payload] = end.value
            return payloads
        yield size * ENCODING_COST


def api_name(api_key: int) -> str:
    """Return the name of an API for log events."""
    try:
        return ApiKey(api_key).name
    except ValueError:
        return f"API key {api_key}"
