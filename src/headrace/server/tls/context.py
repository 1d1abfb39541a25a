"""The certificate of a listener: read from PEM files, and read again when the files have changed.

A context is made completely or not at all. A connection keeps the context with which it began.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from headrace.broker.access.authentication import RunAside, run_at_once
from headrace.config.security import KEYSTORE_HINT, TRUSTSTORE_HINT, BrokerSecurityConfig
from headrace.errors import ConfigError
from headrace.ports import Journal
from headrace.security.certificates import (
    Certificate,
    CertificateError,
    RevocationList,
    read_certificate,
)
from headrace.security.principal_mapping import PrincipalMapping
from headrace.server.tls.client_authorities import name_authorities
from headrace.server.tls.handshake_turns import HandshakeTurns
from headrace.server.tls.revocation import EndsOfLists, check_against, read_lists

WARN_DAYS: Final = 30
"""The number of days before the end of a certificate from which on the log has a warning, once a day."""

_DAY_S: Final = 86_400
_STAGING_BYTES: Final = 256 * 1024
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_PASSWORD_NEEDED: Final = "the private key is encrypted: set ssl.key.password"  # noqa: S105 - not a password
_CLIENT_AUTH: Final = {"requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_TLS_1_3_SUITE: Final = re.compile(r"TLS_(?!.*_WITH_).*")
_BINARY_STORES: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce", b"\x30\x80", b"\x30\x81", b"\x30\x82")  # fmt: skip


class _Loaded(NamedTuple):
    """The TLS context and the certificate of a listener, and the ends of its revocation lists."""

    context: ssl.SSLContext
    certificate: Certificate
    ends_of_lists: EndsOfLists


class ServerTls:
    """The TLS context for new connections of a listener."""

    def __init__(
        self,
        listener: str,
        config: BrokerSecurityConfig,
        journal: Journal,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """Read certificate and key.

        Args:
            listener: The name of the listener, for the log.
            config: The settings of the listener.
            journal: Receives warnings.
            wall_s: Returns the time by which certificates expire, in seconds since 1970.

        Raises:
            ConfigError: A setting is missing, or its value cannot be used.
        """
        self._listener = listener
        self._config = config
        self._journal = journal
        self._wall_s = wall_s
        self._warned_days: int | None = None
        self._loading = False
        self.run_aside: RunAside = run_at_once
        """Runs the reading of the files: 0.1 s for a list of 100,000 entries. A shell with threads replaces this
        attribute."""
        self.turns = HandshakeTurns()
        self.mapping = PrincipalMapping(config.ssl_principal_mapping_rules)
        self.staging = memoryview(bytearray(_STAGING_BYTES))
        """The space where ciphertext of any connection arrives. The event loop fills it and passes it on in one
        step."""
        locations = (
            config.ssl_keystore_location,
            config.ssl_certificate_location,
            config.ssl_key_location,
            config.ssl_truststore_location,
        )
        self._files = [Path(location) for location in locations if location]
        self._files += map(Path, _lists_of(config))
        self._seen = self._stamps()
        self.context, self._certificate, self._ends_of_lists = self._load()
        self._warn_of_end()

    def reload(self) -> None:
        """Read the files again. If they cannot be used, log an error and keep the present certificate."""
        if self._loading:
            return
        self._seen = self._stamps()
        self._loading = True
        self.run_aside(self._try_to_load, self._loaded)

    def _try_to_load(self) -> _Loaded | ConfigError:
        try:
            return self._load()
        except ConfigError as error:
            return error

    def _loaded(self, outcome: _Loaded | ConfigError) -> None:
        self._loading = False
        if isinstance(outcome, ConfigError):
            self._journal.error(
                "certificate_not_reloaded",
                listener=self._listener,
                error=str(outcome),
                action="the broker keeps the present certificate",
            )
            return
        self.context, self._certificate, self._ends_of_lists = outcome
        self._journal.info(
            "certificate_reloaded", listener=self._listener, subject=self._certificate.subject
        )
        self._warned_days = None
        self._warn_of_end()

    def look(self) -> None:
        """Read the files again if one has changed, and warn of a certificate that ends soon.

        The hub calls this regularly.
        """
        if self._stamps() != self._seen:
            self.reload()
        else:
            self._warn_of_end()

    def _load(self) -> _Loaded:
        try:
            context, certificate = make_context(self._config)
            lists = revoke(context, self._config)
        except ConfigError as error:
            raise ConfigError(f"listener {self._listener}: {error}") from error
        return _Loaded(context, certificate, EndsOfLists(self._listener, lists, self._journal))

    def _stamps(self) -> list[tuple[int, ...]]:
        stamps: list[tuple[int, ...]] = []
        for path in self._files:
            try:
                found = path.stat()
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
            except OSError:
                stamps.append(())
        return stamps

    def _warn_of_end(self) -> None:
        self._ends_of_lists.look(self._wall_s())
        left_s = self._certificate.not_after_s - self._wall_s()
        left = int(left_s / _DAY_S)
        if left >= WARN_DAYS or left == self._warned_days:
            return
        self._warned_days = left
        self._journal.warning(
            "certificate_expires" if left_s >= 0 else "certificate_expired",
            listener=self._listener,
            subject=self._certificate.subject,
            days=left,
            remedy="replace the files with a new certificate; the broker reads them without a restart",
        )


def make_context(config: BrokerSecurityConfig) -> tuple[ssl.SSLContext, Certificate]:
    """Make the TLS context of a listener.

    Raises:
        ConfigError: The certificate, the key or the authorities are missing or cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    _set_versions(context, config)
    key, chain = _key_and_chain(config)

    def password() -> str:
        if not config.ssl_key_password:  # otherwise OpenSSL would ask for it on the terminal
            raise ConfigError(_PASSWORD_NEEDED)
        return config.ssl_key_password

    try:
        certificate = read_certificate(ssl.PEM_cert_to_DER_cert(_first_certificate(chain)))
        with _as_file(f"{key}\n{chain}\n".encode()) as path:
            context.load_cert_chain(path, password=password)
    except (ssl.SSLError, CertificateError, ValueError) as error:
        locked = "; is ssl.key.password right?" if "ENCRYPTED" in key else ""
        raise ConfigError(f"certificate and key cannot be used: {_said(error)}{locked}") from error
    if config.ssl_client_auth != "none":
        _trust(context, config)
    return context, certificate


