"""Mutual TLS is an authentication: the audit log has its successes and failures."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.fixtures.certificates import Certificates, make_certificates
from tests.unit.server.fakes import FakeHub, framed
from tests.unit.server.loops import on_loop
from tests.unit.server.tls_fakes import TlsClient, client_context, server_tls, serving_tls


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(Path(tmp_path_factory.mktemp("certificates")))


def audited(hub: FakeHub) -> list[tuple[str, dict[str, object]]]:
    return [(event, fields) for event, fields in hub.lines.lines if event.startswith("audit_")]


@on_loop
async def test_a_client_with_a_certificate_has_authenticated(certificates: Certificates) -> None:
    trusted = str(certificates.authority)
    tls = server_tls(certificates, ssl_client_auth="required", ssl_truststore_location=trusted)
    hub = FakeHub()
    async with serving_tls(hub, tls, client_context(certificates, certificates.client)) as connect:
        client = await connect()
        await client.send(framed(b"hello"))
        assert await client.receive_frame() == b"hello"
        ((event, fields),) = audited(hub)
    assert event == "audit_authentication_succeeded"
    assert str(fields["principal"]).startswith("User:CN=")
    assert (fields["listener"], fields["mechanism"]) == ("SSL", "TLS")


@on_loop
async def test_a_client_without_the_right_one_has_not(certificates: Certificates) -> None:
    trusted = str(certificates.authority)
    tls = server_tls(certificates, ssl_client_auth="required", ssl_truststore_location=trusted)
    hub = FakeHub()
    stranger = client_context(certificates, certificates.unknown_client)
    async with serving_tls(hub, tls, stranger) as connect:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await _meet(connect)
        ((event, fields),) = audited(hub)
    assert event == "audit_authentication_failed"
    assert (fields["principal"], fields["mechanism"]) == ("User:ANONYMOUS", "TLS")
    assert "certificate" in str(fields["reason"])


async def _meet(connect: Callable[[], Awaitable[TlsClient]]) -> None:
    client = await connect()
    await client.send(framed(b"hello"))
    await client.receive_frame()


@on_loop
async def test_without_client_certificates_no_authentication_is_audited(
    certificates: Certificates,
) -> None:
    hub = FakeHub()
    async with serving_tls(hub, server_tls(certificates), client_context(certificates)) as connect:
        client = await connect()
        await client.send(framed(b"hello"))
        assert await client.receive_frame() == b"hello"
        assert audited(hub) == []
