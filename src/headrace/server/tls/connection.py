"""A connection of a listener with TLS: the handshake, then the same protocol, decrypted by `TlsChannel`."""

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
from headrace.server.connections.connection import Connection
from headrace.server.connections.framing import BadFrameError
from headrace.server.connections.outgoing import SocketWriter
from headrace.server.hub_interface import Hub
from headrace.server.tls.channel import TlsChannel, TlsError, TlsWriter
from headrace.server.tls.context import ServerTls

_RECORD_BYTES: Final = 18 * 1024
"""The size of the largest TLS record in bytes. The buffer for ciphertext is so much larger than the one for
plaintext."""


class TlsConnection(Connection):
    """The asyncio protocol of one accepted socket with TLS."""

    def __init__(
        self,
        hub: Hub[Connection],
        loop: asyncio.AbstractEventLoop,
        listener: Listener,
        tls: ServerTls,
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
        """Take over an accepted socket."""
        super().connection_made(transport)
        self._began_ms = self._hub.now_ms

    def _make_writer(self, sock: socket.socket) -> SocketWriter:
        self._sealer = TlsWriter(self._loop, sock, self._drained, self._write_failed, self._channel)
        return self._sealer

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Return the space for ciphertext, limited to about what can be decrypted at once."""
        return self._tls.staging[: len(self._receive.free_space()) + _RECORD_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the ciphertext that the event loop has received."""
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
        """Continue the handshake in the turn of this connection."""
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
        """Continue the handshake. Return whether it is complete, and the client's certificate acceptable."""
        complete = self._channel.handshake()
        self._sealer.push()
        if complete:
            self._identify()
        return complete

    def _identify(self) -> None:
        """Authenticate the client by its certificate. With SASL the client authenticates later."""
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
        self._sealer.push()  # the alert has the reason for the client
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
        """Close at once. Responses that are not sent are lost."""
        self._say_goodbye()
        super().abort()

    def _say_goodbye(self) -> None:
        if self._channel.established and not self.lost and not self._writer.queued_bytes:
            self._channel.say_goodbye()
            self._sealer.push()

    def check(self, now_ms: int) -> None:
        """Close the connection after a time-out, and free spare memory. The hub calls this once a second."""
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
