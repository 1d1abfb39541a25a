"""kafka-python, made to expect an old broker, logs in with SaslHandshake version 0 and bare tokens."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest

from tests.fixtures.sasl_server import PASSWORDS, SaslServer

with warnings.catch_warnings():  # kafka-python loads its schemas with a deprecated call
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import KafkaError
    from kafka.net import connection

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of kafka-python
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # left open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslServer]:
    server = SaslServer(tmp_path_factory.mktemp("old"))
    server.start()
    yield server
    server.stop()
    gc.collect()  # here, where it does not matter that kafka-python leaves sockets open after a refusal


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The tokens that were sent without a header."""
    sent: list[bytes] = []
    original = connection.SaslBytesRequest

    def spy(token: bytes):
        sent.append(token)
        return original(token)

    monkeypatch.setattr(connection, "SaslBytesRequest", spy)
    return sent


def properties(server: SaslServer, mechanism: str, password: str) -> dict[str, object]:
    return {
        "bootstrap_servers": server.sasl,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "alice",
        "sasl_plain_password": password,
        "api_version": (0, 11),  # the last one before version 1
        "bootstrap_timeout_ms": 3000,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_records_go_round(server: SaslServer, bare: list[bytes], mechanism: str) -> None:
    shared = properties(server, mechanism, PASSWORDS["alice"])
    with KafkaProducer(**shared, enable_idempotence=False) as producer:
        producer.send(mechanism, b"old").get(20)
    consumer = KafkaConsumer(
        mechanism, **shared, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    assert next(iter(consumer)).value == b"old"
    consumer.close()
    assert bare


def test_a_wrong_password_is_refused(server: SaslServer, bare: list[bytes]) -> None:
    with pytest.raises(KafkaError):
        KafkaProducer(**properties(server, "PLAIN", "wrong"), max_block_ms=3000).send(
            "refused", b"x"
        )
    assert bare
    assert "audit_authentication_failed" in server.process.log
