"""A connection of a listener with TLS: the handshake, then the same as any other, through a layer that decrypts."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from headrace.broker.access.audit import Audit
from headrace.config.listeners import Listener
from headrace.security.certificates import CertificateError, read_certificate
from headrace.security.principal import Principal
from headrace.security.principal_mapping import MappingError
from headrace.server.connection import Connection, Hub
from headrace.server.framing import BadFrameError
from headrace.server.outgoing import SocketWriter
from headrace.server.tls import TlsChannel, TlsError, TlsWriter
from headrace.server.tls_context import ServerTls

_RECORD_BYTES: Final = 18 * 1024
"""The largest record, with its overhead: so much more is received than there is room for its plaintext."""


class TlsConnection(Connection):
    """The protocol object of one accepted socket that speaks TLS."""

    def __init__(
        self, hub: Hub, loop: asyncio.AbstractEventLoop, listener: Listener, tls: ServerTls
    ) -> None:
        super().__init__(hub, loop, listener)
        self._tls = tls
        self._audit = Audit(hub.client_log)
        self._channel = TlsChannel(tls.context)
        self._began_ms = 0
        self._waits = False
        """Whether a step of the handshake waits for its turn."""
        self._sealer: TlsWriter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a freshly accepted socket."""
        super().connection_made(transport)
        self._began_ms = self._hub.now_ms

    def _make_writer(self, sock: socket.socket) -> SocketWriter:
        self._sealer = TlsWriter(self._loop, sock, self._drained, self._write_failed, self._channel)
        return self._sealer

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return where the next ciphertext goes; hardly more than can be decrypted at once."""
        return self._tls.staging[: len(self._receive.free_space()) + _RECORD_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Take the received ciphertext from the buffer."""
        self._hub.begin()
        self._received_ms = self._hub.now_ms
        try:
            self._channel.received(self._tls.staging[:nbytes])
            if self._channel.established:
                self._process()
            elif not self._waits and self._tls.turns.take(self._loop, self._take_turn):
                self._shake_hands()
            else:
                self._waits = True
                self._pause()
        except TlsError as error:
            self._handshake_failed(str(error))
        self._channel.keep()
        self._hub.end()

    def _take_turn(self) -> None:
        """Go on with the handshake, after others in earlier iterations of the loop."""
        self._waits = False
        if self.lost or self._closing_since_ms >= 0:
            return
        self._hub.begin()
        try:
            self._shake_hands()
            if not self._channel.established:
                self._read_on()
        except TlsError as error:
            self._handshake_failed(str(error))
        self._hub.end()

    def _shake_hands(self) -> None:
        if self._handshake():
            self._process()

    def _handshake(self) -> bool:
        """Go on with the handshake; returns whether it is complete, and the client is who it has to be."""
        complete = self._channel.handshake()
        self._sealer.push()
        if complete:
            self._identify()
        return complete

    def _identify(self) -> None:
        """Name the client by its certificate; with SASL it names itself later."""
        certificate = self._channel.certificate
        if certificate is None or self._listener.protocol.sasl:
            return
        try:
            subject = read_certificate(certificate).subject
            self.session.principal = Principal(self._tls.mapping.name_of(subject))
        except (CertificateError, MappingError) as error:
            raise TlsError(f"{error}") from error
        self._audit.authenticated(self.session, "TLS")

    def _handshake_failed(self, reason: str) -> None:
        self._hub.client_log.warning(
            "tls_handshake_failed",
            client=self.client,
            listener=self._listener.name,
            reason=reason,
        )
        if self._tls.context.verify_mode != ssl.CERT_NONE:
            self._audit.authentication_failed(self.session, "TLS", reason)
        self._sealer.push()  # the alert by which the client learns why
        self.close(reason, quietly=True)

    def _receive_more(self) -> bool:
        if not self._channel.established or not self._receive.make_room():
            return False
        try:
            count = self._channel.read(self._receive.free_space())
        except TlsError as error:
            self._ready.clear()  # nothing can be encrypted any more
            raise BadFrameError(f"TLS: {error}") from error
        except EOFError:
            self.close("the client has closed", quietly=True)
            return False
        self._receive.received(count)
        self._sealer.push()
        return count > 0

    def _shut(self) -> None:
        self._say_goodbye()
        super()._shut()

    def abort(self) -> None:
        """Close at once, whatever waits to be sent."""
        self._say_goodbye()
        super().abort()

    def _say_goodbye(self) -> None:
        if self._channel.established and not self.lost and not self._writer.queued_bytes:
            self._channel.say_goodbye()
            self._sealer.push()

    def check(self, now_ms: int) -> None:
        """Close the connection if it has run into a time-out, and give spare memory back. Called once a second."""
        limit_ms = self._limits.handshake_timeout_ms
        if self._channel.established or self.lost or now_ms - self._began_ms <= limit_ms:
            super().check(now_ms)
            return
        self._hub.client_log.warning(
            "tls_handshake_failed",
            client=self.client,
            listener=self._listener.name,
            reason=f"it was not complete after {limit_ms / 1000:g} s",
        )
        self.abort()
