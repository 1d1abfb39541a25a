"""A broker was restored from a backup and wrote new records at offsets that had been read. No Spark is needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.clients.blocking import BlockingClient
from headrace.spark.options.source import source_options
from headrace.spark.source.cluster_client import ClusterClient
from headrace.spark.source.offsets import DataLossError, StreamOffsets
from headrace.spark.source.planner import StreamPlanner
from headrace.types import TopicPartition
from tests.fixtures.targets import HeadraceServer
from tests.integration.spark.conftest import Topics, produce_values


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[HeadraceServer]:
    server = HeadraceServer(tmp_path / "server")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def planner(own_server: HeadraceServer) -> Iterator[Callable[..., StreamPlanner]]:
    """Create planners, each with its own client, as after a restart of the driver."""
    clients: list[ClusterClient] = []

    def make(topic: str, **given: str) -> StreamPlanner:
        texts = {"kafka.bootstrap.servers": own_server.bootstrap, "subscribe": topic, **given}
        options = source_options({"startingOffsets": "earliest", **texts}, streaming=True)
        clients.append(ClusterClient(options.client))
        return StreamPlanner(clients[-1], options)

    yield make
    for client in clients:
        client.close()


def through_the_log(offsets: StreamOffsets) -> StreamOffsets:
    return StreamOffsets.from_json(json.loads(json.dumps(offsets.to_json())))


def test_records_that_were_replaced_after_they_were_read_are_noticed(
    own_server: HeadraceServer, planner: Callable[..., StreamPlanner], tmp_path: Path
) -> None:
    data, backup = own_server.directory / "data", tmp_path / "backup"
    with BlockingClient(own_server.bootstrap) as client:
        topic = Topics(client, own_server.bootstrap).create()
        each = TopicPartition(topic, 0)
        produce_values(client, topic, 0, range(6))
        own_server.stop()
        shutil.copytree(data, backup)
        own_server.start()
        produce_values(client, topic, 0, range(6, 10))
        first = planner(topic)
        place = through_the_log(first.latest(first.initial()))
        assert place.positions == {each: 10}
        own_server.restart()
        assert planner(topic).latest(place) is place, "a new epoch alone loses nothing"

        own_server.stop()
        shutil.rmtree(data)
        shutil.copytree(backup, data)
        own_server.start()
        own_server.restart()  # its first epoch would be that of before, for it forgot that, too
        produce_values(client, topic, 0, range(100, 120))

    with pytest.raises(
        DataLossError, match=rf"{each} was truncated at offset 6 .* up to offset 10"
    ):
        planner(topic).latest(place)
    lenient = planner(topic, failOnDataLoss="false")
    again = lenient.latest(place)
    assert again.positions == {each: 6}
    assert lenient.latest(again).positions == {each: 26}
