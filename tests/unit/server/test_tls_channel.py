"""TLS in memory: the memory that OpenSSL holds, and responses after the end of TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl

import pytest

from headrace.server.tls.channel import FEED_BYTES, TlsChannel, TlsError, TlsWriter
from tests.fixtures.certificates import Certificates, make_certificates
from tests.unit.server.tls_fakes import client_context, server_tls


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class Pair:
    """Both ends of a connection in memory."""

    def __init__(self, certificates: Certificates) -> None:
        self.server = TlsChannel(server_tls(certificates).context)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = client_context(certificates)
        self.client = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        done = False
        while not (done and self.server.established):
            try:
                self.client.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            if sent := self.outgoing.read():
                self.server.received(memoryview(sent))
                self.server.handshake()
            self.incoming.write(self.server.outgoing())

    def sealed(self, data: bytes) -> memoryview:
        rest = memoryview(data)
        while rest:
            rest = rest[self.client.write(rest) :]
        return memoryview(bytearray(self.outgoing.read()))


def test_openssl_receives_only_the_bytes_that_a_read_needs(
    certificates: Certificates,
) -> None:
    """OpenSSL keeps the memory that its buffers have needed for as long as the connection lasts."""
    pair, data = Pair(certificates), os.urandom(300_000)
    sealed = pair.sealed(data)
    pair.server.received(sealed)
    got = bytearray()
    into = memoryview(bytearray(10_000))
    while len(got) < len(data):
        count = pair.server.read(into)
        got += into[:count]
        assert pair.server._incoming.pending <= FEED_BYTES + 18 * 1024
    assert got == data
    assert pair.server.read(into) == 0


def test_unread_ciphertext_is_copied_before_the_buffer_is_used_again(
    certificates: Certificates,
) -> None:
    pair, data = Pair(certificates), os.urandom(200_000)
    sealed = pair.sealed(data)
    pair.server.received(sealed)
    into = memoryview(bytearray(len(data)))
    assert pair.server.read(into[:1_000]) == 1_000
    pair.server.keep()
    sealed[:] = bytes(len(sealed))
    assert pair.server.read(into[1_000:]) == len(data) - 1_000
    assert into == data


@pytest.mark.parametrize("end", ["we have said goodbye", "the client has broken it"])
def test_a_response_after_the_end_of_tls_closes_the_connection(
    certificates: Certificates, end: str
) -> None:
    """(1) A fetch waits.

    (2) The client ends TLS, and so does the server. (3) The response comes before the socket is closed.
    """
    pair = Pair(certificates)
    failed: list[OSError] = []
    if end == "we have said goodbye":
        pair.server.say_goodbye()
    else:
        pair.server.received(memoryview(bytearray(b"\x17\x03\x03\x00\x20" + bytes(32))))
        with pytest.raises(TlsError):
            pair.server.read(memoryview(bytearray(100)))
    ours, theirs = socket.socketpair()
    loop = asyncio.new_event_loop()
    writer = TlsWriter(loop, ours, lambda: None, failed.append, pair.server)
    writer.send([b"answer"])
    assert [type(error) for error in failed] == [ConnectionAbortedError]
    assert writer.fileno() == -1
    theirs.close()
    loop.close()
