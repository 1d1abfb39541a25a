"""The life of a server process: the ready line, refusals, a clean stop, a second server, a second signal."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.records.builder import build_batch
from tests.conformance.server.wire import NOW_MS, WireClient
from tests.fixtures.processes import ServerProcess, running_server

RECORD = (None, b"value", (), NOW_MS)


def address_of(server: ServerProcess) -> tuple[str, int]:
    return server.host, server.port


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_the_ready_line_is_exact_and_the_only_output(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        expected = f"ready kafka=127.0.0.1:{server.port} data={server.data} pid={server.pid}\n"
        assert server.ready_line == expected.encode()
        with WireClient(address_of(server)) as client:
            client.ping()
        assert server.stop() == 0
        assert server.further_output == b""


def test_an_in_memory_server_writes_no_file(tmp_path: Path) -> None:
    with running_server(tmp_path, memory=True) as server:
        assert (
            server.ready_line
            == f"ready kafka={server.bootstrap} data=memory pid={server.pid}\n".encode()
        )
        with WireClient(address_of(server)) as client:
            client.create_topic("t")
            assert client.produce("t", 0, build_batch([RECORD])).base_offset == 0
        assert server.stop() == 0
        assert [path.name for path in tmp_path.iterdir()] == ["server.log"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_stops_in_time_with_idle_and_waiting_clients(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running_server(tmp_path) as server:
        idle = [WireClient(address_of(server)) for _ in range(20)]
        idle[0].create_topic("t")
        waiting = WireClient(address_of(server))
        assert waiting.fetch("t", 0, 0).high_watermark == 0
        from_now = time.monotonic()
        waiting.sock.settimeout(20)
        waiting_request = _long_poll(waiting)
        idle[1].ping()
        server.signal(number)
        assert server.wait(10) == 0
        assert time.monotonic() - from_now < 5
        assert waiting_request > 0
        for client in [*idle, waiting]:
            assert client.closed_by_server()
            client.close()
        assert "server_stopped clean=True" in server.log


def _long_poll(client: WireClient) -> int:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic = FetchTopic(topic="t", partitions=[partition])
    return client.send(
        FetchRequest(
            replica_id=-1, max_wait_ms=60_000, min_bytes=1, session_epoch=-1, topics=[topic]
        )
    )


@contextlib.contextmanager
def client_that_takes_nothing(server: ServerProcess) -> Iterator[WireClient]:
    """A client that requests far more than its socket holds, and does not read."""
    batch = build_batch([(None, bytes(900_000), (), NOW_MS)])
    partition = FetchPartition(partition=0, partition_max_bytes=50_000_000)
    request = FetchRequest(
        replica_id=-1,
        session_epoch=-1,
        max_bytes=50_000_000,
        topics=[FetchTopic(topic="t", partitions=[partition])],
    )
    with WireClient(address_of(server)) as client, WireClient(address_of(server)) as lazy:
        client.create_topic("t")
        for _ in range(30):
            assert client.produce("t", 0, batch).error_code == 0
        lazy.send(request)
        lazy.sock.recv(1, socket.MSG_PEEK)  # the response has begun
        client.ping()
        yield lazy


def test_the_server_stops_in_time_with_a_client_that_reads_nothing(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, client_that_takes_nothing(server):
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 5
        assert "drain_timed_out" in server.log


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, client_that_takes_nothing(server):
        server.signal(signal.SIGTERM)
        while "server_stopping" not in server.log:
            assert server.running
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
        assert "server_killed" in server.log
        assert "server_stopped" not in server.log


def test_produce_requests_in_flight_are_answered_before_the_stop(tmp_path: Path) -> None:
    with running_server(tmp_path) as server, WireClient(address_of(server)) as client:
        client.create_topic("t")
        for _ in range(50):
            client.send_batch("t", 0, build_batch([RECORD]))
        client.receive()  # the server has received the others, or they are in flight
        server.signal(signal.SIGTERM)
        acknowledged = 1
        try:
            while True:
                _, response = client.receive()
                assert response.responses[0].partition_responses[0].error_code == 0
                acknowledged += 1
        except ConnectionError:
            pass
        assert server.wait(10) == 0
        server.start()
        with WireClient(address_of(server)) as reader:
            assert len(list(reader.read("t", 0))) >= acknowledged


def test_data_survives_a_clean_restart(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        with WireClient(address_of(server)) as client:
            client.create_topic("t")
            client.produce("t", 0, build_batch([RECORD] * 3))
        server.restart()
        with WireClient(address_of(server)) as client:
            assert [record.offset for record in client.read("t", 0)] == [0, 1, 2]
            assert client.produce("t", 0, build_batch([RECORD])).base_offset == 3


def test_a_second_server_on_the_same_data_reports_the_first(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        result = run_command("serve", "--listen", "127.0.0.1:0", "--data", str(server.data))
        assert result.returncode == 1
        assert result.stdout == ""
        assert str(server.pid) in result.stderr
        assert "in use by another" in result.stderr
        assert "Traceback" not in result.stderr
        with WireClient(address_of(server)) as client:
            client.ping()


def test_a_taken_port_is_a_clear_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run_command(
            "serve", "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "d")
        )
    assert result.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "0.0.0.0:0"], "--insecure"),
        (["--listen", "nonsense"], "expected HOST:PORT"),
        (["--config", "num.partitons=3"], "did you mean num.partitions"),
        (["--config", "num.partitions=many"], "expected an integer"),
        (["--config", "num.partitions"], "expected KEY=VALUE"),
        (["--durability", "hope"], "durability: expected fsync, interval:<ms> or os"),
        (["--durability", "interval:0"], "durability: the interval must be 1 to"),
    ],
)
def test_wrong_usage_exits_with_two_and_one_line(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
    result = run_command("serve", "--data", str(tmp_path / "d"), *listen, *arguments)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not (tmp_path / "d").exists()


def test_insecure_listens_beyond_loopback(tmp_path: Path) -> None:
    with running_server(tmp_path, "--insecure", host="0.0.0.0") as server:
        assert server.ready_line.startswith(b"ready kafka=0.0.0.0:")
        with WireClient(("127.0.0.1", server.port)) as client:
            client.ping()


def test_flags_override_settings_of_the_properties_file(tmp_path: Path) -> None:
    settings = tmp_path / "server.properties"
    settings.write_text(
        f"# a comment\nlisteners=PLAINTEXT://127.0.0.1:1\nlog.dirs={tmp_path / 'logs'}\n"
        "num.network.threads=3\nnum.partitions = 4\nzookeeper.max.in.flight.requests=10\n"
    )
    with running_server(
        tmp_path, "--config-file", str(settings), "--config", "num.partitions=5"
    ) as server:
        assert server.data is not None
        assert f"data={server.data} " in server.ready_line.decode()
        assert "config_ignored" in server.log
        with WireClient(address_of(server)) as client:
            client.create_topic("t", partitions=-1)
            assert client.fetch("t", 4, 0).error_code == 0
            assert client.fetch("t", 5, 0).error_code == 3


def test_json_log_lines(tmp_path: Path) -> None:
    with running_server(tmp_path, "--log-format", "json") as server:
        with socket.create_connection(address_of(server)) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert sock.recv(1) == b""
        assert server.stop() == 0
        events = [json.loads(line)["event"] for line in server.log.splitlines()]
        assert "connection_closed" in events


def test_the_process_keeps_no_file_of_a_closed_connection(tmp_path: Path) -> None:
    with running_server(tmp_path) as server:
        directory = Path(f"/proc/{server.pid}/fd")
        if not directory.exists():
            pytest.skip("needs /proc")
        with WireClient(address_of(server)) as client:
            client.ping()
            before = len(list(directory.iterdir()))
            for _ in range(5):
                others = [WireClient(address_of(server)) for _ in range(40)]
                for other in others:
                    other.ping()
                for other in others:
                    other.close()
            deadline = time.monotonic() + 10
            while len(list(directory.iterdir())) > before and time.monotonic() < deadline:
                client.ping()
            assert len(list(directory.iterdir())) <= before
