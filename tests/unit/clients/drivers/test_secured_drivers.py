"""Both drivers under TLS and with tokens: bytes in both directions, time-outs, and the program's errors."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.clients.config import ClientConfig, parse_config
from headrace.clients.drivers import open_aio_driver, open_blocking_driver
from headrace.clients.drivers.tls import client_context, distrust
from headrace.clients.flows.effects import Flow
from headrace.clients.flows.fetch import FetchLimits, FetchPosition, fetch
from headrace.clients.flows.metadata import refresh
from headrace.clients.flows.produce import produce
from headrace.errors import (
    AuthenticationError,
    ConfigError,
    ErrorCode,
    HeadraceError,
    TransportError,
)
from headrace.protocol.api_keys import ApiKey
from headrace.records.builder import build_batch
from headrace.types import TopicPartition
from tests.fixtures.certificates import PASSWORD, Certificates, KeyPair, make_certificates
from tests.unit.clients.fake_broker import FakeCluster, Fault

T0 = TopicPartition("t", 0)
BIG = b"v" * 900_000
OAUTH = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def serving(pair: KeyPair, *, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.pem)
    if version is not None:
        context.maximum_version = version
    return context


class Runner:
    """Runs flows in a driver of either kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(
        self, bootstrap: str, properties: dict[str, Any], *flows: Callable[[Any], Flow[Any]]
    ) -> list[Any]:
        config = parse_config(ClientConfig, properties, bootstrap_servers=bootstrap)
        if self.kind == "aio":
            return asyncio.run(self._on_loop(bootstrap, config, flows))
        driver = open_blocking_driver(bootstrap, config)
        try:
            return [driver.run(flow(driver.engine.state)) for flow in flows]
        finally:
            driver.close()

    async def _on_loop(self, bootstrap: str, config: ClientConfig, flows: Any) -> list[Any]:
        driver = open_aio_driver(bootstrap, config)
        try:
            return [await driver.run(flow(driver.engine.state)) for flow in flows]
        finally:
            await driver.close()


@pytest.fixture(params=["blocking", "aio"])
def run(request: pytest.FixtureRequest) -> Runner:
    return Runner(request.param)


def ask_metadata(state: Any) -> Flow[Any]:
    return refresh(state, ["t"])


def write(acks: int) -> Callable[[Any], Flow[Any]]:
    batch = build_batch([(b"k", BIG, (), 1)])
    return lambda state: produce(state, T0, batch, acks=acks, timeout_ms=10_000)


def read(state: Any) -> Flow[Any]:
    limits = FetchLimits(max_bytes=50 << 20, max_wait_ms=100, min_bytes=1)
    return fetch(state, {T0: FetchPosition(0)}, limits)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_large_batches_go_both_ways(
    run: Runner, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    tls = serving(certificates.server, version=version)
    with FakeCluster(topics={"t": 1}, tls=tls) as cluster:
        properties = {
            "security.protocol": "SSL", "ssl.ca.location": str(certificates.authority),
        }  # fmt: skip
        *_, fetched = run(cluster.bootstrap, properties, write(-1), write(0), write(-1), read)
        assert cluster.logs[T0].end_offset == 3
        assert len(fetched[T0].records) == 1 << 20, "a partition's limit"


def error_of(run: Runner, bootstrap: str, properties: dict[str, Any]) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        run(bootstrap, {"request.timeout.ms": 3000, **properties}, ask_metadata)
    return caught.value


def test_a_certificate_of_an_unknown_authority_is_refused_by_default(
    run: Runner, certificates: Certificates
) -> None:
    with FakeCluster(topics={"t": 1}, tls=serving(certificates.server)) as cluster:
        trust = {"ssl.ca.location": str(certificates.stranger_authority)}
        began = time.monotonic()
        error = error_of(run, cluster.bootstrap, {"security.protocol": "SSL", **trust})
        assert isinstance(error, AuthenticationError)
        assert "certificate verify failed: unable to get local issuer" in str(error)
        assert "set ssl.ca.location" in str(error)
        assert time.monotonic() - began < 2, "not tried again and again"
        properties = {"security.protocol": "SSL", "enable.ssl.certificate.verification": "false"}
        assert run(cluster.bootstrap, properties, ask_metadata)


def test_a_certificate_that_has_expired_is_refused(run: Runner, certificates: Certificates) -> None:
    with FakeCluster(topics={"t": 1}, tls=serving(certificates.expired_server)) as cluster:
        trust = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.authority)}
        error = error_of(run, cluster.bootstrap, trust)
        assert isinstance(error, AuthenticationError)
        assert "certificate has expired" in str(error)


