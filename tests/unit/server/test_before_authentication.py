"""Frames on connections without authentication."""

from __future__ import annotations

import struct

import pytest

from headrace.broker.session import Session
from headrace.config.listeners import SecurityProtocol
from headrace.errors import ProtocolError
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.server.connections.request_codec import decode
from headrace.server.hub_interface import CloseConnectionError

NOT_A_MESSAGE = b"\x7f\xff\xff\xff"


def frame(api_key: int, version: int, body: bytes = NOT_A_MESSAGE) -> memoryview:
    return memoryview(struct.pack(">hhih", api_key, version, 7, -1) + body)


def session(protocol: SecurityProtocol = SecurityProtocol.SASL_SSL) -> Session:
    return Session(protocol=protocol)


@pytest.mark.parametrize("api_key", [*sorted(set(ApiKey) - {17, 18, 36}), -1, 999])
def test_the_requests_of_strangers_are_not_even_read(api_key: int) -> None:
    with pytest.raises(CloseConnectionError, match="authenticate first"):
        decode(session(), frame(api_key, 0))


def test_sasl_requests_are_decoded_before_authentication() -> None:
    api_key = ApiKey.SASL_HANDSHAKE
    header, request = decode(session(), frame(api_key, 1, b"\x00\x05PLAIN"))
    assert isinstance(request, SaslHandshakeRequest)
    assert (header.api_key, request.mechanism) == (api_key, "PLAIN")
    with pytest.raises(ProtocolError):
        decode(session(), frame(api_key, 1))


def test_requests_of_authenticated_clients_are_decoded() -> None:
    known = session()
    known.authenticated = True
    for who in (known, session(SecurityProtocol.SSL)):
        with pytest.raises(ProtocolError):
            decode(who, frame(ApiKey.METADATA, 1))
