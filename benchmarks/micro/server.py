"""Measure broker CPU per request on one core, with a generator of raw, pipelined, prebuilt requests.

Run as `python benchmarks/micro/server.py [--durability os|fsync] [--memory] [--only TEXT]`. Each row has requests per
second, broker CPU microseconds per request, and GB per second where it is useful. The generator runs in this process,
on another core.
"""

from __future__ import annotations

import argparse
import select
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from headrace.protocol.frame import RequestHeader
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.builder import build_batch
from tests.conformance.server.wire import NOW_MS, WireClient, encoded
from tests.fixtures.processes import ServerProcess, running_server

_LENGTH = struct.Struct(">i")


@dataclass
class Case:
    """One row: the request, the number of connections, and the requests in flight on each."""

    name: str
    request: bytes
    connections: int
    outstanding: int
    payload_bytes: int
    seconds: float = 3.0


def produce_request(payload: int, record_bytes: int = 100, topic: str = "bench") -> bytes:
    """Return one Produce request with a batch of about `payload` bytes."""
    count = max(1, payload // record_bytes)
    records = [(None, b"x" * min(payload, record_bytes), (), NOW_MS)] * count
    data = PartitionProduceData(index=0, records=build_batch(records))
    request = ProduceRequest(
        acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )
    return join(request, 9)


def fetch_request(topic: str, max_bytes: int) -> bytes:
    """Return one Fetch request from offset 0."""
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=max_bytes)
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=[partition])],
    )
    return join(request, 11)


def join(request: ProduceRequest | FetchRequest, version: int) -> bytes:
    """Return the frame of a request."""
    header = RequestHeader(request.API_KEY, version, 1, "bench")
    return encoded(header, request)


class Generator:
    """A client that keeps `outstanding` requests on each connection, and counts responses by their lengths only."""

    def __init__(self, case: Case, address: tuple[str, int]) -> None:
        self.case = case
        self.socks = [socket.create_connection(address, 30) for _ in range(case.connections)]
        for sock in self.socks:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray(4 << 20)

    def run(self, seconds: float) -> tuple[int, float]:
        """Return the number of responses and the time they took."""
        request, outstanding = self.case.request, self.case.outstanding
        poll = select.epoll()
        states: dict[int, list[Any]] = {
            sock.fileno(): [sock, bytearray(), 0] for sock in self.socks
        }
        responses = 0
        began = time.perf_counter()
        for sock in self.socks:
            poll.register(sock.fileno(), select.EPOLLIN)
            self._send(sock, request, outstanding)
        end = began + seconds
        in_flight = outstanding * len(self.socks)
        while in_flight:
            for descriptor, _ in poll.poll():
                state = states[descriptor]
                finished = self._receive(state)
                responses += finished
                in_flight -= finished
                if finished and time.perf_counter() < end:
                    self._send(state[0], request, finished)
                    in_flight += finished
        return responses, time.perf_counter() - began

    def _send(self, sock: socket.socket, request: bytes, count: int) -> None:
        if len(request) > 60_000:
            for _ in range(count):
                sock.sendall(request)
        else:
            sock.sendall(request * count)

    def _receive(self, state: list[Any]) -> int:
        sock, rest, skip = state
        count = sock.recv_into(self.buffer)
        assert count, "the server closed the connection"
        view = memoryview(self.buffer)[:count]
        finished = 0
        position = 0
        while position < count:
            if skip:
                step = min(skip, count - position)
                skip -= step
                position += step
                finished += not skip
                continue
            need = 4 - len(rest)
            rest += view[position : position + need]
            position += need
            if len(rest) == 4:
                (skip,) = _LENGTH.unpack(rest)
                rest.clear()
        state[2] = skip
        return finished

    def close(self) -> None:
        """Close the connections of the generator."""
        for sock in self.socks:
            sock.close()


@contextmanager
def server(arguments: argparse.Namespace) -> Iterator[ServerProcess]:
    """Run a server for one case."""
    options = [] if arguments.memory else ["--durability", arguments.durability]
    options += ["--loop", arguments.loop]
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory) as directory,
        running_server(Path(directory), *options, memory=arguments.memory) as running,
    ):
        yield running


def measure(case: Case, running: ServerProcess) -> None:
    """Run one case and print its row."""
    process = psutil.Process(running.pid)
    generator = Generator(case, (running.host, running.port))
    generator.run(min(0.5, case.seconds / 4))
    before = process.cpu_times()
    responses, seconds = generator.run(case.seconds)
    after = process.cpu_times()
    generator.close()
    cpu = after.user + after.system - before.user - before.system
    gigabytes = responses * case.payload_bytes / 1e9
    print(
        f"{case.name:42} {responses / seconds:9.0f} req/s {cpu / responses * 1e6:9.1f} us/req "
        f"{cpu / seconds:5.2f} cores {gigabytes / seconds:6.2f} GB/s",
        flush=True,
    )


def cases() -> list[Case]:
    """Return the cases of all rows."""
    small = produce_request(100)
    return [
        Case("produce 1x100 B, 1 conn, 1 outstanding", small, 1, 1, 100),
        Case("produce 1x100 B, 1 conn, 64 pipelined", small, 1, 64, 100),
        Case("produce 1x100 B, 50 conns, 1 outstanding", small, 50, 1, 100),
        Case("produce 16 KiB, 1 conn, 32 pipelined", produce_request(16 << 10), 1, 32, 16 << 10),
        Case(
            "produce 1 MB, 1 conn, 4 pipelined", produce_request(1_000_000, 1000), 1, 4, 1_000_000
        ),
        Case(
            "fetch 1 small batch, 1 conn, 1 outstanding", fetch_request("small", 1 << 20), 1, 1, 170
        ),
        Case(
            "fetch 1 small batch, 1 conn, 64 pipelined", fetch_request("small", 1 << 20), 1, 64, 170
        ),
        Case("fetch 1 MB, 1 conn, 4 pipelined", fetch_request("large", 1 << 20), 1, 4, 1_000_000),
    ]


def main() -> None:
    """Run the cases of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--durability", choices=["os", "fsync"], default="os")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--loop", default="auto")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--directory", help="where the data goes; default: the system's temporary directory"
    )
    arguments = parser.parse_args()
    for case in cases():
        if arguments.only not in case.name:
            continue
        case.seconds = arguments.seconds
        with server(arguments) as running:
            with WireClient((running.host, running.port)) as client:
                client.create_topic(
                    "bench", retention_bytes="2000000000", segment_bytes="500000000"
                )
                client.create_topic("small")
                client.create_topic("large")
                client.produce("small", 0, build_batch([(None, b"x" * 100, (), NOW_MS)]))
                large = build_batch([(None, b"x" * 1000, (), NOW_MS)] * 980)
                client.produce("large", 0, large)
            measure(case, running)


if __name__ == "__main__":
    main()
