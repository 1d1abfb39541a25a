"""Replication over secured listeners between three brokers: certificates, logins and permissions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

import headrace
from headrace.testing.cluster.cluster import Cluster
from tests.fixtures.certificates import Certificates, make_certificates

SCRAM: Final = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    'username="broker" password="secret";'
)
PLAIN: Final = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="broker" password="secret" user_broker="secret";'
)
REPORT_S: Final = 3.0
"""The seconds in which a failure has to be logged."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls(certificates: Certificates) -> dict[str, str]:
    pair = certificates.signer.issue("broker", hosts=("localhost",), is_broker=True)
    return {
        "ssl.keystore.location": str(pair.pem),
        "ssl.truststore.location": str(certificates.authority),
    }


def secured(protocol: str, settings: Mapping[str, str]) -> Cluster:
    """Return a cluster whose brokers use another listener than clients."""
    return Cluster(
        3,
        configs={
            "listeners": "CLIENT://127.0.0.1:0,INNER://localhost:0",
            "listener.security.protocol.map": f"CLIENT:PLAINTEXT,INNER:{protocol}",
            "inter.broker.listener.name": "INNER",
            "authorizer.class.name": "headrace",
            "super.users": "User:ANONYMOUS;User:broker;User:CN=broker",
            "default.replication.factor": "3",
            **settings,
        },
        session_timeout_ms=1_000,
    )


def use(cluster: Cluster) -> None:
    """Write a record with all replicas in sync, and elect another leader that has it."""
    cluster.create_topic("t", configs={"min.insync.replicas": 2})
    cluster.publish("t", b"a")
    cluster.wait_in_sync("t")
    leader = cluster.leader("t")
    cluster.kill(leader)
    cluster.wait_until(lambda: cluster.leader("t") not in {-1, leader})
    assert [record.value for record in cluster.messages("t")] == [b"a"]


def test_brokers_replicate_over_tls_with_certificates_of_both_sides(tls: dict[str, str]) -> None:
    mutual = {**tls, "listener.name.inner.ssl.client.auth": "required"}
    with secured("SSL", mutual) as cluster:
        use(cluster)


def test_brokers_replicate_as_a_user_of_plain() -> None:
    settings = {
        "listener.name.inner.sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.inner.plain.sasl.jaas.config": PLAIN,
    }
    with secured("SASL_PLAINTEXT", settings) as cluster:
        use(cluster)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_brokers_replicate_as_a_user_of_scram(tls: dict[str, str], mechanism: str) -> None:
    settings = {
        "sasl.mechanism.inter.broker.protocol": mechanism,
        f"listener.name.inner.{mechanism.lower()}.sasl.jaas.config": SCRAM,
    }
    with secured("SASL_SSL", {**tls, **settings}) as cluster:
        cluster.admin.set_user("broker", "secret")
        use(cluster)


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, object]]:
    return [
        vars(record)["headrace_fields"] for record in caplog.records if record.getMessage() == name
    ]


def fails(cluster: Cluster, caplog: pytest.LogCaptureFixture, event: str) -> dict[str, object]:
    """Write a record that is not replicated, and return the event that says why."""
    cluster.create_topic("t", configs={"min.insync.replicas": 1})
    began_s = time.monotonic()
    with headrace.Producer(cluster.bootstrap, acks=1) as producer:
        producer.send("t", b"a").result()
    cluster.wait_until(lambda: events(caplog, event), timeout_s=REPORT_S, what=event)
    assert time.monotonic() - began_s < REPORT_S + 1
    with pytest.raises(TimeoutError, match="t-0"):
        cluster.wait_in_sync("t", timeout_s=0)
    return events(caplog, event)[0]


def test_a_wrong_password_is_logged_until_it_is_right(
    tls: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = {**tls, "listener.name.inner.scram-sha-512.sasl.jaas.config": SCRAM}
    with secured("SASL_SSL", settings) as cluster:
        event = fails(cluster, caplog, "peer_login_failed")
        assert "listener.name.inner.<mechanism>.sasl.jaas.config" in str(event["remedy"])
        assert "secret" not in str(event)
        cluster.admin.set_user("broker", "secret")
        cluster.wait_in_sync("t")


def test_a_certificate_that_is_not_trusted_is_logged_until_its_authority_is_trusted(
    tls: dict[str, str],
    certificates: Certificates,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(certificates.stranger_authority.read_bytes())
    with secured("SSL", {**tls, "ssl.truststore.location": str(trusted)}) as cluster:
        event = fails(cluster, caplog, "peer_login_failed")
        assert "certificate verify failed" in str(event["reason"])
        assert "ssl.truststore.location" in str(event["remedy"])
        trusted.write_bytes(certificates.authority.read_bytes())
        cluster.wait_in_sync("t")


def test_a_broker_without_the_permission_to_replicate_is_logged(
    tls: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        **tls,
        "super.users": "User:ANONYMOUS",
        "listener.name.inner.ssl.client.auth": "required",
    }
    with secured("SSL", settings) as cluster:
        event = fails(cluster, caplog, "follower_fetch_refused")
        assert event["error"] == "TOPIC_AUTHORIZATION_FAILED"
