"""Every client reports what is wrong: with its credentials, or with the server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.security.every_client import CLIENTS, round_trip
from tests.fixtures.certificates import Certificates
from tests.fixtures.client_security import Properties, login
from tests.fixtures.secured_headrace import SecuredHeadrace
from tests.fixtures.secured_kafka import PASSWORD, USER

pytestmark = pytest.mark.java  # one of the clients


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[SecuredHeadrace]:
    server = SecuredHeadrace(tmp_path_factory.mktemp("every") / "node", certificates)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def expired(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[SecuredHeadrace]:
    """A server whose certificate has expired."""
    further = {"ssl.keystore.location": str(certificates.expired_server.pem)}
    server = SecuredHeadrace(
        tmp_path_factory.mktemp("expired") / "node", certificates, further=further
    )
    server.start()
    yield server
    server.stop()


LOGIN = {
    "confluent-kafka": "_AUTHENTICATION",
    # If the answer and the end of the connection come together, it drops the answer.
    "kafka-python": "SaslAuthenticationFailedError|socket disconnected",
    "aiokafka": "SaslAuthenticationFailed",
    "kafkajs": "KafkaJSSASLAuthenticationError",
    "kcat": "Local: Authentication failure",
    "java": "SaslAuthenticationException",
    "headrace": "AuthenticationError",
}
"""The words for a failed login in the messages of each client."""
NO_TRUST = dict.fromkeys(CLIENTS, "certificate verify failed") | {
    "aiokafka": "CERTIFICATE_VERIFY_FAILED",
    "kafka-python": "CERTIFICATE_VERIFY_FAILED",
    "kafkajs": "unable to verify the first certificate",
    "java": "SslAuthenticationException",
}
EXPIRED = NO_TRUST | {"kafkajs": "certificate has expired", "headrace": "certificate has expired"}


def refused(name: str, bootstrap: str, directory: Path, properties: Properties, said: str) -> None:
    with pytest.raises(AssertionError) as caught:
        round_trip(name, bootstrap, directory, {**properties, "impatient": "yes"}, "refused")
    assert re.search(said, str(caught.value))


@pytest.mark.parametrize("who", ["wrong password", "unknown user", "token for another"])
@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_that_cannot_log_in_reports_why(
    server: SecuredHeadrace, certificates: Certificates, tmp_path: Path, name: str, who: str
) -> None:
    authority, said = certificates.authority, LOGIN[name]
    before = server.process.log.count("audit_authentication_failed")
    if who == "token for another":
        if name == "kcat":
            pytest.skip("no way to be given a token")
        token = server.issuer.token(USER, aud="another")
        properties = login(authority, "OAUTHBEARER", USER, token)
        # These two treat Kafka's answer to a bad token as success.
        said = {"kafkajs": "Closed connection", "aiokafka": "closed"}.get(name, said)
    elif who == "unknown user":
        properties = login(authority, "SCRAM-SHA-512", "nobody", PASSWORD)
    else:
        properties = login(authority, "PLAIN", USER, "wrong")
    refused(name, server.bootstraps["SASL_SSL"], tmp_path, properties, said)
    assert server.process.log.count("audit_authentication_failed") > before


@pytest.mark.parametrize("name", CLIENTS)
def test_a_server_of_an_unknown_authority_is_not_spoken_to(
    server: SecuredHeadrace, certificates: Certificates, tmp_path: Path, name: str
) -> None:
    properties = login(certificates.stranger_authority, "PLAIN", USER, PASSWORD)
    before = server.process.log.count("audit_authentication")
    refused(name, server.bootstraps["SASL_SSL"], tmp_path, properties, NO_TRUST[name])
    assert server.process.log.count("audit_authentication") == before, "no password was sent"


@pytest.mark.parametrize("name", CLIENTS)
def test_a_server_whose_certificate_has_expired_is_not_spoken_to(
    expired: SecuredHeadrace, certificates: Certificates, tmp_path: Path, name: str
) -> None:
    properties = login(certificates.authority, "PLAIN", USER, PASSWORD)
    refused(name, expired.bootstraps["SASL_SSL"], tmp_path, properties, EXPIRED[name])
    assert "audit_authentication" not in expired.process.log


@pytest.mark.parametrize("which", ["headrace", "kafka"])
def test_an_old_librdkafka_cannot_do_scram_with_kafka_either(
    request: pytest.FixtureRequest, certificates: Certificates, tmp_path: Path, which: str
) -> None:
    """kcat before librdkafka 2.6.1 repeats its own nonce. RFC 5802 and Kafka 4 require the nonce of the exchange."""
    server = request.getfixturevalue(f"secured_{which}")
    properties = login(certificates.authority, "SCRAM-SHA-512", USER, PASSWORD)
    refused("kcat", server.bootstraps["SASL_SSL"], tmp_path, properties, LOGIN["kcat"])
    if which == "headrace":
        assert "the nonce is not the one of this exchange" in server.process.log
