"""Requests that a server with SASL receives before authentication, and the handshakes of old clients."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.frame import RequestHeader
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.security.mechanisms import SaslClient
from headrace.security.oauthbearer import OAuthBearerClient
from headrace.security.plain import PlainClient
from headrace.security.scram import ScramClient, ScramMechanism
from tests.conformance.server.wire import WireClient, encoded
from tests.fixtures.sasl_server import PASSWORDS, SaslServer

PASSWORD = PASSWORDS["alice"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslServer]:
    server = SaslServer(
        tmp_path_factory.mktemp("unknown"), connection_failed_authentication_delay_ms="300"
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(server: SaslServer) -> Iterator[WireClient]:
    host, port = server.sasl.split(":")
    with WireClient((host, int(port))) as client:
        yield client


def handshake(client: WireClient, mechanism: str, version: int = 1) -> None:
    assert client.request(SaslHandshakeRequest(mechanism=mechanism), version).error_code == 0


def token(client: WireClient, content: bytes):
    return client.request(SaslAuthenticateRequest(auth_bytes=content), 2)


def test_a_request_before_authentication_closes(client):
    client.send(MetadataRequest(topics=None), 9)
    assert client.closed_by_server()


def test_api_versions_is_answered_without_authentication(client):
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    assert client.request(request, 3).error_code == 0


@pytest.mark.parametrize("size", [600_000, 100_000_000, -1, 2_000_000_000])
def test_a_large_frame_closes_before_it_has_come(client, size):
    client.sock.sendall(struct.pack(">ihh", size, 0, 9))
    assert client.closed_by_server()


def test_a_large_frame_is_fine_later(client):
    handshake(client, "PLAIN")
    assert token(client, PlainClient("alice", PASSWORD).first()).error_code == 0
    client.sock.sendall(struct.pack(">ihhih", 600_000, 18, 2, 7, -1) + bytes(600_000 - 10))
    client.receive_frame()
    client.ping()


def test_requests_sent_before_authentication_wait_for_its_end(client):
    """The requests are sent in one piece. Each is handled after the answer to the one before it, so all are allowed."""
    exchange = [
        (SaslHandshakeRequest(mechanism="PLAIN"), 1),
        (SaslAuthenticateRequest(auth_bytes=PlainClient("alice", PASSWORD).first()), 2),
        (MetadataRequest(topics=[]), 9),
    ]
    frames = [
        encoded(RequestHeader(request.API_KEY, version, number, "x"), request)
        for number, (request, version) in enumerate(exchange)
    ]
    client.sock.sendall(b"".join(frames))
    answers = [client.receive_frame() for _ in exchange]
    assert [struct.unpack_from(">i", answer)[0] for answer in answers] == [0, 1, 2]


def test_requests_after_a_refused_login_are_not_handled(client):
    frames = [
        encoded(RequestHeader(request.API_KEY, version, number, "x"), request)
        for number, (request, version) in enumerate(
            [
                (SaslHandshakeRequest(mechanism="PLAIN"), 1),
                (SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2),
                (MetadataRequest(topics=[]), 9),
            ]
        )
    ]
    began_s = time.monotonic()
    client.sock.sendall(b"".join(frames))
    client.receive_frame()
    refusal = client.receive_frame()
    assert struct.unpack_from(">i", refusal)[0] == 1
    assert time.monotonic() - began_s >= 0.3
    assert client.closed_by_server()


@pytest.mark.parametrize("user", ["alice", "nobody"])
def test_a_refused_login_is_delayed_and_closes_the_connection(client, user):
    handshake(client, "PLAIN")
    began_s = time.monotonic()
    answer = token(client, f"\0{user}\0wrong".encode())
    assert time.monotonic() - began_s >= 0.29
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert user not in answer.error_message
    assert client.closed_by_server()


def test_a_client_that_stops_authenticating_is_disconnected(server):
    host, port = server.sasl.split(":")
    quiet = [WireClient((host, int(port)), timeout_s=15) for _ in range(3)]
    handshake(quiet[1], "SCRAM-SHA-256")
    handshake(quiet[2], "SCRAM-SHA-256")
    first = ScramClient(ScramMechanism.SHA_256, "alice", PASSWORD, "nonce").first()
    assert token(quiet[2], first).error_code == 0
    began_s = time.monotonic()
    for client in quiet:
        assert client.closed_by_server()
        client.close()
    assert 8 < time.monotonic() - began_s < 14
    assert "has not authenticated in 10.3 s" in server.process.log


def send_bare(client: WireClient, content: bytes) -> None:
    client.sock.sendall(struct.pack(">i", len(content)) + content)


class TestBareTokens:
    """Old clients send bare tokens after SaslHandshake version 0."""

    @pytest.mark.parametrize(
        "mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
    )
    def test_tokens_without_a_request_header_authenticate_a_client(self, server, client, mechanism):
        handshake(client, mechanism, 0)
        if mechanism == "PLAIN":
            side: SaslClient = PlainClient("alice", PASSWORD)
        elif mechanism == "OAUTHBEARER":
            side = OAuthBearerClient(server.issuer.token())
        else:
            side = ScramClient(ScramMechanism.named(mechanism), "alice", PASSWORD, "nonce")
        message: bytes | None = side.first()
        while message is not None:
            send_bare(client, message)
            message = side.step(client.receive_frame())
        assert side.done
        assert client.request(MetadataRequest(topics=[]), 9).cluster_id

    def test_may_be_short(self, client):
        handshake(client, "PLAIN", 0)
        began_s = time.monotonic()
        send_bare(client, b"\0a\0b")
        assert client.closed_by_server()
        assert time.monotonic() - began_s >= 0.29

    def test_invalid_frames_close_the_connection_without_a_response(self, client):
        handshake(client, "SCRAM-SHA-256", 0)
        send_bare(client, b"")
        client.sock.settimeout(10)
        assert client.sock.recv(100) == b""

    def test_a_bare_token_above_the_size_limit_closes_the_connection(self, client):
        handshake(client, "PLAIN", 0)
        client.sock.sendall(struct.pack(">i", 600_000))
        assert client.closed_by_server()


def test_the_log_contains_no_password_and_no_token(server):
    log = server.process.log
    assert PASSWORD not in log
    assert "audit_authentication_failed" in log
    assert "eyJ" not in log
