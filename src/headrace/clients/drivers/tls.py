"""TLS of a client's connections: the SSL context for its properties, the socket, and the meaning of errors."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from headrace.clients.config import ClientConfig
from headrace.clients.security import KEY_STORE_HINT
from headrace.errors import AuthenticationError, ConfigError

_KEY_STORE_STARTS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce", b"\x30\x82", b"\x30\x80")
"""The first bytes of key stores: JKS, JCEKS, and PKCS12, which is in DER."""
_NOT_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"})
"""OpenSSL's reasons for a response that is not TLS."""
_UNKNOWN_AUTHORITY: Final = frozenset({18, 19, 20, 21})
"""OpenSSL's X509_V_ERR codes of certificates that are self-signed or signed by an authority that is not trusted."""
_PASSING: Final = ("INTERNAL_ERROR", "USER_CANCELLED", "BAD_RECORD_MAC")
"""The last part of the names of alerts after which the client retries: they do not refuse its certificate."""
_JOINED_BYTES: Final = 64 << 10
"""The largest number of bytes in one write to a TLS socket."""


def client_context(config: ClientConfig) -> ssl.SSLContext:
    """Return the SSL context for a client's connections. This reads the files that the properties name.

    Raises:
        ConfigError: A file cannot be read, or its contents do not fit its property.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not config.enable_ssl_certificate_verification:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif config.ssl_endpoint_identification_algorithm == "none":
        context.check_hostname = False
    _trust(context, config)
    _own_certificate(context, config)
    return context


def _trust(context: ssl.SSLContext, config: ClientConfig) -> None:
    if not config.ssl_ca_location and not config.ssl_ca_pem:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        return
    where = "ssl.ca.location" if config.ssl_ca_location else "ssl.ca.pem"
    place = Path(config.ssl_ca_location)
    try:
        if config.ssl_ca_pem:
            context.load_verify_locations(cadata=config.ssl_ca_pem)
        elif place.is_dir():
            context.load_verify_locations(capath=place)
        else:
            _refuse_key_store(where, place)
            context.load_verify_locations(cafile=place)
    except ssl.SSLError:
        raise ConfigError(f"{where} has no certificate in PEM") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}: {_reason(error)}") from None


def _own_certificate(context: ssl.SSLContext, config: ClientConfig) -> None:
    if not config.ssl_certificate_location and not config.ssl_certificate_pem:
        return
    if config.ssl_certificate_location:
        _refuse_key_store("ssl.certificate.location", Path(config.ssl_certificate_location))
    if config.ssl_key_location:
        _refuse_key_store("ssl.key.location", Path(config.ssl_key_location))

    def password() -> str:
        if (
            not config.ssl_key_password
        ):  # otherwise OpenSSL would prompt for a password on the terminal
            raise ConfigError("the client's key is encrypted: set ssl.key.password")
        return config.ssl_key_password

    with (
        _as_file(config.ssl_certificate_location, config.ssl_certificate_pem) as certificate,
        _as_file(config.ssl_key_location, config.ssl_key_pem) as key,
    ):
        try:
            context.load_cert_chain(certificate, key, password)
        except ssl.SSLError as error:
            raise ConfigError(_bad_chain(error, config)) from None


def _bad_chain(error: ssl.SSLError, config: ClientConfig) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the client's key does not belong to its certificate"
    if config.ssl_key_password:
        return "the client's certificate or key is not in PEM, or ssl.key.password is wrong"
    return "the client's certificate or key is not in PEM"


def _refuse_key_store(name: str, place: Path) -> None:
    try:
        with place.open("rb") as file:
            start = file.read(4)
    except OSError as error:
        raise ConfigError(f"{name}: {_reason(error)}") from None
    if start.startswith(_KEY_STORE_STARTS):
        raise ConfigError(f"{name}: {place} is not in PEM; {KEY_STORE_HINT}")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.strerror}: {error.filename}"
    return str(error)


@contextlib.contextmanager
def _as_file(location: str, text: str) -> Iterator[str]:
    """Yield a path for OpenSSL. Text without a file is written to a private temporary file, which is deleted after."""
    if location:
        yield location
        return
    handle, path = tempfile.mkstemp()
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        yield path
    finally:
        Path(path).unlink()


class TlsSocket:
    """A non-blocking TLS socket with the methods of a plain one. An operation that must wait raises BlockingIOError."""

    def __init__(self, context: ssl.SSLContext, sock: socket.socket, host: str) -> None:
        self._sock = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        self._unsent = b""
        """The bytes of a write that OpenSSL has begun. OpenSSL requires the same bytes in the next attempt."""
        self.wants_write = False
        """Whether the last operation that had to wait needs a writable socket. False: it needs a readable one."""

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close the socket without a TLS shutdown."""
        self._sock.close()

    def shake_hands(self) -> None:
        """Continue the TLS handshake.

        Raises:
            BlockingIOError: The handshake is not done yet.
        """
        try:
            self._sock.do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise self._later(error) from None

    def recv_into(self, buffer: memoryview) -> int:
        """Receive bytes. A selector does not report bytes that OpenSSL has received and the program has not read."""
        try:
            return self._sock.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise self._later(error) from None

    def sendmsg(self, buffers: Sequence[memoryview]) -> int:
        """Send the first bytes of the buffers. After a BlockingIOError, the next call needs the same first bytes."""
        if not self._unsent:
            joined: list[memoryview] = []
            room = _JOINED_BYTES
            for buffer in buffers:
                joined.append(buffer[:room])
                room -= len(joined[-1])
                if room <= 0:
                    break
            self._unsent = b"".join(joined)
        try:
            sent = self._sock.send(self._unsent)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise self._later(error) from None
        self._unsent = b""
        return sent

    def _later(self, error: ssl.SSLError) -> BlockingIOError:
        self.wants_write = isinstance(error, ssl.SSLWantWriteError)
        return BlockingIOError()


def distrust(peer: str, error: Exception) -> AuthenticationError | None:
    """Return the error for a TLS failure after which a retry would not help; None for other failures.

    Args:
        peer: The broker's name in messages.
        error: The exception of TLS or of the socket.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        text = error.verify_message
        hint = ""
        if error.verify_code in _UNKNOWN_AUTHORITY:
            hint = ": set ssl.ca.location to the certificate of the authority that signed it"
        return AuthenticationError(f"{peer}: certificate verify failed: {text}{hint}")
    if not isinstance(error, ssl.SSLError) or error.reason is None:
        return None
    if error.reason in _NOT_TLS:
        return AuthenticationError(
            f"{peer} does not use TLS: set security.protocol=PLAINTEXT or SASL_PLAINTEXT"
        )
    if error.reason in {"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_HANDSHAKE_FAILURE"}:
        return AuthenticationError(
            f"{peer} refuses the TLS handshake: if the broker requires a client certificate, set "
            "ssl.certificate.location and ssl.key.location"
        )
    if "ALERT" in error.reason and not error.reason.endswith(_PASSING):
        what = error.reason.partition("ALERT_")[2].lower().replace("_", " ")
        return AuthenticationError(f"{peer} refuses the TLS handshake: {what}")
    return None
