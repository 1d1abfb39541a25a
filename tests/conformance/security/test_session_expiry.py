"""Sessions end every two seconds while clients work: clients renew them or reconnect, and lose no records."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

import headrace
from tests.fixtures.sasl_server import PASSWORDS, SaslServer

LASTS_S = 7.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslServer]:
    server = SaslServer(tmp_path_factory.mktemp("ends"), connections_max_reauth_ms="2000")
    server.start()
    yield server
    server.stop()


def settings(mechanism: str) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": PASSWORDS["alice"],
    }


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_confluent_producer_reauthenticates_without_errors(server, mechanism):
    outcomes = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server.sasl, "linger.ms": 0, **settings(mechanism)}
    )
    until_s, sent = time.monotonic() + LASTS_S, 0
    while time.monotonic() < until_s:
        producer.produce(
            f"c-{mechanism}", b"x", on_delivery=lambda error, _: outcomes.append(error)
        )
        sent += 1
        producer.poll(0.05)
    assert producer.flush(20) == 0
    assert outcomes == [None] * sent


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_a_headrace_producer_reauthenticates_on_its_connections(server, mechanism):
    closed_before = server.process.log.count("the session has expired")
    with headrace.Producer(server.sasl, **settings(mechanism)) as producer:
        until_s = time.monotonic() + LASTS_S
        while time.monotonic() < until_s:
            producer.send(f"h-{mechanism}", b"x").result(20)
    assert server.process.log.count("the session has expired") == closed_before
    again = server.process.log.count(f"mechanism={mechanism}")
    assert again >= 3
