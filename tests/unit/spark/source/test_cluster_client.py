"""The requests that a task's fetch makes to the client."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Broker
from headrace.clients.blocking import FetchedPartition, FetchPosition
from headrace.errors import ErrorCode
from headrace.spark.options.source import source_options
from headrace.spark.source.cluster_client import ClusterClient
from headrace.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def test_a_fetch_keeps_the_users_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def fetch(positions: Any, **rest: Any) -> dict[TopicPartition, FetchedPartition]:
        asked.append((positions, rest))
        return {A0: FetchedPartition(), A1: FetchedPartition(b"x")}

    given = {
        "kafka.bootstrap.servers": "localhost:1",
        "subscribe": "a",
        "kafka.max.partition.fetch.bytes": "1000",
        "kafka.fetch.max.bytes": "5000",
        "kafka.isolation.level": "read_committed",
    }
    client = ClusterClient(source_options(given, streaming=False).client)
    monkeypatch.setattr(client._client, "fetch", fetch)

    found = client.fetch({A0: FetchPosition(3, max_bytes=99), A1: FetchPosition(4, max_bytes=1001)})
    client.close()

    assert found == {A0: FetchedPartition(), A1: FetchedPartition(b"x")}
    ((positions, rest),) = asked
    assert positions == {
        A0: FetchPosition(3, max_bytes=99),
        A1: FetchPosition(4, max_bytes=1000),
    }
    assert (rest["max_bytes"], rest["isolation_level"]) == (5000, 1)


def test_a_fetch_error_names_the_unavailable_broker() -> None:
    broker = Broker()
    target = broker.listen()
    broker.create_topic("a")
    given = {"kafka.bootstrap.servers": target, "subscribe": "a"}
    client = ClusterClient(source_options(given, streaming=False).client)
    try:
        assert not client.fetch({A0: FetchPosition(0)})[A0].error
        broker.close()
        found = client.fetch({A0: FetchPosition(0)})[A0]
    finally:
        client.close()
    assert found.error is ErrorCode.NETWORK_EXCEPTION
    assert target.removeprefix("127.0.0.1") in found.reason
