"""Certificates of listeners: their sources, refusals, and when they are read again."""

from __future__ import annotations

import ssl
import time
from pathlib import Path

import pytest

from headrace.config.broker import parse_broker_config
from headrace.errors import ConfigError
from headrace.server.tls.context import ServerTls, make_context
from tests.fixtures.certificates import LOOPBACK, PASSWORD, Certificates, make_certificates
from tests.unit.server.fakes import RecordingJournal

DAY_S = 86_400


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def context_of(**options: object) -> ssl.SSLContext:
    named = {name.replace("_", "."): str(value) for name, value in options.items()}
    context, _ = make_context(parse_broker_config(named))
    return context


def test_key_and_chain_in_one_file_in_two_or_in_the_settings(certificates: Certificates) -> None:
    server = certificates.server
    context_of(ssl_keystore_location=server.pem)
    context_of(ssl_certificate_location=server.certificate, ssl_key_location=server.key)
    key, chain = server.key.read_text(), server.certificate.read_text()
    for line_end in ("\n", "\\n", " "):  # a property has one line
        context_of(
            ssl_keystore_key=key.replace("\n", line_end),
            ssl_keystore_certificate_chain=chain.replace("\n", line_end),
        )


def test_an_encrypted_key_needs_its_password(certificates: Certificates) -> None:
    pem = certificates.locked_server.pem
    context_of(ssl_keystore_location=pem, ssl_key_password=PASSWORD)
    with pytest.raises(ConfigError, match=r"set ssl\.key\.password"):
        context_of(ssl_keystore_location=pem)
    with pytest.raises(ConfigError, match="password") as caught:
        context_of(ssl_keystore_location=pem, ssl_key_password="hush")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xfe\xed\xfe\xed\x00\x00\x00\x02", "keytool -importkeystore"),
        (b"\x30\x82\x0a\x0b\x02\x01\x03", "openssl pkcs12"),
        (b"", "no PRIVATE KEY in PEM"),
        (
            b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "no CERTIFICATE in PEM",
        ),
    ],
)
def test_the_error_for_another_format_says_how_to_make_pem(
    tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "store").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        context_of(ssl_keystore_location=tmp_path / "store")
    assert said in str(caught.value)


def test_errors_for_missing_unreadable_or_repeated_settings_name_the_fault(
    certificates: Certificates, tmp_path: Path
) -> None:
    pem = certificates.server.pem
    for options, said in (
        ({}, "set ssl.keystore.location"),
        ({"ssl_keystore_location": tmp_path / "none"}, "cannot read"),
        ({"ssl_certificate_location": certificates.server.certificate}, "ssl.key.location is missing"),
        ({"ssl_keystore_location": pem, "ssl_key_location": pem}, "configured twice"),
        ({"ssl_keystore_location": pem, "ssl_client_auth": "required"}, "ssl.truststore.location"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            context_of(**options)
        assert said in str(caught.value)


def test_a_key_of_another_certificate_is_refused(certificates: Certificates) -> None:
    with pytest.raises(ConfigError, match="does not belong"):
        context_of(
            ssl_certificate_location=certificates.server.certificate,
            ssl_key_location=certificates.client.key,
        )


def test_a_damaged_key_is_named_and_not_shown(certificates: Certificates, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pem"
    body = "-----BEGIN PRIVATE KEY-----\nNOTHINGTHATISAKEY\n-----END PRIVATE KEY-----\n"
    damaged.write_text(body + certificates.server.certificate.read_text())
    config = parse_broker_config({"ssl.keystore.location": str(damaged)})
    with pytest.raises(ConfigError, match="BEGIN and END is damaged") as caught:
        make_context(config)
    assert "NOTHING" not in str(caught.value)


def test_versions_and_suites(certificates: Certificates) -> None:
    pem = certificates.server.pem
    context = context_of(ssl_keystore_location=pem)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    older = context_of(
        ssl_keystore_location=pem,
        ssl_cipher_suites="TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,ECDHE-ECDSA-CHACHA20-POLY1305",
    )
    assert older.maximum_version == ssl.TLSVersion.TLSv1_2
    names = {str(cipher["name"]) for cipher in older.get_ciphers()}
    assert {"ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"} <= names
    assert "ECDHE-RSA-AES256-GCM-SHA384" not in names
    newer = context_of(ssl_keystore_location=pem, ssl_cipher_suites="TLS_AES_256_GCM_SHA384")
    assert newer.minimum_version == ssl.TLSVersion.TLSv1_3
    for suites, versions, said in (
        ("TLS_AES_256_GCM_SHA384", "TLSv1.2", "leave no version"),
        ("NONSENSE", "TLSv1.2", "OpenSSL has none"),
    ):
        with pytest.raises(ConfigError, match=said):
            context_of(
                ssl_keystore_location=pem, ssl_cipher_suites=suites, ssl_enabled_protocols=versions
            )


def served(location: Path, journal: RecordingJournal, wall_s: float | None = None) -> ServerTls:
    config = parse_broker_config({"ssl.keystore.location": str(location)})
    return ServerTls("SSL", config, journal, lambda: wall_s or time.time())


def test_a_file_that_changes_is_read_again(certificates: Certificates, tmp_path: Path) -> None:
    journal = RecordingJournal()
    location = tmp_path / "server.pem"
    location.write_bytes(certificates.server.pem.read_bytes())
    tls = served(location, journal)
    first = tls.context
    tls.look()
    assert tls.context is first
    location.write_bytes(certificates.signer.issue("renewed", hosts=LOOPBACK).pem.read_bytes())
    tls.look()
    assert tls.context is not first
    assert [event for event, _ in journal.lines] == ["certificate_reloaded"]
    tls.look()
    assert len(journal.lines) == 1


def test_a_file_that_is_half_written_leaves_the_old_certificate(
    certificates: Certificates, tmp_path: Path
) -> None:
    journal = RecordingJournal()
    location = tmp_path / "server.pem"
    whole = certificates.server.pem.read_bytes()
    location.write_bytes(whole)
    tls = served(location, journal)
    first = tls.context
    location.write_bytes(whole[:-100])
    for _ in range(3):
        tls.look()
    location.unlink()
    for _ in range(3):
        tls.look()
    assert tls.context is first
    assert [event for event, _ in journal.lines] == ["certificate_not_reloaded"] * 2
    location.write_bytes(whole)
    tls.look()
    assert tls.context is not first


def test_an_end_that_is_near_is_warned_of_once_a_day(
    certificates: Certificates, tmp_path: Path
) -> None:
    location = certificates.signer.issue("short", hosts=LOOPBACK, days=(-1, 31.5)).pem
    journal = RecordingJournal()
    now_s = time.time()
    config = parse_broker_config({"ssl.keystore.location": str(location)})
    tls = ServerTls("SSL", config, journal, lambda: now_s)
    assert not journal.lines
    for _ in range(4):
        now_s += DAY_S
        for _ in range(3):
            tls.look()
    assert [fields["days"] for _, fields in journal.lines] == [29, 28, 27]
    journal.lines.clear()
    served(certificates.expired_server.pem, journal)
    ((event, fields),) = journal.lines
    assert event == "certificate_expired"
    assert fields["days"] == -10
