"""A listening embedded broker that authenticates its clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import headrace
from headrace.broker.access.credentials import ScramCredentials
from headrace.errors import HeadraceError

PASSWORD = "correct horse"


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    configs = {"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256"}
    with headrace.Broker(configs=configs) as broker:
        broker.create_topic("t", partitions=1)
        with headrace.Admin(broker) as admin:
            admin.set_user("alice", PASSWORD)
        yield broker


def login(mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_only_users_with_a_valid_password_can_connect(broker: headrace.Broker, mechanism: str):
    address = broker.listen("SASL_PLAINTEXT://127.0.0.1:0")
    with headrace.Admin(address, **login(mechanism)) as admin:
        assert set(admin.topics()) == {"t"}
    with pytest.raises(HeadraceError), headrace.Admin(address, **login(mechanism, "x")) as admin:
        admin.topics()


def test_passwords_are_hashed_without_blocking_the_program(
    broker: headrace.Broker, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise a remote client could delay the local clients with many passwords."""
    began, goes_on = threading.Event(), threading.Event()
    check = ScramCredentials.is_password

    def slowly(credentials: ScramCredentials, user: str, password: str) -> bool:
        began.set()
        return goes_on.wait(10) and check(credentials, user, password)

    monkeypatch.setattr(ScramCredentials, "is_password", slowly)
    address = broker.listen("SASL_PLAINTEXT://127.0.0.1:0")
    seen: list[object] = []

    def come() -> None:
        with headrace.Admin(address, **login("PLAIN")) as admin:
            seen.extend(admin.topics())

    client = threading.Thread(target=come)
    client.start()
    assert began.wait(10)
    sent = threading.Event()

    def send() -> None:
        with headrace.Producer(broker) as producer:
            producer.send("t", b"1").result(10)
        sent.set()

    program = threading.Thread(target=send)
    program.start()
    free = sent.wait(5)
    goes_on.set()
    program.join(10)
    client.join(10)
    assert free
    assert seen == ["t"]
