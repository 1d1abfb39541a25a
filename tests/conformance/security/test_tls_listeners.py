"""A server with several listeners: TLS with other clients, renewed certificates, and peers that stall."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.fixtures.certificates import LOOPBACK, Certificates, KeyPair, make_certificates
from tests.fixtures.processes import ServerProcess, running_server

DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def keystore(certificates: Certificates, tmp_path: Path) -> Path:
    """The certificate of the server, in a file that the test replaces."""
    location = tmp_path / "server.pem"
    location.write_bytes(certificates.server.pem.read_bytes())
    return location


@pytest.fixture
def server(certificates: Certificates, keystore: Path, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server for each test, because a server logs only a few such lines in a minute."""
    listeners = ("--listen", "SSL://127.0.0.1:0", "--listen", "MUTUAL://127.0.0.1:0")
    settings = {
        "listener.security.protocol.map": "MUTUAL:SSL",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.location": str(certificates.authority),
        "listener.name.mutual.ssl.client.auth": "required",
        "group.initial.rebalance.delay.ms": "0",
    }
    configs = [text for key, value in settings.items() for text in ("--config", f"{key}={value}")]
    with running_server(tmp_path, *listeners, "--log-format", "json", *configs) as process:
        yield process


def security(certificates: Certificates, pair: KeyPair | None = None) -> dict[str, str]:
    own = (
        {
            "ssl.certificate.location": str(pair.certificate),
            "ssl.key.location": str(pair.key),
        }
        if pair is not None
        else {}
    )
    return {"security.protocol": "ssl", "ssl.ca.location": str(certificates.authority), **own}


def lines(server: ServerProcess, event: str) -> list[dict[str, object]]:
    parsed = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return [line for line in parsed if line.get("event") == event]


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


def address(server: ServerProcess, name: str) -> tuple[str, int]:
    host, _, port = server.listeners[name].rpartition(":")
    return host, int(port)


def names_of(server: ServerProcess, name: str, context: ssl.SSLContext) -> str:
    """Do a TLS handshake, and return the name in the server's certificate."""
    with (
        socket.create_connection(address(server, name), DEADLINE_S) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        found = sock.getpeercert()
    assert found is not None
    return str(found["subject"])


def test_a_client_that_is_revoked_is_refused_within_seconds(
    certificates: Certificates, tmp_path: Path
) -> None:
    signer, revoked = certificates.signer, certificates.signer.issue("revoked")
    path = signer.revoke(tmp_path / "list.crl")
    settings = {
        "ssl.keystore.location": str(certificates.server.pem),
        "ssl.truststore.location": str(certificates.authority),
        "ssl.client.auth": "required",
        "headrace.ssl.crl.location": str(path),
    }
    configs = [text for key, value in settings.items() for text in ("--config", f"{key}={value}")]
    listeners = ("--listen", "SSL://127.0.0.1:0", "--log-format", "json")
    with running_server(tmp_path, *listeners, *configs) as server:

        def topics(pair: KeyPair) -> str:
            """Return the error of a client, or nothing if the client is authenticated."""
            told: list[str] = []
            client = AdminClient(
                {
                    "bootstrap.servers": server.listeners["SSL"],
                    "error_cb": lambda error: told.append(str(error)),
                    **security(certificates, pair),
                }
            )
            try:
                client.list_topics(timeout=2)
            except KafkaException:
                until(lambda: client.poll(0.1) or told)
                return told[0]
            return ""

        assert topics(revoked) == ""
        signer.revoke(path, revoked)
        until(lambda: lines(server, "certificate_reloaded"))
        assert "certificate revoked" in topics(revoked)
        assert topics(certificates.client) == ""
        assert "certificate revoked" in str(lines(server, "tls_handshake_failed")[0]["reason"])


@pytest.mark.parametrize("name", ["SSL", "MUTUAL"])
def test_a_client_of_another_kind_writes_and_reads(
    server: ServerProcess, certificates: Certificates, name: str
) -> None:
    common = {
        "bootstrap.servers": server.listeners[name],
        **security(certificates, certificates.client if name == "MUTUAL" else None),
    }
    values = [b"%d" % number + b"x" * 10_000 for number in range(2_000)]
    producer = Producer({**common, "linger.ms": 5, "enable.idempotence": True})
    for value in values:
        producer.produce(f"over-{name}", value, partition=0)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    group = {"group.id": f"over-{name}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**common, **group})
    try:
        consumer.subscribe([f"over-{name}"])
        read: list[bytes | None] = []

        def read_on() -> bool:
            read.extend(message.value() for message in consumer.consume(500, 1.0))
            return len(read) >= len(values)

        until(read_on)
        assert read == values
        metadata = consumer.list_topics(timeout=DEADLINE_S)
        assert {f"{b.host}:{b.port}" for b in metadata.brokers.values()} == {server.listeners[name]}
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("who", "said"),
    [
        (None, "showed no certificate"),
        ("expired_client", "certificate has expired"),
        # It compares the names of the authorities and sends no certificate, as with Kafka.
        ("unknown_client", "has none of an authority in ssl.truststore.location"),
    ],
)
def test_a_client_without_a_valid_certificate_is_refused(
    server: ServerProcess, certificates: Certificates, who: str | None, said: str
) -> None:
    errors: list[str] = []
    pair = getattr(certificates, who) if who else None
    admin = AdminClient(
        {
            "bootstrap.servers": server.listeners["MUTUAL"],
            **security(certificates, pair),
            "error_cb": lambda error: errors.append(str(error)),
            "reconnect.backoff.ms": 500,
        }
    )
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=3)
    until(lambda: admin.poll(0.1) or errors)
    assert said in str(lines(server, "tls_handshake_failed")[0]["reason"])


