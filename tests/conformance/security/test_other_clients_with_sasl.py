"""confluent-kafka, kafka-python and aiokafka log in to Headrace by every mechanism, and are refused."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokens
from aiokafka.errors import KafkaError as AioKafkaError

from tests.fixtures.sasl_server import MECHANISMS, PASSWORDS, SaslServer

with warnings.catch_warnings():  # kafka-python loads its schemas in an old way
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.errors import KafkaError
    from kafka.net.sasl.oauth import AbstractTokenProvider

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of kafka-python
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning"
    ),  # what it leaves open
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
PATIENCE_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslServer]:
    server = SaslServer(tmp_path_factory.mktemp("sasl"))
    server.start()
    yield server
    server.stop()
    gc.collect()  # here, where it does not matter that kafka-python leaves sockets open after a refusal


def confluent_settings(bootstrap: str, mechanism: str, user: str, secret: str) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        settings["oauth_cb"] = lambda _: (secret, time.time() + 3000)
    else:
        settings |= {"sasl.username": user, "sasl.password": secret}
    return settings


def confluent_round_trip(bootstrap, mechanism, user, secret, topic) -> bytes:
    settings = confluent_settings(bootstrap, mechanism, user, secret)
    errors: list[Any] = []
    producer = confluent_kafka.Producer({**settings, "error_cb": errors.append})
    producer.produce(topic, b"confluent")
    until = time.monotonic() + PATIENCE_S
    while producer.flush(0.2) and time.monotonic() < until:
        refused = [e for e in errors if e.code() == confluent_kafka.KafkaError._AUTHENTICATION]
        if refused:
            producer.purge()
            raise PermissionError(refused[0].str())
    consumer = confluent_kafka.Consumer(
        {**settings, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        while time.monotonic() < until:
            message = consumer.poll(0.5)
            if message is not None and not message.error():
                return bytes(message.value())
    finally:
        consumer.close()
    raise TimeoutError


class Tokens(AbstractTokenProvider):  # type: ignore[misc]  # the client is untyped
    def __init__(self, token: str = "") -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


def kafka_python_round_trip(bootstrap, mechanism, user, secret, topic) -> bytes:
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "bootstrap_timeout_ms": 5000,  # how long it goes on asking after a refusal
    }
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = Tokens(secret)
    else:
        settings |= {"sasl_plain_username": user, "sasl_plain_password": secret}
    with KafkaProducer(**settings, max_block_ms=5000) as producer:
        producer.send(topic, b"kafka-python").get(PATIENCE_S)
    consumer = KafkaConsumer(
        topic, **settings, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    try:
        return bytes(next(iter(consumer)).value)
    finally:
        consumer.close()


class AioToken(AioTokens):  # type: ignore[misc]  # the client is untyped
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


async def aiokafka_exchange(bootstrap, mechanism, user, secret, topic) -> bytes:
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = AioToken(secret)
    else:
        settings |= {"sasl_plain_username": user, "sasl_plain_password": secret}
    producer = AIOKafkaProducer(**settings)
    try:
        await producer.start()
        await producer.send_and_wait(topic, b"aiokafka")
    finally:
        await producer.stop()
    consumer = AIOKafkaConsumer(topic, **settings, auto_offset_reset="earliest")
    await consumer.start()
    try:
        return bytes((await consumer.getone()).value)
    finally:
        await consumer.stop()


def aiokafka_round_trip(*arguments: str) -> bytes:
    return asyncio.run(asyncio.wait_for(aiokafka_exchange(*arguments), PATIENCE_S))


CLIENTS: dict[str, tuple[Callable[..., bytes], type[Exception]]] = {
    "confluent": (confluent_round_trip, PermissionError),
    "kafka-python": (kafka_python_round_trip, KafkaError),
    "aiokafka": (aiokafka_round_trip, AioKafkaError),
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_whoever_has_the_right_credentials_works(server, client, mechanism):
    round_trip, _ = CLIENTS[client]
    for user, password in PASSWORDS.items():
        secret = server.issuer.token(user) if mechanism == "OAUTHBEARER" else password
        topic = f"{client}-{mechanism}-{user}"
        assert round_trip(server.sasl, mechanism, user, secret, topic) == client.encode()


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_whoever_has_not_is_told(server, client, mechanism):
    round_trip, error = CLIENTS[client]
    secret = "wrong"
    if mechanism == "OAUTHBEARER":
        secret = server.issuer.token(aud="another")
    with pytest.raises(error):
        round_trip(server.sasl, mechanism, "alice", secret, "refused")