def _lists_of(config: BrokerSecurityConfig) -> list[str]:
    """Return the locations of the revocation lists; empty if clients show no certificates."""
    if config.ssl_client_auth == "none":
        return []
    return [each for each in map(str.strip, config.headrace_ssl_crl_location.split(",")) if each]


def revoke(context: ssl.SSLContext, config: BrokerSecurityConfig) -> Sequence[RevocationList]:
    """Make a context check the certificates of clients with the revocation lists, if there are any.

    Raises:
        ConfigError: The lists cannot be read or used.
    """
    locations = _lists_of(config)
    if not locations:
        return ()
    found = read_lists(locations)
    with _as_file(found.pem) as path:
        check_against(context, path)
    return found.lists


def _set_versions(context: ssl.SSLContext, config: BrokerSecurityConfig) -> None:
    versions = {_VERSIONS[word] for word in config.ssl_enabled_protocols.split(",") if word}
    suites = [suite for suite in config.ssl_cipher_suites.split(",") if suite]
    older = [_openssl_name(suite) for suite in suites if not _TLS_1_3_SUITE.fullmatch(suite)]
    if suites:
        if len(older) == len(suites):
            versions.discard(ssl.TLSVersion.TLSv1_3)
        if not older:
            versions.discard(ssl.TLSVersion.TLSv1_2)
    if not versions:
        raise ConfigError("ssl.enabled.protocols and ssl.cipher.suites leave no version of TLS")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if older:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise ConfigError(
                f"ssl.cipher.suites: OpenSSL has none of {', '.join(suites)[:200]}"
            ) from None


