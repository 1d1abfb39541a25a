"""Every client produces and consumes while its sessions end, the certificate changes and the broker restarts."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.conformance.clients.observer import Observer, wait_until
from tests.conformance.clients.scenario import Client, Load, Member, check_log
from tests.conformance.security.every_client import CLIENTS
from tests.fixtures import client_security
from tests.fixtures.certificates import LOOPBACK, Certificates
from tests.fixtures.client_security import login
from tests.fixtures.history.members import History
from tests.fixtures.secured_headrace import SecuredHeadrace
from tests.fixtures.secured_kafka import PASSWORD, USER
from tests.fixtures.targets import HEADRACE_TEST_SETTINGS

pytestmark = pytest.mark.java  # one of the clients
SESSION_MS = 1500
PROGRESS_S = 120.0
"""The longest wait for progress, in seconds. KafkaJS doubles its pauses between retries up to 30 s."""
LOGINS = 10
"""The number of further logins of each client before the test checks again. Each client has two to five connections."""
AGAIN_ON_THE_SAME_CONNECTION = ("confluent-kafka", "java", "kafkajs", "headrace")
ONLY_BY_A_NEW_CONNECTION = ("kafka-python", "aiokafka")
PARTITIONS = 6


class Lives:
    """A client of each kind with a load and a member of a group; each kind is another user."""

    def __init__(
        self, server: SecuredHeadrace, certificates: Certificates, directory: Path
    ) -> None:
        self._server, self._certificates, self._directory = server, certificates, directory
        self.clients: dict[str, Client] = {}
        self.loads: dict[str, Load] = {}
        self.members: dict[str, Member] = {}
        self.histories: dict[str, History] = {}

    def begin(self, name: str) -> None:
        bootstrap, authority = self._server.bootstraps["SASL_SSL"], self._certificates.authority
        with headrace.Admin(bootstrap, **administrator(self._certificates)) as admin:
            admin.set_user(name, PASSWORD)
            admin.create_topic(name, PARTITIONS)
        properties = login(authority, "SCRAM-SHA-512", name, PASSWORD)
        client = self.clients[name] = CLIENTS[name](bootstrap, self._directory, properties)
        history = self.histories[name] = History()
        self.members[name] = client.member(f"{name}-member", name, name, history)
        self.loads[name] = client.load(name)

    def written(self, name: str) -> int:
        return len(self.loads[name].acknowledged)

    def received(self, name: str) -> int:
        return sum(map(len, self.histories[name].delivered().values()))

    def progress(self) -> None:
        """Wait until every client has written and read more than now."""
        for name in self.loads:
            self._wait_for_more(f"{name} writes", partial(self.written, name))
            self._wait_for_more(f"{name} reads", partial(self.received, name))

    def _wait_for_more(self, what: str, count: Callable[[], int]) -> None:
        least = count() + 60
        wait_until(what, lambda: count() > least, PROGRESS_S)

    def check(self, observer: Observer) -> None:
        """End the loads. Acknowledged records must be stored once, in order, and must have been read."""
        for name, load in self.loads.items():
            load.stop()
            sent = load.acknowledged
            check_log(observer, name, sent, self.clients[name].value_of)
            wait_until(f"{name} has read all", lambda: self.received(name) >= len(sent))  # noqa: B023 - waited for here
            told = {event.kind for event in self.histories[name].events()}
            assert "error" not in told, name

    def close(self) -> None:
        for load in self.loads.values():
            with contextlib.suppress(Exception):
                load.stop()
        for member in self.members.values():
            member.kill()
        for client in self.clients.values():
            client.close()


def administrator(certificates: Certificates) -> dict[str, Any]:
    properties = login(certificates.authority, "SCRAM-SHA-256", USER, PASSWORD)
    return client_security.headrace(properties)


@pytest.fixture
def server(
    request: pytest.FixtureRequest, certificates: Certificates, tmp_path: Path
) -> Iterator[SecuredHeadrace]:
    keystore = tmp_path / "server.pem"
    keystore.write_bytes(certificates.server.pem.read_bytes())
    server = SecuredHeadrace(
        tmp_path / "node",
        certificates,
        reauthenticate_ms=getattr(request, "param", 0),
        further={**HEADRACE_TEST_SETTINGS, "ssl.keystore.location": str(keystore)},
    )
    server.start()
    yield server
    server.stop()


@pytest.fixture
def lives(server: SecuredHeadrace, certificates: Certificates, tmp_path: Path) -> Iterator[Lives]:
    lives = Lives(server, certificates, tmp_path)
    try:
        yield lives
    finally:
        lives.close()


@pytest.fixture
def observer(server: SecuredHeadrace, certificates: Certificates) -> Observer:
    properties = login(certificates.authority, "SCRAM-SHA-256", USER, PASSWORD)
    return Observer(server.bootstraps["SASL_SSL"], properties)


def logins(server: SecuredHeadrace, name: str) -> int:
    succeeded = rf"audit_authentication_succeeded principal=User:{name} "
    return len(re.findall(succeeded, server.process.log))


def ended_sessions(server: SecuredHeadrace) -> int:
    return server.process.log.count("the session has expired")


@pytest.mark.slow
@pytest.mark.parametrize("server", [SESSION_MS], indirect=True)
@pytest.mark.parametrize("names", [AGAIN_ON_THE_SAME_CONNECTION, ONLY_BY_A_NEW_CONNECTION])
def test_sessions_that_end_cost_nothing(
    server: SecuredHeadrace, lives: Lives, observer: Observer, names: tuple[str, ...]
) -> None:
    for name in names:
        lives.begin(name)
    lives.progress()
    before, expired = {name: logins(server, name) for name in names}, ended_sessions(server)
    for name in names:
        wait_until(
            f"logins of {name}",
            lambda: logins(server, name) >= before[name] + LOGINS,  # noqa: B023 - waited for here
        )
    lives.progress()
    if names == AGAIN_ON_THE_SAME_CONNECTION:
        again = sum(logins(server, name) - before[name] for name in names)
        # A client that never authenticates again in time has a quarter of the logins. On a busy machine any client may
        # be late now and then: it has a tenth of the session, 150 ms.
        assert (ended_sessions(server) - expired) * 6 < again
    lives.check(observer)


def name_on_certificate(server: SecuredHeadrace, certificates: Certificates) -> str:
    host, _, port = server.bootstraps["SASL_SSL"].rpartition(":")
    context = ssl.create_default_context(cafile=certificates.authority)
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as sock,
    ):
        return str(sock.getpeercert())


@pytest.mark.slow
def test_a_new_certificate_and_a_restart_stop_no_client(
    server: SecuredHeadrace, lives: Lives, observer: Observer, certificates: Certificates,
    tmp_path: Path,
) -> None:  # fmt: skip
    names = [name for name in CLIENTS if name != "kcat"]  # which has no load that lasts
    for name in names:
        lives.begin(name)
    lives.progress()
    before = {name: logins(server, name) for name in names}
    renewed = certificates.signer.issue("renewed", hosts=LOOPBACK)
    (tmp_path / "server.pem").write_bytes(renewed.pem.read_bytes())
    wait_until("the new one", lambda: "renewed" in name_on_certificate(server, certificates))
    lives.progress()
    assert {name: logins(server, name) for name in names} == before, "by the same connections"
    server.restart()
    assert "renewed" in name_on_certificate(server, certificates)
    lives.progress()
    assert all(logins(server, name) > before[name] for name in names), "known as before"
    lives.check(observer)
