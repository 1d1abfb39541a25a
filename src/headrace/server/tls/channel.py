"""TLS of one connection, in memory: it decrypts the received bytes of one buffer, and encrypts into another.

asyncio's own TLS copies bytes that a socket does not take, and knows neither the server's limits nor its order of
writing. Here the ciphertext passes through the same socket, writer and time-outs as plaintext on other listeners.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final, cast

from headrace.server.connections.outgoing import SocketWriter, TruncatedFileError
from headrace.types import Buffer, FileRange

CHUNK_BYTES: Final = 64 * 1024
"""The number of bytes that are encrypted at a time. So many bytes more are in memory for a client that reads
nothing."""

FEED_BYTES: Final = 32 * 1024
"""The ciphertext that OpenSSL gets at a time, in bytes. The buffers of OpenSSL grow to the most they held, and never
shrink."""

_HANDSHAKE: Final = 0x16
_REASONS: Final = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the client showed no certificate, or has none of an authority in "
    "ssl.truststore.location; ssl.client.auth=required",
    "UNSUPPORTED_PROTOCOL": "the client speaks no version of TLS that ssl.enabled.protocols allows",
    "NO_SHARED_CIPHER": "client and broker have no cipher suite in common",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust the authority of the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept the broker's certificate",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept the broker's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the client says that the broker's certificate has expired",
}


_REFUSED: Final = {
    "CRL has expired": "the list of revoked certificates of its authority has expired: put a new one in its place",
    "unable to get certificate CRL": "headrace.ssl.crl.location has no list of its authority",
}


class TlsError(Exception):
    """The handshake failed, or the bytes are not TLS. The message is the reason."""


class TlsChannel:
    """The TLS state of one connection."""

    __slots__ = ("_begun", "_incoming", "_outgoing", "_rest", "_ssl", "established")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._begun = False
        self._rest = memoryview(b"")
        """Ciphertext that OpenSSL has not read. It is in the caller's buffer until `keep` copies it."""
        self.established = False

    def received(self, ciphertext: memoryview) -> None:
        """Add received ciphertext. `keep` has to be called before the buffer is overwritten.

        Raises:
            TlsError: The client does not begin with a handshake.
        """
        if not self._begun and ciphertext[0] != _HANDSHAKE:
            raise TlsError(
                "no TLS on a listener with TLS: set security.protocol=SSL (or SASL_SSL) in the client"
            )
        self._begun = True
        self._rest = ciphertext

    def keep(self) -> None:
        """Copy the ciphertext that was received and not read yet."""
        if self._rest:
            self._incoming.write(self._rest)
            self._rest = memoryview(b"")

    def _feed(self) -> bool:
        """Pass more of the received ciphertext to OpenSSL. Return whether there was any."""
        piece, self._rest = self._rest[:FEED_BYTES], self._rest[FEED_BYTES:]
        return bool(piece and self._incoming.write(piece))

    def handshake(self) -> bool:
        """Continue the handshake with the received bytes. Return whether it is complete.

        Raises:
            TlsError: The handshake failed. `outgoing` has the alert for the client.
        """
        while not self.established:
            try:
                self._ssl.do_handshake()
                self.established = True
            except ssl.SSLWantReadError:
                if not self._feed():
                    return False
            except ssl.SSLError as error:
                raise TlsError(_said(error)) from error
        return True

    @property
    def certificate(self) -> bytes | None:
        """The client's verified certificate in DER; None if the client has none."""
        return self._ssl.getpeercert(binary_form=True)

    def read(self, into: memoryview) -> int:
        """Decrypt into a buffer. Return the number of bytes, 0 if more ciphertext is needed.

        Raises:
            TlsError: The ciphertext was changed on the way.
            EOFError: The client sends no more.
        """
        total, ended = 0, False
        while total < len(into) and not ended:
            try:
                count = cast("int", self._ssl.read(len(into) - total, into[total:]))
                total += count
                ended = count == 0
            except ssl.SSLWantReadError:
                if not self._feed():
                    break
            except ssl.SSLError as error:
                raise TlsError(_said(error)) from error
        if ended and not total:
            raise EOFError("the client sends no more")
        return total

    def write(self, piece: Buffer) -> None:
        """Encrypt a piece. The ciphertext is in `outgoing`."""
        rest = memoryview(piece)
        while rest:
            rest = rest[self._ssl.write(rest) :]

    def outgoing(self) -> bytes:
        """Remove and return the bytes to send."""
        return self._outgoing.read()

    def say_goodbye(self) -> None:
        """End TLS. The message for the client is in `outgoing`."""
        with contextlib.suppress(ssl.SSLError):  # the client need not confirm
            self._ssl.unwrap()


def _said(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        refused = error.verify_message
        return f"the client's certificate is refused: {_REFUSED.get(refused, refused)}"
    reason = error.reason or str(error)
    return _REASONS.get(reason, reason.lower().replace("_", " "))


class TlsWriter(SocketWriter):
    """Encrypts only what the socket takes next. After encryption, ciphertext is counted in place of plaintext."""

    __slots__ = ("_channel", "_ciphertext")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        sock: socket.socket,
        on_drained: Callable[[], object],
        on_error: Callable[[OSError], object],
        channel: TlsChannel,
    ) -> None:
        super().__init__(loop, sock, on_drained, on_error)
        self._channel = channel
        self._ciphertext = memoryview(b"")

    def push(self) -> None:
        """Send TLS's own messages: its part of the handshake, alerts, new keys."""
        if self._fd >= 0 and self._collect() and not self._waiting:
            self._write()

    def _collect(self) -> int:
        """Append TLS's messages to the ciphertext. Return how many bytes there were."""
        new = self._channel.outgoing()
        if new:
            old = self._ciphertext
            self._ciphertext = memoryview(b"".join((old, new)) if old else new)
            self.queued_bytes += len(new)
        return len(new)

    def _write_some(self) -> int:
        if not self._ciphertext:
            piece = self._next_piece()
            try:
                self._channel.write(piece)
            except (
                ssl.SSLError
            ) as error:  # the client has ended or broken TLS: treat it like a reset
                raise ConnectionAbortedError(_said(error)) from error
            self.queued_bytes -= len(piece)
            self._collect()
        count = self._sock.send(self._ciphertext)
        self._ciphertext = self._ciphertext[count:]
        return count

    def _next_piece(self) -> Buffer:
        """Remove up to a chunk of plaintext from the queue."""
        queue = self._queue
        head = queue[0]
        size = min(len(head), CHUNK_BYTES)
        if isinstance(head, FileRange):
            buffers = head.file.buffers(head.position, size)
            if sum(map(len, buffers)) != size:
                raise TruncatedFileError(f"{head!r}: the file is shorter")
            if size == head.size:
                queue.popleft()
            else:
                queue[0] = FileRange(head.file, head.position + size, head.size - size)
            return buffers[0] if len(buffers) == 1 else b"".join(buffers)
        if size < len(head):
            view = memoryview(head)
            queue[0] = view[size:]
            return view[:size]
        queue.popleft()
        pieces = [head]
        while queue and not isinstance(queue[0], FileRange) and size + len(queue[0]) <= CHUNK_BYTES:
            size += len(queue[0])
            pieces.append(queue.popleft())  # type: ignore[arg-type]  # no file range, as the line above says
        return head if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Stop writing, drop the queue, and close the duplicate socket."""
        self._ciphertext = memoryview(b"")
        super().close()
