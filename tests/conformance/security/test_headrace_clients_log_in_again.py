"""KIP-368 with our clients: sessions end every five seconds, and the load has no errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
import headrace.aio
from tests.fixtures.certificates import Certificates
from tests.fixtures.secured_headrace import SecuredHeadrace
from tests.fixtures.secured_kafka import USER, SecuredKafka

SESSION_MS = 5000
"""A client logs in again in the last 5 to 15 % of a session. That time has to suffice on a busy machine."""
LOAD_S = 11.0
SERVERS = {"kafka": SecuredKafka, "headrace": SecuredHeadrace}


@pytest.fixture(scope="module", params=SERVERS)
def forgetful(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    certificates: Certificates,
) -> Iterator[Any]:
    directory = tmp_path_factory.mktemp("forgetful") / "node"
    server = SERVERS[request.param](directory, certificates, reauthenticate_ms=SESSION_MS)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def properties_of(server: Any, mechanism: str, certificates: Certificates) -> dict[str, Any]:
    properties = {
        "security.protocol": "SASL_SSL", "ssl.ca.location": str(certificates.authority),
        "sasl.mechanism": mechanism,
    }  # fmt: skip
    if mechanism == "OAUTHBEARER":
        return {**properties, "sasl.oauthbearer.token": server.token}
    password = server.password(mechanism)
    return {**properties, "sasl.username": USER, "sasl.password": password}


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_blocking_load_outlives_its_sessions(
    forgetful: Any, certificates: Certificates, mechanism: str
) -> None:
    bootstrap = forgetful.bootstraps["SASL_SSL"]
    properties = properties_of(forgetful, mechanism, certificates)
    topic = f"blocking-{mechanism}"
    with headrace.Admin(bootstrap, **properties) as admin:
        admin.create_topic(topic, 1)
    sent = 0
    found: list[bytes] = []
    with (
        headrace.Producer(bootstrap, **properties) as producer,
        headrace.Consumer(
            bootstrap, group=topic, auto_offset_reset="earliest", **properties
        ) as consumer,
    ):
        consumer.subscribe([topic])
        until_s = time.monotonic() + LOAD_S
        while time.monotonic() < until_s:
            producer.send(topic, str(sent).encode())
            sent += 1
            found += [record.value for record in consumer.poll(0.01)]
        producer.flush()
        while len(found) < sent:
            found += [record.value for record in consumer.poll(1)]
        assert producer._driver.lost_connections == 0
        assert consumer._driver.lost_connections == 0
    assert found == [str(number).encode() for number in range(sent)]


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_a_load_on_a_loop_outlives_its_sessions(
    forgetful: Any, certificates: Certificates, mechanism: str
) -> None:
    bootstrap = forgetful.bootstraps["SASL_SSL"]
    properties = properties_of(forgetful, mechanism, certificates)

    async def load() -> None:
        topic = f"aio-{mechanism}"
        async with headrace.aio.Admin(bootstrap, **properties) as admin:
            await admin.create_topic(topic, 1)
        async with headrace.aio.Producer(bootstrap, **properties) as producer:
            until_s = time.monotonic() + LOAD_S
            sent = 0
            while time.monotonic() < until_s:
                metadata = await (await producer.send(topic, b"x"))
                assert metadata.offset == sent
                sent += 1
            assert producer._driver.lost_connections == 0

    asyncio.run(load())
