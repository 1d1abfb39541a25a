"""A server that may open few files, or has links in its data directory, continues to work."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace import Admin
from headrace.errors import ErrorCode
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.builder import build_batch
from tests.conformance.server.wire import NOW_MS, WireClient
from tests.fixtures.processes import ServerProcess, running_server

DESCRIPTORS = 256
PARTITIONS = 300
BATCH = build_batch([(b"k", b"v" * 100, (), NOW_MS)])


def address(server: ServerProcess) -> tuple[str, int]:
    return server.host, server.port


@contextlib.contextmanager
def narrow_server(directory: Path, *options: str) -> Iterator[ServerProcess]:
    """Run a server that may open `DESCRIPTORS` files."""
    with running_server(directory, *options) as server:
        server.stop()
        shell = ["/bin/sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh", *server.command()]
        server.command = lambda: shell  # type: ignore[method-assign]  # a shell around it
        server.start()
        yield server


def produce(client: WireClient, topic: str, partitions: list[int]) -> list[int]:
    """Write a batch to partitions in one request; return the partitions that refused it."""
    data = [PartitionProduceData(index=index, records=BATCH) for index in partitions]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    response = client.request(ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics))
    parts = response.responses[0].partition_responses
    allowed = {ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR}
    assert {part.error_code for part in parts} <= allowed
    return [part.index for part in parts if part.error_code]


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_more_partitions_than_descriptors_are_written_and_clients_still_get_in(
    tmp_path: Path, durability: str
) -> None:
    with narrow_server(tmp_path, "--durability", durability) as server:
        with WireClient(address(server), 120) as client:
            client.create_topic("many", PARTITIONS)
            left = list(range(PARTITIONS))
            attempts, pause, deadline = 0, threading.Event(), time.monotonic() + 60
            while left:
                refused = produce(client, "many", left)
                with WireClient(address(server)) as another:  # there are descriptors for clients
                    another.ping()
                left = refused
                attempts += 1
                assert time.monotonic() < deadline
                pause.wait(0.1)  # clients wait like this between attempts
            assert "open_segments_limited" in server.log  # the limit of open files was reached
            if (
                durability == "os"
            ):  # nothing is synced between the steps of a request, so that it has to be refused
                assert attempts > 1
                assert "too_many_open_files" in server.log
            client.create_topic("more", 50)
            left = list(range(50))
            while left:
                left = produce(client, "more", left)
                assert time.monotonic() < deadline
        assert "its data is damaged" not in server.log
        assert "sync_failed" not in server.log
        assert server.stop() == 0


def test_a_topic_of_which_a_partition_is_a_link_can_be_deleted(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    with running_server(tmp_path) as server:
        with WireClient(address(server)) as client:
            client.create_topic("large", 1)
            assert not produce(client, "large", [0])
        server.stop()
        shutil.move(data / "large-0", elsewhere)
        (data / "large-0").symlink_to(elsewhere)
        server.start()
        with WireClient(address(server)) as client:
            assert not produce(client, "large", [0])
        with Admin(f"{server.host}:{server.port}") as admin:
            admin.delete_topic("large")
        assert list(elsewhere.iterdir()) == []
        assert not list(data.glob("large-0*"))
        assert server.stop() == 0
        server.start()
        with WireClient(address(server)) as client:
            client.create_topic("large", 1)
            assert not produce(client, "large", [0])