def _openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a TLS 1.2 suite that IANA calls TLS_..._WITH_..."""
    exchange, separator, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    if not separator:
        return suite
    for iana, openssl in (("AES_", "AES"), ("_CBC", ""), ("POLY1305_SHA256", "POLY1305")):
        cipher = cipher.replace(iana, openssl)
    return (cipher if exchange == "RSA" else f"{exchange}_{cipher}").replace("_", "-")


def _key_and_chain(config: BrokerSecurityConfig) -> tuple[str, str]:
    """Return key and certificates as PEM, from the settings or the files."""
    inline = config.ssl_keystore_key, config.ssl_keystore_certificate_chain
    apart = config.ssl_key_location, config.ssl_certificate_location
    given = [bool(config.ssl_keystore_location), any(inline), any(apart)]
    if sum(given) == 0:
        raise ConfigError(
            "it needs a certificate: set ssl.keystore.location to a PEM file with the private key and the certificate"
        )
    if sum(given) > 1:
        raise ConfigError(
            "its certificate is configured twice: use ssl.keystore.location, or ssl.keystore.certificate.chain with "
            "ssl.keystore.key, or ssl.certificate.location with ssl.key.location"
        )
    if given[0]:
        text = _read_pem(config.ssl_keystore_location, "ssl.keystore.location", KEYSTORE_HINT)
        return _blocks(text, "PRIVATE KEY"), _blocks(text, "CERTIFICATE")
    if given[1]:
        return _blocks(inline[0], "PRIVATE KEY"), _blocks(inline[1], "CERTIFICATE")
    key = _read_pem(apart[0], "ssl.key.location", KEYSTORE_HINT)
    chain = _read_pem(apart[1], "ssl.certificate.location", KEYSTORE_HINT)
    return _blocks(key, "PRIVATE KEY"), _blocks(chain, "CERTIFICATE")


def _trust(context: ssl.SSLContext, config: BrokerSecurityConfig) -> None:
    context.verify_mode = _CLIENT_AUTH[config.ssl_client_auth]
    # As in Java, every certificate in the store is trusted, even if it is not a root. And the certificate of a
    # client is checked each time: a resumed session would outlive its certificate.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    text = config.ssl_truststore_certificates
    if config.ssl_truststore_location:
        text = _read_pem(config.ssl_truststore_location, "ssl.truststore.location", TRUSTSTORE_HINT)
    if not text:
        raise ConfigError(
            f"ssl.client.auth={config.ssl_client_auth} needs ssl.truststore.location: a PEM file with the authorities "
            "that sign the certificates of clients"
        )
    authorities = _blocks(text, "CERTIFICATE")
    try:
        context.load_verify_locations(cadata=authorities)
    except ssl.SSLError as error:
        raise ConfigError(f"the trust store cannot be used: {_said(error)}") from error
    name_authorities(
        context, (ssl.PEM_cert_to_DER_cert(each[0]) for each in _BLOCK.finditer(authorities))
    )


def _read_pem(location: str, option: str, hint: Mapping[str, str]) -> str:
    if not location:
        raise ConfigError(f"{option} is missing")
    try:
        data = Path(location).read_bytes()
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {location}: {error.strerror}") from error
    if data.startswith(_BINARY_STORES):
        raise ConfigError(f"{option}: {location} is a JKS or PKCS12 store; {hint['JKS']}")
    return data.decode("latin-1")


def _blocks(text: str, kind: str) -> str:
    """Return the PEM blocks of a kind. In a property they may stand on one line, with spaces or escaped line ends."""
    found: list[str] = []
    for block in _BLOCK.finditer(text.replace("\\n", "\n")):
        label, body = block[1], block[2].strip()
        if not label.endswith(kind):
            continue
        if "\n" not in body:
            body = "\n".join(textwrap.wrap("".join(body.split()), 64))
        found.append(f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
    if not found:
        raise ConfigError(f"its settings contain no {kind} in PEM format")
    return "".join(found)


def _first_certificate(chain: str) -> str:
    end = "-----END CERTIFICATE-----"
    return chain.partition(end)[0] + end + "\n"


@contextlib.contextmanager
def _as_file(pem: bytes) -> Iterator[str]:
    """Provide content as a file, because Python's `ssl` reads keys from files: in memory if the system can."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            rest = memoryview(pem)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.TemporaryDirectory() as directory:  # only the owner can read it
            path = Path(directory) / "pem"
            path.write_bytes(pem)
            yield str(path)


def _said(error: Exception) -> str:
    """Return OpenSSL's text of an error."""
    reason = getattr(error, "reason", None)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    if reason is None and "PEM lib" in str(error):
        return "what is between BEGIN and END is damaged"
    return str(reason or error)
