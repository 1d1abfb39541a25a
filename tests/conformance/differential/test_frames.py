"""Malformed requests: for each, whether a broker closes the connection, answers, or does nothing."""

from __future__ import annotations

import struct

import pytest

from headrace.protocol.frame import RequestHeader, encode_request
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.types import FileRange
from tests.conformance.differential.pair import Pair, Scenario, Scenarios
from tests.conformance.differential.peer import CLIENT_ID, CLOSED, SILENT, Closed, Peer

pytestmark = pytest.mark.java
scenarios = Scenarios()
SHORT_S = 0.4


@scenarios.mark()
def test_headrace_treats_malformed_and_unknown_requests_as_kafka_does(
    pair: Pair, scenario: Scenario
) -> None:
    pair.compare(scenario)


def header(
    api_key: int,
    version: int,
    correlation_id: int = 7,
    client_id: bytes | None = b"c",
    *,
    tags: bytes = b"",
) -> bytes:
    name = (
        struct.pack(">h", -1)
        if client_id is None
        else struct.pack(">h", len(client_id)) + client_id
    )
    return struct.pack(">hhi", api_key, version, correlation_id) + name + tags


def send(peer: Peer, label: str, frame: bytes, *, length: int | None = None) -> None:
    """Send bytes on their own connection, and note the result: the ids of an answer, closing, or nothing."""
    connection = peer.on(label)
    connection.send_bytes(struct.pack(">i", len(frame) if length is None else length) + frame)
    try:
        answer = connection.receive_frame(SHORT_S)
        outcome = f"an answer to {struct.unpack_from('>i', answer)[0]}"
    except Closed:
        outcome = CLOSED
    except TimeoutError:
        outcome = SILENT
    peer.note(label, outcome)
    peer.drop(label)


def whole(request: MetadataRequest | ApiVersionsRequest, version: int) -> bytes:
    payloads = encode_request(RequestHeader(request.API_KEY, version, 7, CLIENT_ID), request)
    return b"".join(p for p in payloads if not isinstance(p, FileRange))[4:]


@scenarios
def odd_frames(peer: Peer) -> None:
    plain = whole(MetadataRequest(topics=[]), 5)
    flexible = whole(MetadataRequest(topics=[]), 9)
    for name, frame in (("plain", plain), ("flexible", flexible)):
        send(peer, f"{name}, whole", frame)
        send(peer, f"{name}, trailing bytes", frame + b"\0\0\0")
        send(peer, f"{name}, cut by one", frame[:-1])
        send(peer, f"{name}, only the header", frame[:20])
        send(peer, f"{name}, half of the header", frame[:6])
    send(peer, "no client id", header(3, 5, client_id=None) + b"\0\0\0\0\0")
    send(peer, "empty client id", header(3, 5, client_id=b"") + b"\0\0\0\0\0")
    send(peer, "client id is not UTF-8", header(3, 5, client_id=b"\xff\xfe") + b"\0\0\0\0\0")
    send(peer, "client id of length -2", struct.pack(">hhih", 3, 5, 7, -2) + b"\0\0\0\0\0")
    send(peer, "unknown tags in the header", header(3, 9, tags=b"\x01\x63\x02ab") + flexible[-5:])
    send(peer, "tags out of order", header(3, 9, tags=b"\x02\x63\x00\x62\x00") + flexible[-5:])
    send(peer, "the same tag twice", header(3, 9, tags=b"\x02\x63\x00\x63\x00") + flexible[-5:])
    send(peer, "a count without elements", header(3, 5) + b"\x7f\xff\xff\xff\0")
    send(peer, "a negative count", header(3, 5) + struct.pack(">i", -2) + b"\0")


@scenarios
def unknown_apis_and_versions(peer: Peer) -> None:
    for key in (-1, 4, 7, 26, 999, 32767):
        send(peer, f"API {key}", header(key, 0))
    for key, version in (
        (0, 2),
        (0, 99),
        (1, 3),
        (1, 99),
        (2, 0),
        (3, 99),
        (3, -1),
        (8, 1),
        (9, 0),
        (11, 99),
        (19, 1),
        (22, 99),
        (32, 0),
    ):
        send(peer, f"API {key} version {version}", header(key, version) + b"\0" * 20)


@scenarios
def odd_lengths(peer: Peer) -> None:
    send(peer, "length 0", b"", length=0)
    send(peer, "length -1", b"", length=-1)
    send(peer, "length 2^31-1", b"", length=2**31 - 1)
    send(peer, "length just above the limit", b"", length=104_857_601)
    send(peer, "an incomplete frame", header(3, 5), length=500)
    send(peer, "a TLS hello", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", length=0x16030102)
    send(peer, "HTTP", b"/ HTTP/1.1\r\n\r\n", length=int.from_bytes(b"GET "))


@scenarios
def versions_of_api_versions(peer: Peer) -> None:
    """ApiVersions answers in any version."""
    for version in (5, 6, 99, 32767, -1, -32768):
        label = f"version {version}"
        connection = peer.on(label)
        frame = header(18, version, client_id=b"c", tags=b"\0") + b"\x02a\x02b\0"
        connection.send_bytes(struct.pack(">i", len(frame)) + frame)
        try:
            answer = memoryview(connection.receive_frame(SHORT_S))
        except (Closed, TimeoutError) as error:
            peer.note(label, type(error).__name__)
            continue
        response, _ = ApiVersionsResponse.decode(answer, 4, 0)
        keys = {api.api_key for api in response.api_keys}
        peer.note(label, (response.error_code, 18 in keys, 3 in keys))
    for version in (0, 3):
        frame = whole(
            ApiVersionsRequest(client_software_name="a", client_software_version="1"), version
        )
        send(peer, f"version {version}, trailing bytes", frame + b"\0\0")
        send(peer, f"version {version}, cut", frame[:-1] if version else frame[:10])
