"""A server with two data directories. One of them fails, is missing, and returns."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.records.builder import build_batch
from tests.conformance.server.wire import NOW_MS, WireClient
from tests.fixtures.processes import ServerProcess

BATCH = build_batch([(None, os.urandom(5_000), (), NOW_MS)])
SEGMENT_BYTES = "20000"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    made = ServerProcess(
        tmp_path / "one",
        log_path=tmp_path / "server.log",
        arguments=["--data", str(tmp_path / "two")],
    )
    try:
        yield made.start()
    finally:
        made.kill()


def connect(server: ServerProcess) -> WireClient:
    return WireClient((server.host, server.port))


def leaders(client: WireClient, topic: str) -> list[int]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
    partitions = client.request(request, 9).topics[0].partitions
    return [part.leader_id for part in sorted(partitions, key=lambda part: part.partition_index)]


def log_dirs(client: WireClient) -> dict[str, tuple[int, set[str]]]:
    return {
        Path(result.log_dir).name: (
            result.error_code,
            {f"{t.name}-{p.partition_index}" for t in result.topics for p in t.partitions},
        )
        for result in client.request(DescribeLogDirsRequest(topics=None), 4).results
    }


def offsets(client: WireClient, partition: int) -> list[int]:
    return [record.offset for record in client.read("t", partition)]


def produce_until_refused(client: WireClient, partition: int) -> int:
    """Return how many batches were acknowledged before one was refused."""
    for count in range(20):
        if (code := client.produce("t", partition, BATCH).error_code) != ErrorCode.NONE:
            assert code == ErrorCode.KAFKA_STORAGE_ERROR
            return count
    raise AssertionError("the directory that is gone took everything")


def test_the_partitions_of_a_lost_directory_return_with_the_directory(
    server: ServerProcess, tmp_path: Path
) -> None:
    two, away = tmp_path / "two", tmp_path / "away"
    with connect(server) as client:
        client.create_topic("t", partitions=2, segment_bytes=SEGMENT_BYTES)
        for partition in (0, 1):
            assert client.produce("t", partition, BATCH).error_code == 0
        assert log_dirs(client) == {"one": (0, {"t-0"}), "two": (0, {"t-1"})}
        two.rename(away)
        two.symlink_to(tmp_path / "nowhere")
        acknowledged = 1 + produce_until_refused(client, 1)  # the next segment cannot be created
        assert [client.produce("t", 0, BATCH).error_code for _ in range(10)] == [0] * 10
        assert leaders(client, "t") == [1, -1]
        client.create_topic("u", partitions=2)
        assert log_dirs(client) == {
            "one": (0, {"t-0", "u-0", "u-1"}),
            "two": (ErrorCode.KAFKA_STORAGE_ERROR, set()),
        }
    assert "log_directory_failed" in server.log
    assert server.stop() == 0, server.log

    server.start()  # without it
    with connect(server) as client:
        assert leaders(client, "t") == [1, -1]
        assert client.produce("t", 1, BATCH).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert offsets(client, 0) == list(range(11))
        assert log_dirs(client)["two"] == (ErrorCode.KAFKA_STORAGE_ERROR, set())
    assert "partitions_offline" in server.log
    assert server.stop() == 0, server.log

    two.unlink()
    away.rename(two)
    server.start()
    with connect(server) as client:
        assert leaders(client, "t") == [1, 1]
        assert offsets(client, 1)[:acknowledged] == list(range(acknowledged))
        assert client.produce("t", 1, BATCH).error_code == 0
    server.kill()

    server.start()  # and after a crash, both recover
    with connect(server) as client:
        assert offsets(client, 0) == list(range(11))
        assert len(offsets(client, 1)) > acknowledged
    assert server.stop() == 0, server.log
    assert (tmp_path / "one" / "clean_shutdown").exists()
    assert (two / "clean_shutdown").exists()


def test_a_disk_that_was_not_mounted_is_not_taken_for_a_new_one(
    server: ServerProcess, tmp_path: Path
) -> None:
    two, mounted = tmp_path / "two", tmp_path / "mounted"
    with connect(server) as client:
        client.create_topic("t", partitions=2)
        assert client.produce("t", 1, BATCH).error_code == 0
    assert server.stop() == 0
    two.rename(mounted)
    two.mkdir()
    server.start()
    with connect(server) as client:
        assert client.produce("t", 1, BATCH).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert client.produce("t", 0, BATCH).error_code == 0
    assert "is its disk mounted?" in server.log
    assert server.stop() == 0
    assert [path.name for path in two.iterdir()] == [".lock"]


def test_the_end_of_the_first_directory_ends_the_server(
    server: ServerProcess, tmp_path: Path
) -> None:
    with connect(server) as client:
        client.create_topic("t", partitions=2, segment_bytes=SEGMENT_BYTES)
        assert client.produce("t", 0, BATCH).error_code == 0
        (tmp_path / "one").rename(tmp_path / "away")
        with contextlib.suppress(ConnectionError):  # it may end before it can answer
            produce_until_refused(client, 0)
    assert server.wait() == 1
    assert "sync_failed" in server.log
