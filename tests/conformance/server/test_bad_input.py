"""The server answers any bytes with an error or closes the connection with a reason. Other clients are not affected."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.errors import ErrorCode
from headrace.protocol.frame import RequestHeader
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.builder import build_batch
from tests.conformance.server.wire import NOW_MS, WireClient, encoded
from tests.fixtures.processes import ServerProcess, running_server

MIB = 1 << 20
BATCH = build_batch([(b"k", b"v" * 100, (), NOW_MS)])
HEADER = struct.Struct(">hhih")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for tests that read the log."""
    with _serving(tmp_path_factory.mktemp("bad-input")) as running:
        yield running


@pytest.fixture(scope="module")
def flooded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server for tests whose input makes the log leave out lines."""
    with _serving(tmp_path_factory.mktemp("flooded")) as running:
        yield running


@contextlib.contextmanager
def _serving(directory: Path) -> Iterator[ServerProcess]:
    with running_server(directory, "--durability", "os") as running:
        with WireClient((running.host, running.port)) as client:
            client.create_topic("t")
        yield running


@pytest.fixture
def bystander(request: pytest.FixtureRequest) -> Iterator[WireClient]:
    """A connection to the test's server that must not be affected."""
    name = "flooded" if "flooded" in request.fixturenames else "server"
    server: ServerProcess = request.getfixturevalue(name)
    with WireClient((server.host, server.port)) as client:
        client.ping()
        yield client
        client.ping()
        assert server.running
        assert "Traceback" not in server.log


def new_log(server: ServerProcess, before: int) -> str:
    return server.log[before:]


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def send_raw(server: ServerProcess, data: bytes) -> bytes:
    """Send bytes on their own connection, and return the answer up to the end of the connection."""
    received = b""
    with socket.create_connection((server.host, server.port), 20) as sock:
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(65536):
                received += piece
        except ConnectionError:
            pass
    return received


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), "TLS handshake"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP request"),
        (b"POST /topics/t HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "HTTP request"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP request"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "SSH client"),
        (struct.pack(">i", -1), "length of -1 bytes"),
        (struct.pack(">i", -(1 << 31)), "length of -2147483648 bytes"),
        (struct.pack(">i", (1 << 31) - 1), "length of 2147483647 bytes"),
        (struct.pack(">i", 0), "length of 0 bytes"),
        (struct.pack(">ihhi", 5 * MIB, 3, 9, 1), "only Produce may exceed"),
        (frame(HEADER.pack(3, 99, 1, -1)), "METADATA version 99 is not supported"),
        (frame(HEADER.pack(999, 0, 1, -1)), "API key 999 version 0 is not supported"),
        (frame(HEADER.pack(-5, -5, 1, -1)), "API key -5"),
        (frame(HEADER.pack(7, 0, 1, -1)), "version 0 is not supported"),
        (frame(HEADER.pack(3, 9, 1, 30000) + b"short"), "cannot be read"),
        (frame(HEADER.pack(3, 9, 1, 2) + b"\xff\xfe\x00\x00"), "cannot be read"),
        (frame(HEADER.pack(3, 1, 1, -1) + b"\x7f\xff\xff\xff"), "cannot be read"),
        (frame(HEADER.pack(3, 9, 1, -1) + b"\x00\xff\xff\xff\xff\x0f"), "cannot be read"),
        (frame(HEADER.pack(3, 9, 1, -1) + b"\x00\xff\xff\xff\xff\xff\xff\xff"), "cannot be read"),
        (frame(HEADER.pack(0, 2, 1, -1) + bytes(20)), "PRODUCE version 2 is not supported"),
    ],
)
def test_the_server_closes_the_connection_and_logs_the_reason(
    server: ServerProcess, bystander: WireClient, data: bytes, reason: str
) -> None:
    before = len(server.log)
    with WireClient((server.host, server.port)) as client:
        client.sock.sendall(data)
        assert client.closed_by_server()
    assert reason in new_log(server, before)
    assert "connection_closed" in new_log(server, before)