def test_a_certificate_of_another_host_is_refused_by_default(
    run: Runner, certificates: Certificates
) -> None:
    other = certificates.signer.issue("other", hosts=["other.example"])
    with FakeCluster(topics={"t": 1}, tls=serving(other)) as cluster:
        trust = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.authority)}
        error = error_of(run, cluster.bootstrap, trust)
        assert isinstance(error, AuthenticationError)
        assert "IP address mismatch" in str(error)
        anybody = {**trust, "ssl.endpoint.identification.algorithm": "none"}
        assert run(cluster.bootstrap, anybody, ask_metadata)


def test_a_broker_that_is_silent_in_the_handshake_is_given_up_in_time(run: Runner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        properties = {
            "security.protocol": "SSL", "socket.connection.setup.timeout.ms": 200,
            "request.timeout.ms": 500,
        }  # fmt: skip
        began = time.monotonic()
        error = error_of(run, f"127.0.0.1:{silent.getsockname()[1]}", properties)
        assert isinstance(error, TransportError)
        assert time.monotonic() - began < 5


def test_a_broker_under_tls_that_goes_away_is_found_again(
    run: Runner, certificates: Certificates
) -> None:
    with FakeCluster(topics={"t": 1}, tls=serving(certificates.server)) as cluster:
        cluster.faults += [Fault(ApiKey.METADATA, "drop"), Fault(ApiKey.METADATA, "drop_after")]
        trust = {"security.protocol": "SSL", "ssl.ca.location": str(certificates.authority)}
        assert run(cluster.bootstrap, {**trust, "retry.backoff.ms": 5}, ask_metadata)
        assert cluster.brokers[1].accepted == 3


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("TLSV1_ALERT_UNKNOWN_CA", "refuses the TLS handshake: unknown ca"),
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", "set ssl.certificate.location and ssl.key.location"),
        ("WRONG_VERSION_NUMBER", "does not use TLS: set security.protocol=PLAINTEXT"),
        ("TLSV1_ALERT_INTERNAL_ERROR", ""),
        (None, ""),
    ],
)
def test_tls_errors_are_final_if_a_retry_would_not_help(reason: str | None, text: str) -> None:
    error = ssl.SSLError(1, "words of OpenSSL's")
    error.reason = reason  # type: ignore[assignment]  # None is what OpenSSL leaves it at
    found = distrust("b:1", error)
    assert text in str(found) if text else found is None


# Contexts


def context_of(**properties: Any) -> ssl.SSLContext:
    dotted = {name.replace("_", "."): str(value) for name, value in properties.items()}
    return client_context(parse_config(ClientConfig, {"security.protocol": "SSL", **dotted}))


def test_a_context_verifies_names_and_speaks_nothing_old() -> None:
    context = context_of()
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_certificates_and_keys_may_be_text(certificates: Certificates) -> None:
    context_of(
        ssl_ca_pem=certificates.authority.read_text(),
        ssl_certificate_pem=certificates.client.certificate.read_text(),
        ssl_key_pem=certificates.client.key.read_text(),
    )


def test_a_key_store_of_java_in_pem_is_key_and_certificate(certificates: Certificates) -> None:
    context_of(ssl_keystore_location=certificates.client.pem)


def test_an_encrypted_key_wants_its_password(certificates: Certificates) -> None:
    pair = certificates.locked_server
    own = {"ssl_certificate_location": pair.certificate, "ssl_key_location": pair.key}
    context_of(**own, ssl_key_password=PASSWORD)
    with pytest.raises(ConfigError, match=r"is encrypted: set ssl\.key\.password"):
        context_of(**own)
    with pytest.raises(ConfigError, match=r"ssl\.key\.password is wrong") as caught:
        context_of(**own, ssl_key_password="not-it")
    assert "not-it" not in str(caught.value)


