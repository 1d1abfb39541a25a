"""Very many clients, and clients that stall: the broker needs little memory, refuses in time, and serves the others."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from headrace.errors import ErrorCode
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from headrace.records.builder import build_batch
from tests.conformance.server.wire import NOW_MS, WireClient
from tests.fixtures.processes import ServerProcess, running_server

MIB = 1 << 20
IDLE_CONNECTIONS = 5_000
BATCH = build_batch([(b"k", b"v" * 100, (), NOW_MS)])


def address(server: ServerProcess) -> tuple[str, int]:
    return server.host, server.port


def rss(server: ServerProcess) -> int:
    return int(psutil.Process(server.pid).memory_info().rss)


def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        pause.wait(0.02)


@contextlib.contextmanager
def many_descriptors(count: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (resource.RLIM_INFINITY, -1) and hard < 2 * count + 2_000:
        pytest.skip(f"the hard limit on open files is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 500), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def latency_ms(client: WireClient, rounds: int = 20) -> float:
    """Return the median time of an acknowledged Produce request."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        assert client.produce("t", 0, BATCH).error_code == ErrorCode.NONE
        taken.append(time.perf_counter() - began)
    return sorted(taken)[rounds // 2] * 1000


def test_five_thousand_idle_connections(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        stack.enter_context(many_descriptors(IDLE_CONNECTIONS))
        server = stack.enter_context(running_server(tmp_path))
        client = stack.enter_context(WireClient(address(server)))
        client.create_topic("t")
        alone_ms, before = latency_ms(client), rss(server)
        for _ in range(IDLE_CONNECTIONS):
            stack.enter_context(socket.create_connection(address(server), 20))
        process = psutil.Process(server.pid)
        until(lambda: process.num_fds() > 2 * IDLE_CONNECTIONS)
        assert (rss(server) - before) / IDLE_CONNECTIONS < 32 * 1024
        until(lambda: latency_ms(client) < 10 * alone_ms + 20)
        assert "connection_refused" not in server.log
        stack.pop_all().close()  # all disconnect at once, the server last
    assert "Traceback" not in server.log


def test_slow_writers_are_closed_and_other_clients_are_not_affected(tmp_path: Path) -> None:
    """A Slowloris attack: the first bytes of a request, then one byte now and then, or none."""
    with running_server(tmp_path) as server, WireClient(address(server)) as client:
        client.create_topic("t")
        began, before = time.monotonic(), rss(server)
        slow = [socket.create_connection(address(server), 30) for _ in range(100)]
        for sock in slow:
            sock.sendall(struct.pack(">ihhih", 50 * MIB, 0, 9, 1, -1) + bytes(1000))
        still_open = set(slow)

        def trickle() -> bool:
            assert client.produce("t", 0, BATCH).error_code == ErrorCode.NONE
            for number, sock in enumerate(slow):
                if sock not in still_open:
                    continue
                sock.settimeout(0)
                try:
                    if number % 2:
                        sock.send(b"x")
                    sock.recv(1)
                except BlockingIOError:
                    continue
                except ConnectionError:
                    pass
                still_open.discard(sock)
            return not still_open

        until(trickle, 40)
        assert time.monotonic() - began > 8
        assert rss(server) - before < 16 * MIB
        assert "and not its rest" in server.log
        for sock in slow:
            sock.close()


def fill_big(client: WireClient) -> None:
    """Write 18 MB into a topic."""
    client.create_topic("big")
    batch = build_batch([(None, os.urandom(900_000), (), NOW_MS)])
    for _ in range(20):
        assert client.produce("big", 0, batch).error_code == ErrorCode.NONE


def fetch_of_big() -> FetchRequest:
    """Return a request for all of its records."""
    partition = FetchPartition(partition=0, partition_max_bytes=18 * MIB)
    return FetchRequest(
        replica_id=-1, session_epoch=-1, max_bytes=18 * MIB,
        topics=[FetchTopic(topic="big", partitions=[partition])],
    )  # fmt: skip


def test_readers_that_take_nothing_cost_little_and_are_closed(tmp_path: Path) -> None:
    arguments = ["--durability", "os", "--config", "connections.max.idle.ms=3000"]
    with running_server(tmp_path, *arguments) as server:
        with WireClient(address(server)) as client:
            fill_big(client)
        before = rss(server)
        lazy = [WireClient(address(server)) for _ in range(50)]
        for other in lazy:
            for _ in range(4):
                other.send(fetch_of_big(), 11)
        process = psutil.Process(server.pid)
        with WireClient(address(server)) as client:
            until(lambda: len(process.net_connections("tcp")) >= len(lazy))
            client.ping()
            assert rss(server) - before < 40 * MIB

            def only_this_one() -> bool:
                client.ping()
                return server.log.count("waiting bytes") >= len(lazy) or process.num_fds() < 40

            until(only_this_one, 30)
        assert "the client took none of" in server.log
        for other in lazy:
            other.close()


def test_a_silent_connection_is_closed_and_an_active_connection_is_kept(tmp_path: Path) -> None:
    """A half-open connection: the other machine is gone, and sends no FIN. The server receives nothing more."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            running_server(tmp_path, "--config", "connections.max.idle.ms=1500")
        )
        silent = stack.enter_context(WireClient(address(server)))
        client = stack.enter_context(WireClient(address(server)))
        silent.ping()
        client.ping()
        process = psutil.Process(server.pid)
        descriptors = int(process.num_fds())

        def gone() -> bool:
            client.ping()
            return int(process.num_fds()) <= descriptors - 2

        until(gone)
        assert silent.closed_by_server()


STOPPED_READER = """
import sys
from tests.conformance.server.wire import WireClient
from tests.conformance.server.test_load import fetch_of_big
client = WireClient((sys.argv[1], int(sys.argv[2])))
for _ in range(4):
    client.send(fetch_of_big(), 11)
client.sock.recv(1)
print("reading", flush=True)
while client.sock.recv(1):
    pass
"""


def test_a_peer_that_stops_in_the_middle_of_an_answer_is_closed(tmp_path: Path) -> None:
    """A client that reads nothing: its kernel acknowledges bytes until its buffers are full."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            running_server(tmp_path, "--config", "connections.max.idle.ms=2000")
        )
        client = stack.enter_context(WireClient(address(server)))
        fill_big(client)
        descriptors = int(psutil.Process(server.pid).num_fds())
        command = [sys.executable, "-c", STOPPED_READER, server.host, str(server.port)]
        reader = subprocess.Popen(command, stdout=subprocess.PIPE)
        stack.callback(reader.wait, 20)
        stack.callback(reader.kill)
        assert reader.stdout is not None
        stack.callback(reader.stdout.close)
        assert reader.stdout.readline() == b"reading\n"
        os.kill(reader.pid, signal.SIGSTOP)

        def gone() -> bool:
            client.ping()
            return "the client took none of" in server.log

        until(gone)
        until(lambda: int(psutil.Process(server.pid).num_fds()) <= descriptors)


def test_accepted_sockets_ask_whether_the_peer_is_alive(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, WireClient(address(server)) as client:
        client.ping()
        local = client.sock.getsockname()[1]
        lines = Path("/proc/net/tcp").read_text().splitlines() if os.name == "posix" else []
        here = [line.split() for line in lines if line.split()[2].endswith(f":{local:04X}")]
        if not here:
            pytest.skip("this system does not report the timers of sockets")
        timer, _, _ = here[0][5].partition(":")
        assert timer == "02", "no keepalive timer runs on the server's side"


def test_the_connection_limit_changes_while_the_server_runs(tmp_path: Path) -> None:
    def allow(client: WireClient, operation: int, count: str | None) -> None:
        config = AlterableConfig(name="max.connections", config_operation=operation, value=count)
        resource = AlterConfigsResource(resource_type=4, resource_name="1", configs=[config])
        request = IncrementalAlterConfigsRequest(resources=[resource])
        (response,) = client.request(request, 1).responses
        assert response.error_code == ErrorCode.NONE

    def is_let_in() -> bool:
        try:
            with WireClient(address(server)) as other:
                return bool(other.request(ApiVersionsRequest(), 0).api_keys)
        except OSError:
            return False

    with running_server(tmp_path) as server, WireClient(address(server)) as client:
        assert is_let_in()
        allow(client, 0, "1")
        assert not is_let_in()
        assert "there are 1 connections already" in server.log
        allow(client, 1, None)
        until(is_let_in)


def test_a_request_that_names_too_many_topics_is_refused(tmp_path: Path) -> None:
    def naming(count: int) -> MetadataRequest:
        topics = [MetadataRequestTopic(name=f"n{number}") for number in range(count)]
        return MetadataRequest(topics=topics, allow_auto_topic_creation=False)

    with running_server(tmp_path) as server:
        with WireClient(address(server)) as client:
            assert len(client.request(naming(10_000)).topics) == 10_000
            client.send(naming(10_001))
            assert client.closed_by_server()
        assert "METADATA names 10001 topics" in server.log


def test_a_low_descriptor_limit_is_logged_at_the_start(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with running_server(tmp_path) as server:
        assert "few_descriptors" not in server.log
        with WireClient(address(server)) as client:
            client.create_topic("t", 300)
        server.stop()
        command = ["/bin/sh", "-c", 'ulimit -n 1500 && exec "$@"', "sh", *server.command()]
        server.command = lambda: command  # type: ignore[method-assign]  # a shell around it
        server.start()
        until(lambda: "few_descriptors" in server.log)
        with WireClient(address(server)) as client:
            client.ping()
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_two_thousand_partitions_are_bounded_in_memory_and_files(tmp_path: Path) -> None:
    with running_server(tmp_path, "--durability", "os") as server:
        with WireClient(address(server), 120) as client:
            before = rss(server)
            client.create_topic("many", 2_000)
            for _ in range(2):
                for first in range(0, 2_000, 500):
                    data = [
                        PartitionProduceData(index=index, records=BATCH)
                        for index in range(first, first + 500)
                    ]
                    topics = [TopicProduceData(name="many", partition_data=data)]
                    request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topics)
                    response = client.request(request)
                    parts = response.responses[0].partition_responses
                    assert {part.error_code for part in parts} == {ErrorCode.NONE}
            process = psutil.Process(server.pid)
            assert process.num_fds() < 2_000 + 100
            assert rss(server) - before < 40 * MIB
        server.kill()
        server.start()
        assert server.ready_after_s < 10
        with WireClient(address(server)) as client:
            assert client.fetch("many", 1_999, 0).high_watermark == 2
        assert psutil.Process(server.pid).num_fds() < 2_000 + 100
