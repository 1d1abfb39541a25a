"""Our blocking and asyncio clients log in to Apache Kafka and Headrace with each mechanism, or are refused."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import headrace
import headrace.aio
from headrace.errors import AuthenticationError, HeadraceError
from tests.fixtures.certificates import Certificates
from tests.fixtures.secured_kafka import USER, identity

CLIENT_KINDS = ("blocking", "asyncio")


def credentials(server: Any, mechanism: str) -> dict[str, Any]:
    if mechanism == "OAUTHBEARER":
        return {"sasl.mechanism": mechanism, "sasl.oauthbearer.token": server.token}
    password = server.password(mechanism)
    return {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}


def round_trip(
    client_kind: str, bootstrap: str, topic: str, properties: dict[str, Any]
) -> list[bytes]:
    """Write two records with one client, and read them with another."""
    if client_kind == "asyncio":
        return asyncio.run(round_trip_aio(bootstrap, topic, properties))
    with headrace.Admin(bootstrap, **properties) as admin:
        admin.create_topic(topic, 1)
    with headrace.Producer(bootstrap, **properties) as producer:
        for value in (b"one", b"x" * 300_000):
            producer.send(topic, value)
    reading = {"auto_offset_reset": "earliest", "group": f"g-{topic}", **properties}
    with headrace.Consumer(bootstrap, **reading) as consumer:
        consumer.subscribe([topic])
        found: list[bytes] = []
        while len(found) < 2:
            found += [record.value for record in consumer.poll(10)]
        return found


async def round_trip_aio(bootstrap: str, topic: str, properties: dict[str, Any]) -> list[bytes]:
    async with headrace.aio.Admin(bootstrap, **properties) as admin:
        await admin.create_topic(topic, 1)
    async with headrace.aio.Producer(bootstrap, **properties) as producer:
        for value in (b"one", b"x" * 300_000):
            _ = await producer.send(topic, value)  # closing waits for it
    reading = {"auto_offset_reset": "earliest", "group": f"g-{topic}", **properties}
    async with headrace.aio.Consumer(bootstrap, **reading) as consumer:
        await consumer.subscribe([topic])
        found: list[bytes] = []
        while len(found) < 2:
            found += [record.value for record in await consumer.poll(10)]
        return found


def refusal(
    client_kind: str, bootstrap: str, properties: dict[str, Any]
) -> tuple[HeadraceError, float]:
    """Return the error of a client that cannot log in, and the seconds until it is raised."""

    async def list_topics() -> None:
        async with headrace.aio.Admin(bootstrap, **properties) as admin:
            await admin.topics()

    def list_topics_by_kind() -> None:
        if client_kind == "asyncio":
            asyncio.run(list_topics())
            return
        with headrace.Admin(bootstrap, **properties) as admin:
            admin.topics()

    began = time.monotonic()
    with pytest.raises(HeadraceError) as caught:
        list_topics_by_kind()
    return caught.value, time.monotonic() - began


@pytest.fixture(params=["kafka", "headrace"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(f"secured_{request.param}")


@pytest.fixture
def trust(certificates: Certificates) -> dict[str, Any]:
    return {"ssl.ca.location": str(certificates.authority)}


@pytest.mark.parametrize("client_kind", CLIENT_KINDS)
def test_records_go_round_under_tls(server: Any, trust: dict[str, Any], client_kind: str) -> None:
    properties = {"security.protocol": "SSL", **trust}
    values = round_trip(client_kind, server.bootstraps["SSL"], f"tls-{client_kind}", properties)
    assert values == [b"one", b"x" * 300_000]


@pytest.mark.parametrize("client_kind", CLIENT_KINDS)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_records_go_round_for_a_user(
    server: Any, trust: dict[str, Any], client_kind: str, mechanism: str, protocol: str
) -> None:
    properties = {"security.protocol": protocol, **credentials(server, mechanism)}
    if protocol == "SASL_SSL":
        properties |= trust
    topic = f"{protocol}-{mechanism}-{client_kind}"
    values = round_trip(client_kind, server.bootstraps[protocol], topic, properties)
    assert values == [b"one", b"x" * 300_000]


@pytest.mark.parametrize("client_kind", CLIENT_KINDS)
def test_a_certificate_lets_a_client_in(
    server: Any, certificates: Certificates, trust: dict[str, Any], client_kind: str
) -> None:
    properties = {"security.protocol": "SSL", **trust, **identity(certificates.client)}
    values = round_trip(
        client_kind, server.bootstraps["MUTUAL"], f"mutual-{client_kind}", properties
    )
    assert values == [b"one", b"x" * 300_000]


@pytest.mark.parametrize("client_kind", CLIENT_KINDS)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
    "wrong", [{"sasl.password": "wrong"}, {"sasl.username": "mallory"}], ids=["password", "user"]
)
def test_wrong_credentials_are_refused_at_once_in_the_brokers_words(
    server: Any, trust: dict[str, Any], client_kind: str, mechanism: str, wrong: dict[str, str]
) -> None:
    properties = {
        "security.protocol": "SASL_SSL", **trust, **credentials(server, mechanism), **wrong
    }  # fmt: skip
    error, took_s = refusal(client_kind, server.bootstraps["SASL_SSL"], properties)
    assert isinstance(error, AuthenticationError), repr(error)
    assert "refuses the login: Authentication failed" in str(error)
    assert "wrong" not in str(error)
    assert took_s < 5


@pytest.mark.parametrize("client_kind", CLIENT_KINDS)
def test_an_expired_token_is_refused(server: Any, trust: dict[str, Any], client_kind: str) -> None:
    properties = {
        "security.protocol": "SASL_SSL", **trust,
        "sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token": lambda: server.token(-100),
    }  # fmt: skip
    error, _ = refusal(client_kind, server.bootstraps["SASL_SSL"], properties)
    assert isinstance(error, AuthenticationError), repr(error)


MISTAKES: dict[str, tuple[str, dict[str, Any], str]] = {
    "no authority": ("SSL", {"security.protocol": "SSL"}, "set ssl.ca.location"),
    "TLS to plaintext": ("PLAINTEXT", {"security.protocol": "SSL"}, "PLAINTEXT"),
    "plaintext to TLS": ("SSL", {}, "SSL or SASL_SSL"),
    "no login": ("SASL_PLAINTEXT", {}, "should security.protocol be SASL_PLAINTEXT"),
    "login to plaintext": (
        "PLAINTEXT",
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": USER,
            "sasl.password": "x",
        },
        "does not use SASL on this listener",
    ),
    "no certificate": ("MUTUAL", {"security.protocol": "SSL", "trusts": True}, "certificate"),
}


@pytest.mark.parametrize("client_kind", CLIENT_KINDS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_error_names_the_wrong_setting(
    server: Any, trust: dict[str, Any], client_kind: str, mistake: str
) -> None:
    listener, given, text = MISTAKES[mistake]
    properties = {key: value for key, value in given.items() if key != "trusts"}
    if "trusts" in given:
        properties |= trust
    properties["request.timeout.ms"] = 3000
    error, _ = refusal(client_kind, server.bootstraps[listener], properties)
    assert text in str(error)


@pytest.mark.parametrize("client_kind", CLIENT_KINDS)
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_login_that_is_missing_is_named_at_once(
    server: Any, trust: dict[str, Any], client_kind: str, protocol: str
) -> None:
    # The default time-out of a call is half a minute.
    properties = {"security.protocol": "SSL", **trust} if protocol == "SASL_SSL" else {}
    error, took_s = refusal(client_kind, server.bootstraps[protocol], properties)
    assert isinstance(error, AuthenticationError), repr(error)
    assert f"should security.protocol be {protocol}" in str(error)
    assert took_s < 5


@pytest.mark.parametrize("client_kind", CLIENT_KINDS)
def test_a_strangers_certificate_is_refused(
    server: Any, certificates: Certificates, trust: dict[str, Any], client_kind: str
) -> None:
    properties = {"security.protocol": "SSL", **trust, **identity(certificates.unknown_client)}
    error, _ = refusal(client_kind, server.bootstraps["MUTUAL"], properties)
    assert isinstance(error, AuthenticationError), repr(error)
    assert "refuses the TLS handshake" in str(error)
