"""Reads and writes fail within seconds for a wrong address, and wait for a broker that is starting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import AuthenticationError, TransportError
from headrace.spark.client import contact
from headrace.spark.options.sink import sink_options
from headrace.spark.options.source import source_options
from headrace.spark.readers.origin import source_client
from headrace.spark.sink import cluster as sink_cluster
from headrace.spark.sink.cluster import check_cluster
from headrace.spark.source import cluster_client
from tests.fixtures.kafka import free_ports


class Clock:
    """A clock that advances only in `sleep`."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(contact, "time", clock)
    return clock


def client(outcomes: list[Exception | None]) -> Any:
    def connect() -> None:
        outcome = outcomes.pop(0)
        if outcome is not None:
            raise outcome

    return SimpleNamespace(connect=connect)


def test_reach_waits_for_a_broker_that_starts_within_seconds(clock: Clock) -> None:
    contact.reach(client([TransportError("refused")] * 8 + [None]))
    assert 0 < clock.now_s - 1000 < contact.FIRST_CONTACT_S


def test_an_unreachable_broker_ends_the_wait_within_seconds(clock: Clock) -> None:
    refusals: list[Exception | None] = [TransportError("refused")] * 1000
    with pytest.raises(TransportError, match=r"^refused: see whether a broker runs there"):
        contact.reach(client(refusals))
    assert clock.now_s - 1000 <= contact.FIRST_CONTACT_S
    assert len(refusals) > 900


def test_an_authentication_error_ends_the_wait_at_once(clock: Clock) -> None:
    with pytest.raises(AuthenticationError):
        contact.reach(client([AuthenticationError("no such user")]))
    assert clock.now_s == 1000


def test_reads_and_writes_check_the_broker_before_they_start(clock: Clock) -> None:
    nowhere = {"kafka.bootstrap.servers": f"127.0.0.1:{free_ports(1)[0]}"}
    wrong = "Connection refused: see whether a broker runs there, and whether kafka.bootstrap.servers is right"
    for streaming in (False, True):
        with pytest.raises(TransportError, match=wrong):
            source_client(source_options({**nowhere, "subscribe": "a"}, streaming=streaming))
        before_s = clock.now_s
        with pytest.raises(TransportError, match=wrong):
            check_cluster(sink_options({**nowhere, "topic": "a"}, streaming=streaming), 2.0)
        assert 0 < clock.now_s - before_s <= 2
    for shared in (cluster_client.clients, sink_cluster.clients):
        shared.clear()
