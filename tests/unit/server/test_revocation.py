"""Clients with revoked certificates: lists in files, read again when they change, and the end of lists."""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from pathlib import Path

import pytest

from headrace.config.broker import parse_broker_config
from headrace.errors import ConfigError
from headrace.security.certificates import (
    CertificateError,
    read_revocation_list,
)
from headrace.server.tls.channel import TlsChannel, TlsError
from headrace.server.tls.client_authorities import can_name
from headrace.server.tls.context import ServerTls
from headrace.server.tls.revocation import FILE_BYTES_LIMIT, read_lists
from tests.fixtures.certificates import Certificates, KeyPair, make_certificates
from tests.unit.server.fakes import RecordingJournal
from tests.unit.server.tls_fakes import client_context

DAY_S = 86_400
VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class Listener:
    """A listener that requires certificates, and its log."""

    def __init__(self, certificates: Certificates, *lists: Path, **options: str) -> None:
        self.certificates = certificates
        self.journal = RecordingJournal()
        self.now_s = time.time()
        given = {
            "ssl.keystore.location": str(certificates.server.pem),
            "ssl.truststore.location": str(certificates.authority),
            "ssl.client.auth": "required",
            "headrace.ssl.crl.location": ",".join(map(str, lists)),
            **{name.replace("_", "."): text for name, text in options.items()},
        }
        config = parse_broker_config(given)
        self.tls = ServerTls("SSL", config, self.journal, lambda: self.now_s)

    def events(self) -> list[str]:
        """Return the events in the log."""
        return [event for event, _ in self.journal.lines]

    def admits(self, pair: KeyPair | None, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> str:
        """Shake hands in memory; return the reason for a refusal, or nothing, and check that the client gets an
        alert."""
        server = TlsChannel(self.tls.context)
        context = client_context(self.certificates, pair)
        context.minimum_version = context.maximum_version = version
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        client = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        refused = ""
        for _ in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            if (sent := outgoing.read()) and not refused:
                try:
                    server.received(memoryview(sent))
                    server.handshake()
                except TlsError as error:
                    refused = str(error)
            self.flight = server.outgoing()
            incoming.write(self.flight)
            if refused:
                with pytest.raises(ssl.SSLError, match="ALERT"):
                    client.read(1)
                return refused
        assert server.established
        return ""


def touched(path: Path) -> Path:
    """Change the time of a file, whatever the resolution of the clock is."""
    stamp = path.stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(stamp, stamp))
    return path


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("form", ["PEM", "DER"])
def test_a_revoked_client_is_refused_when_the_file_has_changed(
    certificates: Certificates, tmp_path: Path, version: ssl.TLSVersion, form: str
) -> None:
    signer, alice = certificates.signer, certificates.client
    other = signer.issue("other")
    path = signer.revoke(tmp_path / "list.crl", other, der=form == "DER")
    listener = Listener(certificates, path)
    assert listener.admits(alice, version) == ""
    assert (
        listener.admits(other, version)
        == "the client's certificate is refused: certificate revoked"
    )
    touched(signer.revoke(path, alice, der=form == "DER"))
    listener.tls.look()  # once a second
    assert listener.events() == ["certificate_reloaded"]
    assert (
        listener.admits(alice, version)
        == "the client's certificate is refused: certificate revoked"
    )
    assert listener.admits(other, version) == ""


def test_clients_of_an_authority_without_a_list_are_refused(
    certificates: Certificates, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(
        certificates.authority.read_bytes() + certificates.stranger_authority.read_bytes()
    )
    ours = certificates.signer.revoke(tmp_path / "ours.crl")
    theirs = certificates.stranger.revoke(tmp_path / "theirs.crl")
    listener = Listener(certificates, ours, ssl_truststore_location=str(both))
    assert listener.admits(certificates.client) == ""
    assert "has no list of its authority" in listener.admits(certificates.unknown_client)
    listener = Listener(certificates, ours, theirs, ssl_truststore_location=str(both))
    assert listener.admits(certificates.unknown_client) == ""
    # A file may have several lists.
    ours.write_bytes(ours.read_bytes() + theirs.read_bytes())
    listener = Listener(certificates, ours, ssl_truststore_location=str(both))
    assert listener.admits(certificates.unknown_client) == ""


def test_clients_are_refused_and_an_event_is_logged_after_a_list_has_expired(
    certificates: Certificates, tmp_path: Path
) -> None:
    path = certificates.signer.revoke(tmp_path / "list.crl", days=(-10, -1))
    listener = Listener(certificates, path)
    [event] = listener.events()
    assert event == "crl_expired"
    assert "has expired: put a new one" in listener.admits(certificates.client)
    touched(certificates.signer.revoke(path))
    listener.tls.look()
    assert listener.admits(certificates.client) == ""


def test_the_end_of_a_list_is_warned_of_a_day_before(
    certificates: Certificates, tmp_path: Path
) -> None:
    path = certificates.signer.revoke(tmp_path / "list.crl", days=(-1, 5))
    short = certificates.stranger.revoke(tmp_path / "short.crl", days=(-0.1, 0.5))
    listener = Listener(certificates, path, short)
    begin_s = listener.now_s
    seen = []
    for hours in (1, 13, 14, 100, 119, 121, 200):
        listener.now_s = begin_s + hours * 3600
        listener.tls.look()
        seen.append(len(listener.events()))
    assert listener.events() == ["crl_expired", "crl_expires", "crl_expired"]
    # A list that is valid for less than a day is replaced often, and logs no early warning.
    assert seen == [0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no list of revoked certificates"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "cannot be read"),
        (b"-----BEGIN X509 CRL-----\nA\n-----END X509 CRL-----\n", "no list of revoked"),
        (b"\x30\x82\x01\x00\x30", "cannot be read"),
        (b"\0" * (FILE_BYTES_LIMIT + 1), "more than"),
        (None, "cannot read"),
    ],
)
def test_an_invalid_list_does_not_replace_the_present_list(
    certificates: Certificates, tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = certificates.signer.revoke(tmp_path / "list.crl", certificates.client)
    listener = Listener(certificates, path)
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        read_lists([str(path)])
    listener.tls.reload()
    assert listener.events() == ["certificate_not_reloaded"]
    assert (
        listener.admits(certificates.client)
        == "the client's certificate is refused: certificate revoked"
    )


def test_without_certificates_of_clients_lists_are_not_read(certificates: Certificates) -> None:
    Listener(certificates, Path("/does/not/exist"), ssl_client_auth="none")


@pytest.mark.parametrize("der", [b"", b"\x30", b"\x30\x00", b"\x30\x02\x30\x00"])
def test_bytes_that_are_no_list(der: bytes) -> None:
    with pytest.raises(CertificateError):
        read_revocation_list(der)


def test_the_request_for_a_certificate_names_the_authorities(certificates: Certificates) -> None:
    assert can_name(), (
        "see whether headrace.server.tls.client_authorities knows this version of Python"
    )
    listener = Listener(certificates)
    # In TLS 1.2 the request is not encrypted: it follows the client's first message.
    server = TlsChannel(listener.tls.context)
    context = client_context(certificates)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    outgoing = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    server.received(memoryview(outgoing.read()))
    server.handshake()
    flight, messages = server.outgoing(), {}
    while flight:
        size = 5 + int.from_bytes(flight[3:5])
        messages[flight[5]] = flight[5:size]
        flight = flight[size:]
    certificate_request = 13
    assert b"Test authority" in messages[certificate_request]
