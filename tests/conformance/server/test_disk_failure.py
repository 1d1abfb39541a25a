"""A disk that fails. Broken: the process ends with an error, a restart recovers. Full: it continues when there is
space again. No acknowledged record is lost.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer

from headrace.errors import ErrorCode
from headrace.records.builder import build_batch
from tests.conformance.server.wire import NOW_MS, WireClient
from tests.fixtures.processes import ServerProcess, running_server

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="limits the file size of a running process"
)


@pytest.mark.parametrize("durability", ["fsync", "os"])
def test_a_write_that_fails_ends_the_server(tmp_path: Path, durability: str) -> None:
    batch = build_batch([(None, os.urandom(50_000), (), NOW_MS)])
    with running_server(tmp_path, "--durability", durability) as server:
        address = server.host, server.port
        acknowledged = 0
        with WireClient(address) as client:
            client.create_topic("t")
            # Writes beyond this size fail with EFBIG, which a disk that works does not answer.
            psutil.Process(server.pid).rlimit(psutil.RLIMIT_FSIZE, (1_000_000, 1_000_000))
            try:
                while (part := client.produce("t", 0, batch)).error_code == 0:
                    assert part.base_offset == acknowledged
                    acknowledged += 1
                assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
            except ConnectionError:
                pass  # it ended before it could answer
        assert 0 < acknowledged < 21
        assert server.wait() == 1
        assert "sync_failed" in server.log
        assert "server_stopped clean=False" in server.log
        server.start()
        with WireClient(address) as client:
            records = list(client.read("t", 0))
            assert [record.offset for record in records] == list(range(len(records)))
            assert len(records) >= acknowledged
            assert client.produce("t", 0, batch).error_code == 0


DISK_BYTES = 4_000_000
FILLER_BYTES = 1_500_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes, partly filled with another file."""
    path = tmp_path / "disk"
    path.mkdir()
    options = f"size={DISK_BYTES}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "headrace-test", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted: {mounted.stderr.strip()}")
    try:
        (path / "filler").write_bytes(bytes(FILLER_BYTES))
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def served(disk: Path, minimum_bytes: int) -> ServerProcess:
    return ServerProcess(
        disk / "data",
        log_path=disk.parent / "server.log",
        arguments=["--config", f"headrace.log.dir.min.free.bytes={minimum_bytes}"],
    )


def fill(client: WireClient, batch: bytes) -> int:
    """Produce until a batch is refused; return the number of acknowledged batches."""
    acknowledged = 0
    while (part := client.produce("t", 0, batch)).error_code == 0:
        assert part.base_offset == acknowledged
        acknowledged += 1
        assert acknowledged * len(batch) < DISK_BYTES
    assert part.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    return acknowledged


@pytest.mark.parametrize("minimum_bytes", [0, 500_000], ids=["full", "below the minimum"])
def test_a_full_disk_refuses_produces_until_there_is_space(
    small_disk: Path, minimum_bytes: int
) -> None:
    batch = build_batch([(None, os.urandom(30_000), (), NOW_MS)])
    with served(small_disk, minimum_bytes) as server:
        with WireClient((server.host, server.port)) as client:
            client.create_topic("t", segment_bytes="300000")
            acknowledged = fill(client, batch)
            assert acknowledged > 10
            free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
            assert free >= minimum_bytes // 2, "caches and directories take a little of it"
            assert len(list(client.read("t", 0))) == acknowledged, "readers are served"
            (small_disk / "filler").unlink()
            deadline = time.monotonic() + 20
            while (part := client.produce("t", 0, batch)).error_code != 0:
                assert time.monotonic() < deadline, server.log
            assert part.base_offset == acknowledged
            acknowledged += 1
        assert "log_directory_has_space_again" in server.log
        server.kill()  # as hard as it gets
        server.start()
        with WireClient((server.host, server.port)) as client:
            offsets = [record.offset for record in client.read("t", 0)]
            assert offsets == list(range(acknowledged))
        assert server.stop() == 0


def test_a_real_producer_gets_through_when_there_is_space_again(small_disk: Path) -> None:
    batch = build_batch([(None, os.urandom(30_000), (), NOW_MS)])
    with (
        served(small_disk, 500_000) as server,
        WireClient((server.host, server.port)) as client,
    ):
        client.create_topic("t")
        acknowledged = fill(client, batch)
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        outcomes: list[object] = []
        for number in range(10):
            producer.produce(
                "t", b"%d" % number, on_delivery=lambda error, _message: outcomes.append(error)
            )
        assert producer.flush(2) == 10, "they wait"
        (small_disk / "filler").unlink()
        assert producer.flush(30) == 0, server.log
        assert outcomes == [None] * 10
        values = [record.value for record in client.read("t", 0)][acknowledged:]
        assert values == [b"%d" % number for number in range(10)], "in order, each once"
