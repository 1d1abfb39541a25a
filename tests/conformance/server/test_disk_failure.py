"""A disk that takes no more: nothing unkept is acknowledged, the process ends with an error, a restart recovers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import psutil
import pytest

from headrace.errors import ErrorCode
from headrace.records.builder import build_batch
from tests.conformance.server.wire import NOW_MS, WireClient
from tests.fixtures.processes import running_server

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
            # Writes beyond this size fail with EFBIG, as they would with ENOSPC on a full disk.
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