@pytest.mark.parametrize("version", [5, 99, 32767, -1])
def test_an_unknown_version_of_api_versions_is_answered_in_version_zero(
    server: ServerProcess, bystander: WireClient, version: int
) -> None:
    with WireClient((server.host, server.port)) as client:
        client.sock.sendall(frame(HEADER.pack(18, version, 7, -1) + b"\x00whatever follows"))
        received = client.receive_frame()
        assert struct.unpack_from(">i", received) == (7,)
        response, end = ApiVersionsResponse.decode(memoryview(received), 4, 0)
        assert end == len(received)
        assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert any(api.api_key == 18 and api.max_version >= 3 for api in response.api_keys)
        client.ping()  # the connection still works


def corrupted(position: int, value: bytes) -> bytes:
    return BATCH[:position] + value + BATCH[position + len(value) :]


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (corrupted(17, b"\x00\x00\x00\x00"), {ErrorCode.CORRUPT_MESSAGE}),
        (corrupted(len(BATCH) - 1, b"\xff"), {ErrorCode.CORRUPT_MESSAGE}),
        (corrupted(16, b"\x01"), {ErrorCode.INVALID_RECORD}),
        (corrupted(16, b"\x63"), {ErrorCode.CORRUPT_MESSAGE}),
        (corrupted(8, b"\x7f\xff\xff\xff"), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
        (corrupted(8, b"\xff\xff\xff\xff"), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
        (corrupted(8, b"\x00\x00\x00\x00"), {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
        (BATCH[:40], {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
        (BATCH[:-3], {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
        (BATCH + b"\x00", {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
        (BATCH + BATCH, {ErrorCode.INVALID_RECORD}),
        (b"", {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
        (b"x", {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
    ],
    ids=itertools.count(),  # the batch has the time in it
)  # fmt: skip
def test_a_bad_batch_is_refused_and_not_stored(
    server: ServerProcess, bystander: WireClient, batch: bytes, expected: set[ErrorCode]
) -> None:
    with WireClient((server.host, server.port)) as client:
        end_offset = client.fetch("t", 0, 0).high_watermark
        part = client.produce("t", 0, batch)
        assert part.error_code in expected, ErrorCode(part.error_code)
        assert part.base_offset == -1
        assert client.fetch("t", 0, 0).high_watermark == end_offset
        assert (
            client.produce("t", 0, BATCH).error_code == 0
        )  # the connection and the partition still work


def test_a_bad_batch_with_acks_0_closes_the_connection(
    server: ServerProcess, bystander: WireClient
) -> None:
    before = len(server.log)
    with WireClient((server.host, server.port)) as client:
        client.send_batch("t", 0, BATCH, acks=0)
        client.ping()
        client.send_batch("t", 0, corrupted(17, b"\x00\x00\x00\x00"), acks=0)
        assert client.closed_by_server()
    assert "acks=0" in new_log(server, before)


def valid_requests() -> list[bytes]:
    produce = ProduceRequest(
        acks=-1,
        timeout_ms=1000,
        topic_data=[
            TopicProduceData(
                name="t", partition_data=[PartitionProduceData(index=0, records=BATCH)]
            )
        ],
    )
    fetch = FetchRequest(
        replica_id=-1,
        session_epoch=-1,
        max_bytes=MIB,
        topics=[
            FetchTopic(topic="t", partitions=[FetchPartition(partition=0, partition_max_bytes=MIB)])
        ],
    )
    metadata = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    versions = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    requests = []
    for request, version in [
        (produce, 9),
        (produce, 3),
        (fetch, 11),
        (fetch, 12),
        (metadata, 9),
        (metadata, 1),
        (versions, 3),
    ]:
        header = RequestHeader(request.API_KEY, version, 1, "fuzz")
        requests.append(encoded(header, request))
    return requests


def test_truncated_requests_do_not_disturb_other_connections(
    flooded: ServerProcess, bystander: WireClient
) -> None:
    for request in valid_requests():
        body = request[4:]
        for size in range(8, len(body), max(1, len(body) // 40)):
            send_raw(flooded, frame(body[:size]))  # complete frames with incomplete contents
        send_raw(flooded, request[:-1])  # and a frame that never completes
    bystander.ping()


def mutated(rng: random.Random, request: bytes) -> bytes:
    data = bytearray(request)
    for _ in range(rng.randint(1, 6)):
        kind = rng.random()
        position = rng.randrange(4, len(data))
        if kind < 0.5:
            data[position] = rng.randrange(256)
        elif kind < 0.8:
            width = rng.choice([2, 4, 8])
            data[position : position + width] = rng.choice(
                [b"\x7f" + b"\xff" * (width - 1), b"\xff" * width, b"\x80" + bytes(width - 1)]
            )
        elif kind < 0.9:
            del data[position : position + rng.randint(1, 10)]
        else:
            data[position:position] = rng.randbytes(rng.randint(1, 10))
        if len(data) < 16:
            break
    data[:4] = struct.pack(">i", len(data) - 4)
    return bytes(data)


def test_mutated_requests_leave_memory_flat(flooded: ServerProcess, bystander: WireClient) -> None:
    seed = int(os.environ.get("HEADRACE_FUZZ_SEED", "20"))  # HEADRACE_FUZZ_SEED=n: other mutations
    rng = random.Random(seed)
    requests = valid_requests()
    process = psutil.Process(flooded.pid)

    def flood(count: int) -> None:
        for _ in range(count):
            send_raw(flooded, b"".join(mutated(rng, rng.choice(requests)) for _ in range(3)))

    flood(100)
    before = process.memory_info().rss
    flood(600)
    bystander.ping()
    assert process.memory_info().rss - before < 12 * MIB


def test_random_bytes_leave_memory_flat(flooded: ServerProcess, bystander: WireClient) -> None:
    rng = random.Random(21)
    process = psutil.Process(flooded.pid)
    for _ in range(30):
        send_raw(flooded, rng.randbytes(rng.randint(1, 5000)))
    before = process.memory_info().rss
    for _ in range(300):
        send_raw(flooded, rng.randbytes(rng.randint(1, 5000)))
        send_raw(flooded, frame(rng.randbytes(rng.randint(8, 500))))
    bystander.ping()
    assert process.memory_info().rss - before < 8 * MIB


def test_announced_sizes_and_counts_cost_no_memory(
    flooded: ServerProcess, bystander: WireClient
) -> None:
    process = psutil.Process(flooded.pid)
    before = process.memory_info().rss
    socks = []
    for _ in range(60):
        sock = socket.create_connection((flooded.host, flooded.port), 20)
        sock.sendall(struct.pack(">ihhih", 100 * MIB, 0, 9, 1, -1) + bytes(100))
        socks.append(sock)
    bystander.ping()
    counts = [struct.pack(">i", count) for count in (1, 1 << 20, (1 << 31) - 1, -2, -(1 << 31))]
    for count in counts:
        for version in (1, 4, 8):
            send_raw(flooded, frame(HEADER.pack(3, version, 1, -1) + count + bytes(30)))
        for version in (3, 8):
            send_raw(
                flooded,
                frame(
                    HEADER.pack(0, version, 1, -1)
                    + struct.pack(">hhi", -1, 1, 1000)
                    + count
                    + bytes(30)
                ),
            )
        send_raw(flooded, frame(HEADER.pack(1, 11, 1, -1) + bytes(25) + count + bytes(30)))
    assert process.memory_info().rss - before < 16 * MIB
    for sock in socks:
        sock.close()


def test_a_flood_of_garbage_does_not_flood_the_log(
    flooded: ServerProcess, bystander: WireClient
) -> None:
    before = flooded.log.count("\n")
    for _ in range(500):
        send_raw(flooded, b"GET /flood HTTP/1.1\r\n\r\n")
    assert flooded.log.count("\n") - before <= 60


def test_a_client_that_stops_reading_costs_bounded_memory(tmp_path: Path) -> None:
    batch = build_batch([(None, os.urandom(900_000), (), NOW_MS)])
    with running_server(tmp_path, memory=True) as server:
        address = server.host, server.port
        with WireClient(address) as client:
            client.create_topic("big")
            for _ in range(20):
                assert client.produce("big", 0, batch).error_code == 0
            before = psutil.Process(server.pid).memory_info().rss
            lazy = []
            for _ in range(5):
                other = WireClient(address)
                other.sock.settimeout(0.05)
                lazy.append(other)
                partition = FetchPartition(partition=0, partition_max_bytes=18 * MIB)
                request = FetchRequest(
                    replica_id=-1, session_epoch=-1, max_bytes=18 * MIB,
                    topics=[FetchTopic(topic="big", partitions=[partition])],
                )  # fmt: skip
                try:
                    for _ in range(2_000):
                        other.send(request, 11)
                except TimeoutError:
                    pass  # the server reads no further
            client.ping()
            assert psutil.Process(server.pid).memory_info().rss - before < 40 * MIB
            for other in lazy:
                other.close()
