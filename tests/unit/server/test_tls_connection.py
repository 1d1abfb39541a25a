"""Connections with TLS: the tests of plain connections, and tests of TLS."""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from headrace.server.limits import KIB, MIB, ServerLimits
from headrace.server.tls import channel as tls_module
from headrace.server.tls.channel import TlsChannel
from headrace.server.tls.connection import TlsConnection
from tests.fixtures.certificates import Certificates, make_certificates
from tests.unit.server import test_connection
from tests.unit.server.fakes import PRODUCE, CountingFile, FakeHub, framed, reply, serving
from tests.unit.server.loops import on_loop
from tests.unit.server.tls_fakes import (
    LISTENER,
    TlsClient,
    client_context,
    server_tls,
    serving_tls,
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


Connects = Callable[..., AbstractAsyncContextManager[Callable[..., Awaitable[TlsClient]]]]


@pytest.fixture
def serve(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Connects:
    """`serving` with TLS, which the repeated tests of plain connections also use."""
    tls = server_tls(certificates)

    def over_tls(hub: FakeHub) -> AbstractAsyncContextManager[Callable[..., Awaitable[TlsClient]]]:
        return serving_tls(hub, tls, client_context(certificates))

    monkeypatch.setattr(test_connection, "serving", over_tls)
    return over_tls


def repeated(test: Callable[..., None]) -> Callable[..., None]:
    """Return a test of plain connections as a test of connections with TLS."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        test(*args, **kwargs)

    marks = [*getattr(test, "pytestmark", []), pytest.mark.usefixtures("serve").mark]
    run.pytestmark = marks  # type: ignore[attr-defined]  # pytest keeps the marks of a test here
    return run


test_pipelined_requests = repeated(test_connection.test_pipelined_requests_are_answered_in_order)
test_requests_of_any_size = repeated(test_connection.test_requests_of_any_size_arrive_whole)
test_late_responses = repeated(test_connection.test_later_responses_wait_behind_a_deferred_response)
test_requests_in_flight = repeated(test_connection.test_requests_in_flight_are_bounded)
test_file_ranges = repeated(test_connection.test_file_ranges_arrive_unchanged)
test_slow_readers = repeated(test_connection.test_a_slow_reader_is_not_read_from_and_bounds_memory)
test_readers_that_take_nothing = repeated(
    test_connection.test_a_client_that_reads_nothing_is_disconnected
)
test_garbage = repeated(test_connection.test_garbage_closes_the_connection_with_a_reason)
test_shared_budget = repeated(
    test_connection.test_half_received_requests_share_the_budget_without_deadlock
)
test_big_buffers = repeated(test_connection.test_a_big_buffer_is_given_back)
test_missing_rest = repeated(test_connection.test_an_incomplete_request_is_closed)
test_idle_connections = repeated(
    test_connection.test_an_idle_connection_is_closed_and_a_waiting_one_is_not
)
test_responses_without_clients = repeated(
    test_connection.test_a_response_to_a_closed_connection_is_dropped
)


@on_loop
async def _handshake_byte_by_byte(serve: Connects, certificates: Certificates) -> None:
    hub = FakeHub()
    tls = server_tls(certificates)
    async with serving(hub, lambda hub, loop: TlsConnection(hub, loop, LISTENER, tls)) as connect:
        plain = await connect()
        client = TlsClient(plain, client_context(certificates))
        done = False
        while not done:
            try:
                client.tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                pass
            for byte in client.outgoing.read():
                await plain.send(bytes([byte]))
            if not done:
                client.fill(await plain.receive_some(1 << 20))
        for byte in client.seal(framed(b"slowly") + framed(b"but surely")):
            await plain.send(bytes([byte]))
        assert await client.receive_frame() == b"slowly"
        assert await client.receive_frame() == b"but surely"


def test_bytes_may_come_one_at_a_time_from_the_first(
    serve: Connects, certificates: Certificates
) -> None:
    _handshake_byte_by_byte(serve, certificates)


@on_loop
async def test_plaintext_that_tls_holds_is_read_when_the_connection_goes_on(
    serve: Connects,
) -> None:
    """All bytes are there before the first answer: no wake-up of the socket brings the later requests."""
    hub = FakeHub(ServerLimits(max_requests_in_flight=2))
    async with serve(hub) as connect:
        client = await connect()
        await client.send(b"".join(framed(b"later %02d" % n + b"x" * 5_000) for n in range(12)))
        for number in range(12):
            await hub.until(lambda: bool(hub.slots))
            assert len(hub.slots) <= 2
            hub.fill()
            hub.end()
            assert (await client.receive_frame())[:8] == b"later %02d" % number


@on_loop
async def test_a_muted_connection_continues_with_the_bytes_in_the_tls_buffer(
    serve: Connects,
) -> None:
    hub = FakeHub()
    async with serve(hub) as connect:
        client = await connect()
        (connection,) = hub.connections
        connection.mute(hub.now_ms + 50)
        await client.send(b"".join(framed(b"%d" % number) for number in range(100)))
        assert [await client.receive_frame() for _ in range(100)] == [b"%d" % n for n in range(100)]


@on_loop
async def test_small_answers_queue_behind_ciphertext_that_the_client_has_not_taken(
    serve: Connects,
) -> None:
    """Each arrives in a wake-up of its own, after all pending bytes are encrypted."""
    hub = FakeHub()
    async with serve(hub) as connect:
        client = await connect(SO_RCVBUF=16 * KIB)
        (connection,) = hub.connections

        async def ask(body: bytes) -> None:
            hub.handled.clear()
            await client.send(framed(body))
            await hub.until(lambda: bool(hub.handled))

        large = 0
        while not connection.unsent_bytes:
            await ask(b"large" + b"x" * 60_000)
            large += 1
        for number in range(20):
            waiting = connection.unsent_bytes
            await ask(b"small %02d" % number)
            assert connection.unsent_bytes > waiting
        for _ in range(large):
            assert (await client.receive_frame())[:5] == b"large"
        for number in range(20):
            assert await client.receive_frame() == b"small %02d" % number
        await hub.until(lambda: connection.unsent_bytes == 0)


@on_loop
async def test_files_are_read_only_as_the_socket_takes_them(
    serve: Connects, tmp_path: Path
) -> None:
    content = os.urandom(1 * MIB) * 50
    (tmp_path / "segment").write_bytes(content)
    file = CountingFile(tmp_path / "segment")
    hub = FakeHub()
    hub.file = file
    async with serve(hub) as connect:
        client = await connect(SO_RCVBUF=16 * KIB)
        await client.send(framed(b"file:0:%d" % len(content)))
        (connection,) = hub.connections
        await hub.until(lambda: connection.unsent_bytes > 0)
        other = await connect()
        for _ in range(20):
            await other.send(framed(b"ping"))
            assert await other.receive_frame() == b"ping"
        assert file.read_bytes < 10 * MIB  # the buffers of the system, and a chunk
        sealed = connection._writer._ciphertext  # type: ignore[attr-defined]  # a TlsWriter
        assert len(sealed) < 2 * tls_module.CHUNK_BYTES
        assert len(content) - 10 * MIB < connection.unsent_bytes < len(content) + 1 * MIB
        assert await client.receive_frame() == content
        await hub.until(lambda: connection.unsent_bytes == 0)
    file.close()


@on_loop
async def test_a_file_that_is_too_short_ends_the_connection_without_close_notify(
    serve: Connects, tmp_path: Path
) -> None:
    (tmp_path / "segment").write_bytes(b"x" * 100_000)
    hub = FakeHub()
    hub.file = CountingFile(tmp_path / "segment")
    async with serve(hub) as connect:
        client = await connect()
        await client.send(framed(b"file:0:200000"))
        with pytest.raises(ConnectionError):
            await client.receive(300_000)
    assert "shorter" in str(hub.lines.lines)
    hub.file.close()


@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@on_loop
async def test_both_versions_carry_requests_and_answers(
    certificates: Certificates, version: str
) -> None:
    body = os.urandom(200_000)
    tls = server_tls(certificates, ssl_enabled_protocols=version)
    async with serving_tls(FakeHub(), tls, client_context(certificates)) as connect:
        client = await connect()
        assert client.tls.version() == version
        for _ in range(3):
            await client.send(framed(body, PRODUCE))
            assert await client.receive_frame() == body


@on_loop
async def test_both_ends_say_goodbye(serve: Connects) -> None:
    hub = FakeHub()
    async with serve(hub) as connect:
        client = await connect()
        await client.send(framed(b"close"))
        assert await client.receive_some(1) == b""  # and no SSLEOFError: close_notify arrived
        client = await connect()
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.unwrap()
        await client._plain.send(client.outgoing.read())
        await hub.until(lambda: not hub.connections)
    assert hub.lines.reasons == ["asked to"]


@on_loop
async def test_a_changed_tls_record_ends_the_connection(serve: Connects) -> None:
    hub = FakeHub()
    async with serve(hub) as connect:
        client = await connect()
        sealed = bytearray(client.seal(framed(b"hello")))
        sealed[-1] ^= 1
        await client._plain.send(bytes(sealed))
        await hub.until(lambda: not hub.connections)
    assert hub.lines.reasons[0].startswith("TLS: ")
    assert not hub.handled


@on_loop
async def test_a_stalled_handshake_is_closed(serve: Connects, certificates: Certificates) -> None:
    tls = server_tls(certificates)
    hub = FakeHub()
    async with serving(hub, lambda hub, loop: TlsConnection(hub, loop, LISTENER, tls)) as connect:
        client = await connect()
        (connection,) = hub.connections
        await client.send(b"\x16\x03\x01")
        await hub.until(lambda: connection._received_ms == hub.now_ms)
        connection.check(hub.now_ms + 10_000)
        assert not connection.lost
        connection.check(hub.now_ms + 10_001)
        assert await client.closed()
    ((event, fields),) = hub.lines.lines
    assert event == "tls_handshake_failed"
    assert fields["reason"] == "it was not complete after 10 s"


@on_loop
async def test_handshakes_that_come_at_once_take_turns(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop serves other connections between two steps of handshakes."""
    loop, iteration = asyncio.get_running_loop(), 0
    steps: list[int] = []
    true = TlsChannel.handshake

    def handshake(channel: TlsChannel) -> bool:
        steps.append(iteration)
        return true(channel)

    def count() -> None:
        nonlocal iteration
        iteration += 1
        loop.call_soon(count)

    monkeypatch.setattr(TlsChannel, "handshake", handshake)
    count()
    tls = server_tls(certificates)
    context = client_context(certificates)
    hub = FakeHub()
    async with serving(hub, lambda hub, loop: TlsConnection(hub, loop, LISTENER, tls)) as connect:
        clients = [TlsClient(await connect(), context) for _ in range(20)]
        gone = await connect()  # before its turn
        for client in clients:
            with pytest.raises(ssl.SSLWantReadError):
                client.tls.do_handshake()
            client.sock.send(client.outgoing.read())  # in one iteration of the event loop
        gone.sock.send(b"\x16\x03\x01")
        gone.sock.close()
        for client in clients:
            client.fill(await client._plain.receive_some(1 << 20))
            await client.handshake()
            await client.send(framed(b"hello"))
            assert await client.receive_frame() == b"hello"
    assert len(steps) >= 2 * len(clients)
    assert max(Counter(steps).values()) == 1


@pytest.mark.parametrize("sent", [framed(b"hello"), b"GET / HTTP/1.1\r\n\r\n", b"\x00"])
@on_loop
async def test_a_client_without_tls_is_logged(certificates: Certificates, sent: bytes) -> None:
    tls = server_tls(certificates)
    hub = FakeHub()
    async with serving(hub, lambda hub, loop: TlsConnection(hub, loop, LISTENER, tls)) as connect:
        client = await connect()
        await client.send(sent)
        assert await client.closed()
    ((event, fields),) = hub.lines.lines
    assert event == "tls_handshake_failed"
    assert "set security.protocol=SSL" in str(fields["reason"])


async def meet(hub: FakeHub, tls: Any, context: ssl.SSLContext) -> None:
    """Connect, and check that a request gets a response."""
    async with serving_tls(hub, tls, context) as connect:
        client = await connect()
        await client.send(framed(b"hello"))
        if await client.receive(9) != reply(b"hello"):
            raise ConnectionResetError("the server has closed")


@on_loop
async def test_a_client_is_named_by_its_certificate(certificates: Certificates) -> None:
    tls = server_tls(
        certificates,
        ssl_client_auth="required",
        ssl_truststore_location=str(certificates.authority),
        ssl_principal_mapping_rules="RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/U,DEFAULT",
    )
    hub = FakeHub()
    async with serving_tls(hub, tls, client_context(certificates, certificates.client)) as connect:
        client = await connect()
        await client.send(framed(b"hello"))
        assert await client.receive_frame() == b"hello"
        (connection,) = hub.connections
        assert str(connection.session.principal) == "User:ALICE@READERS"
        assert connection.session.listener == "SSL"


@pytest.mark.parametrize(
    ("who", "said"),
    [
        (None, "showed no certificate"),
        ("expired_client", "certificate has expired"),
        ("unknown_client", "unable to get local issuer certificate"),
    ],
)
@pytest.mark.parametrize("version", ["TLSv1.2", "TLSv1.3"])
@on_loop
async def test_a_client_that_does_not_authenticate_is_refused(
    certificates: Certificates, who: str | None, said: str, version: str
) -> None:
    tls = server_tls(
        certificates,
        ssl_client_auth="required",
        ssl_truststore_location=str(certificates.authority),
        ssl_enabled_protocols=version,
    )
    hub = FakeHub()
    pair = getattr(certificates, who) if who else None
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await meet(hub, tls, client_context(certificates, pair))
    assert not hub.handled
    assert said in hub.lines.reasons[0]


@on_loop
async def test_a_certificate_that_is_only_requested_may_be_missing_but_not_wrong(
    certificates: Certificates,
) -> None:
    tls = server_tls(
        certificates,
        ssl_client_auth="requested",
        ssl_truststore_location=str(certificates.authority),
    )
    await meet(FakeHub(), tls, client_context(certificates))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await meet(FakeHub(), tls, client_context(certificates, certificates.unknown_client))


@on_loop
async def test_a_subject_that_no_rule_matches_is_refused(certificates: Certificates) -> None:
    tls = server_tls(
        certificates,
        ssl_client_auth="required",
        ssl_truststore_location=str(certificates.authority),
        ssl_principal_mapping_rules="RULE:^CN=bob$/bob/",
    )
    hub = FakeHub()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await meet(hub, tls, client_context(certificates, certificates.client))
    assert "no rule" in hub.lines.reasons[0]
    assert not hub.handled


@on_loop
async def test_old_versions_of_tls_are_refused(certificates: Certificates) -> None:
    context = client_context(certificates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    hub = FakeHub()
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await meet(hub, server_tls(certificates), context)
    assert "no version of TLS" in hub.lines.reasons[0]