@pytest.mark.parametrize(
    ("start", "text"),
    [
        (b"\xfe\xed\xfe\xed\0\0\0\2", "not in PEM; .*keytool -importkeystore"),
        (b"\x30\x82\x01\x00", "not in PEM; .*openssl pkcs12"),
        (b"garbage", "has no certificate in PEM"),
    ],
)
def test_a_trust_store_that_is_not_in_pem(tmp_path: Path, start: bytes, text: str) -> None:
    place = tmp_path / "store"
    place.write_bytes(start)
    with pytest.raises(ConfigError, match=text):
        context_of(ssl_ca_location=place)


def test_files_that_do_not_fit(certificates: Certificates, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location: No such file or directory: .*gone"):
        context_of(ssl_ca_location=tmp_path / "gone")
    with pytest.raises(ConfigError, match="does not belong"):
        context_of(
            ssl_certificate_location=certificates.client.certificate,
            ssl_key_location=certificates.server.key,
        )


# Tokens


def token_messages(cluster: FakeCluster) -> list[bytes]:
    return [login.split(b"\x01")[1] for login in cluster.logins]


def test_a_function_gives_the_token(run: Runner) -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        properties = {**OAUTH, "sasl_oauthbearer_token": lambda: "abc.def."}
        assert run(cluster.bootstrap, properties, ask_metadata)
        assert token_messages(cluster) == [b"auth=Bearer abc.def."]


def test_oauth_cb_is_called_as_librdkafka_calls_it_and_its_token_used_again(run: Runner) -> None:
    asked: list[str] = []

    def oauth_cb(config: str) -> tuple[str, float, str, dict[str, str]]:
        asked.append(config)
        return "abc", time.time() + 100, "principal", {"tenant": "x"}

    with FakeCluster(topics={"t": 1}) as cluster:
        properties = {**OAUTH, "oauth_cb": oauth_cb, "sasl.oauthbearer.config": "scope=a"}
        assert run(cluster.bootstrap, properties, ask_metadata, write(-1))
        assert asked == ["scope=a"]
        assert {login.split(b"\x01")[2] for login in cluster.logins} == {b"tenant=x"}


def test_a_coroutine_function_gives_the_token_on_the_loop() -> None:
    async def token() -> str:
        await asyncio.sleep(0)
        return "abc"

    with FakeCluster(topics={"t": 1}) as cluster:
        properties = {**OAUTH, "sasl_oauthbearer_token": token}
        assert Runner("aio")(cluster.bootstrap, properties, ask_metadata)
        assert token_messages(cluster) == [b"auth=Bearer abc"]


def test_a_coroutine_function_is_not_for_a_blocking_client() -> None:
    async def token() -> str:
        return "abc"

    config = parse_config(ClientConfig, {**OAUTH, "sasl_oauthbearer_token": token})
    with pytest.raises(ConfigError, match=r"needs a client of headrace\.aio"):
        open_blocking_driver("127.0.0.1:1", config)


def raises() -> str:
    raise LookupError("no such scope")


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({"sasl_oauthbearer_token": raises}, "failed: LookupError: no such scope"),
        ({"sasl_oauthbearer_token": lambda: 5}, "sasl_oauthbearer_token must return text, not int"),
        ({"sasl_oauthbearer_token": lambda: "a b"}, "characters that a bearer token cannot have"),
        ({"oauth_cb": lambda _: "abc"}, "must return \\(token, expiry"),
        ({"oauth_cb": lambda _: ("abc", "soon")}, "expiry that is not a number"),
        ({"oauth_cb": lambda _: ("abc", 5.0)}, "has expired already"),
    ],
)
def test_a_function_that_gives_no_token_fails_the_call(
    run: Runner, properties: dict[str, Any], text: str
) -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        with pytest.raises(AuthenticationError, match=text):
            run(cluster.bootstrap, {**OAUTH, **properties}, ask_metadata)
        assert cluster.logins == []