def test_a_server_that_the_client_does_not_trust(
    server: ServerProcess, certificates: Certificates
) -> None:
    context = ssl.create_default_context(cafile=str(certificates.stranger_authority))
    with pytest.raises(ssl.SSLCertVerificationError):
        names_of(server, "SSL", context)
    until(
        lambda: any(
            "does not trust" in str(line["reason"])
            for line in lines(server, "tls_handshake_failed")
        )
    )


def test_the_log_names_the_remedy_for_the_wrong_protocol_on_a_port(server: ServerProcess) -> None:
    with socket.create_connection(address(server, "SSL"), DEADLINE_S) as sock:
        sock.sendall(bytes.fromhex("0000000c00120000000000010000ffff"))
        assert sock.recv(1) == b""
    with (
        socket.create_connection(address(server, "PLAINTEXT"), DEADLINE_S) as plain,
        pytest.raises((ssl.SSLError, OSError)),
    ):
        ssl.create_default_context().wrap_socket(plain, server_hostname="localhost")
    until(lambda: "set security.protocol=SSL" in server.log)
    until(lambda: "a TLS handshake on a plaintext listener" in server.log)


def test_a_renewed_certificate_is_used_and_connections_go_on(
    server: ServerProcess, certificates: Certificates, keystore: Path
) -> None:
    context = ssl.create_default_context(cafile=str(certificates.authority))
    assert "server" in names_of(server, "SSL", context)
    producer = Producer(
        {"bootstrap.servers": server.listeners["SSL"], **security(certificates), "linger.ms": 0}
    )
    producer.produce("renewed", b"before")
    assert producer.flush(DEADLINE_S) == 0
    keystore.write_bytes(certificates.signer.issue("second", hosts=LOOPBACK).pem.read_bytes())
    until(lambda: "second" in names_of(server, "SSL", context))
    good = keystore.read_bytes()
    keystore.write_bytes(b"half a file")
    server.signal(signal.SIGHUP)
    until(lambda: lines(server, "certificate_not_reloaded"))
    assert "second" in names_of(server, "SSL", context)
    keystore.write_bytes(good)
    before = len(lines(server, "certificate_reloaded"))
    server.signal(signal.SIGHUP)
    until(lambda: len(lines(server, "certificate_reloaded")) > before)
    producer.produce("renewed", b"after")
    assert producer.flush(DEADLINE_S) == 0
    assert server.running


def test_half_open_handshakes_are_counted_and_end(
    certificates: Certificates, tmp_path: Path
) -> None:
    settings = (
        f"ssl.keystore.location={certificates.server.pem}",
        "max.connections=200",
    )
    configs = [text for setting in settings for text in ("--config", setting)]
    with running_server(
        tmp_path, "--listen", "SSL://127.0.0.1:0", "--log-format", "json", *configs, memory=True
    ) as server:
        where = address(server, "SSL")
        stalled = [socket.create_connection(where, DEADLINE_S) for _ in range(200)]
        for sock in stalled:
            sock.sendall(b"\x16\x03\x01")
        context = ssl.create_default_context(cafile=str(certificates.authority))
        with pytest.raises(OSError, match=r".*"):
            names_of(server, "SSL", context)  # those that stall count
        until(lambda: lines(server, "connection_refused"))
        began = time.monotonic()
        for sock in stalled:
            assert sock.recv(1) == b""
            sock.close()
        assert time.monotonic() - began < 15
        assert "server" in names_of(server, "SSL", context)
        assert "it was not complete after 10 s" in server.log
