"""What a task's fetch asks of the client."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.clients.blocking import FetchedPartition, FetchPosition
from headrace.spark.cluster import ClusterClient
from headrace.spark.options.source import source_options
from headrace.types import TopicPartition

A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def test_the_users_limit_holds(monkeypatch: pytest.MonkeyPatch) -> None:
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