def test_the_program_is_asked_without_a_lock() -> None:
    entered = threading.Event()

    def token() -> str:
        with driver.enter():
            entered.set()
        return "abc"

    with FakeCluster(topics={"t": 1}) as cluster:
        properties = {**OAUTH, "sasl_oauthbearer_token": token}
        config = parse_config(ClientConfig, properties, bootstrap_servers=cluster.bootstrap)
        driver = open_blocking_driver(cluster.bootstrap, config)
        try:
            driver.run(ask_metadata(driver.engine.state))
        finally:
            driver.close()
    assert entered.is_set()


# Sessions that end


def test_logging_in_again_under_load_keeps_the_connection_and_every_answer(run: Runner) -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.session_lifetime_ms = 100
        tokens = iter(range(1_000_000))
        properties = {**OAUTH, "sasl_oauthbearer_token": lambda: f"token{next(tokens)}"}
        small = build_batch([(b"k", b"v", (), 1)])
        until_s = time.monotonic() + 20

        def load(state: Any) -> Flow[int]:
            written = 0
            while len(cluster.logins) < 4 and time.monotonic() < until_s:
                yield from produce(state, T0, small, acks=-1, timeout_ms=10_000)
                written += 1
            return written

        [written] = run(cluster.bootstrap, properties, load)
        broker = cluster.brokers[1]
        assert broker.accepted <= 2, "one to find the broker, one to its leader at most"
        assert cluster.logs[T0].end_offset == written
        assert len(set(cluster.logins)) == len(cluster.logins) >= 4


def test_an_idle_client_logs_in_again_in_the_background() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.session_lifetime_ms = 100
        logged_in = threading.Event()

        def token() -> str:
            if len(cluster.logins) >= 2:
                logged_in.set()
            return "abc"

        properties = {**OAUTH, "sasl_oauthbearer_token": token}
        config = parse_config(ClientConfig, properties, bootstrap_servers=cluster.bootstrap)
        driver = open_blocking_driver(cluster.bootstrap, config)
        try:
            driver.start_background()
            driver.run(ask_metadata(driver.engine.state))
            assert logged_in.wait(10)
        finally:
            driver.close()
        assert cluster.brokers[1].accepted == 1


def test_an_idle_client_on_a_loop_logs_in_again() -> None:
    async def main(cluster: FakeCluster) -> None:
        logged_in = asyncio.Event()

        async def token() -> str:
            if len(cluster.logins) >= 2:
                logged_in.set()
            return "abc"

        properties = {**OAUTH, "sasl_oauthbearer_token": token}
        config = parse_config(ClientConfig, properties, bootstrap_servers=cluster.bootstrap)
        driver = open_aio_driver(cluster.bootstrap, config)
        try:
            await driver.run(ask_metadata(driver.engine.state))
            await asyncio.wait_for(logged_in.wait(), 10)
        finally:
            await driver.close()

    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.session_lifetime_ms = 100
        asyncio.run(main(cluster))
        assert cluster.brokers[1].accepted == 1


def test_a_refused_reauthentication_fails_the_current_call() -> None:
    with FakeCluster(topics={"t": 1}) as cluster:
        cluster.session_lifetime_ms = 60
        properties = {
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": "u", "sasl.password": "hush",
        }  # fmt: skip
        config = parse_config(ClientConfig, properties, bootstrap_servers=cluster.bootstrap)
        driver = open_blocking_driver(cluster.bootstrap, config)
        try:
            driver.run(ask_metadata(driver.engine.state))
            cluster.faults.append(
                Fault(ApiKey.SASL_AUTHENTICATE, "code", ErrorCode.SASL_AUTHENTICATION_FAILED)
            )

            def until_refused() -> None:
                while True:
                    driver.run(ask_metadata(driver.engine.state))

            with pytest.raises(AuthenticationError, match="refuses the login") as caught:
                until_refused()
            assert "hush" not in str(caught.value)
        finally:
            driver.close()
