"""Reports of workers and clients that cannot work, and their delays, with a real server and default settings."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.clients.drivers import common
from headrace.errors import HeadraceError
from tests.fixtures.processes import running_server
from tests.fixtures.proxy import Proxy

REPORTED_S = 2.0
SLACK_S = 1.0
"""Additional time for a busy machine, in seconds."""
BEAT_S = 5.0
"""Kafka's default between two heartbeats, of which a silent connection is found by the first that is not answered."""


@pytest.fixture(autouse=True)
def forget_reports() -> None:
    common._reported.clear()


def until(condition: Callable[[], Any], within_s: float, what: str) -> float:
    began_s = time.monotonic()
    while not condition():
        assert time.monotonic() - began_s < within_s, f"not within {within_s} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - began_s


@contextmanager
def running(app: headrace.App) -> Iterator[list[BaseException]]:
    """Run an app in a thread; the list contains the error that it raises."""
    errors: list[BaseException] = []

    async def serve() -> None:
        await app.serve()

    def run() -> None:

        try:
            asyncio.run(serve())
        except HeadraceError as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield errors
    finally:
        app.stop()
        thread.join(60)
        assert not thread.is_alive()


def make_app(target: str, topic: str = "orders") -> headrace.App:
    app = headrace.App(target, group="billing")

    @app.worker(topic)
    async def bill(order: bytes) -> None: ...

    return app


def test_a_worker_on_a_topic_that_does_not_exist_warns_and_waits(
    tmp_path: Path, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING)
    with running_server(tmp_path) as server, headrace.Admin(server.bootstrap) as admin:
        admin.create_topic("orders")
        app = make_app(server.bootstrap, "odrers")
        with running(app):
            until(lambda: "did you mean 'orders'" in caplog.text.lower(), 6, "a suggestion")
            status = app.status()["bill"]
            assert (status.state, status.healthy) == ("waiting", False)
            assert "no topic 'odrers'" in (status.error or "")
            admin.create_topic("odrers")
            until(lambda: app.status()["bill"].healthy, 15, "healthy when the topic is there")
            assert "topic 'odrers' exists now" in caplog.text


@pytest.mark.parametrize("kind", ["killed", "stopped", "half-open"])
def test_a_worker_is_not_healthy_while_its_broker_is_away(
    tmp_path: Path, caplog: Any, kind: str
) -> None:
    caplog.set_level(logging.WARNING)
    with (
        Proxy() as proxy,
        running_server(
            tmp_path, f"--config=advertised.listeners=PLAINTEXT://{proxy.address}"
        ) as server,
    ):
        proxy.target = (server.host, server.port)
        with headrace.Admin(proxy.address) as admin:
            admin.create_topic("orders")
        app = make_app(proxy.address)
        with running(app):
            until(lambda: app.status()["bill"].healthy, 15, "healthy")
            if kind == "killed":
                server.kill()
            elif kind == "stopped":
                server.signal(signal.SIGSTOP)
            else:
                proxy.silence = "half-open"
            within_s = REPORTED_S + SLACK_S + (0 if kind == "killed" else BEAT_S)
            until(lambda: "broker 127.0.0.1" in caplog.text, within_s, "a warning")
            status = app.status()["bill"]
            assert (status.state, status.healthy) == ("waiting", False)
            assert "127.0.0.1" in (status.error or "") or "answer" in (status.error or "")
            proxy.silence = None
            if kind == "killed":
                server.start()
            elif kind == "stopped":
                server.signal(signal.SIGCONT)
            until(lambda: app.status()["bill"].healthy, 30, "healthy again")
            assert "answers again" in caplog.text


def test_a_worker_without_a_broker_says_so_at_once(unused_port: int, caplog: Any) -> None:
    caplog.set_level(logging.WARNING)
    app = make_app(f"127.0.0.1:{unused_port}")
    with running(app):
        until(lambda: "Connection refused" in caplog.text, REPORTED_S + SLACK_S, "a warning")
        assert not app.status()["bill"].healthy


@pytest.mark.parametrize("client", ["consumer", "producer", "admin"])
def test_every_client_says_that_no_broker_can_be_reached(
    unused_port: int, caplog: Any, client: str
) -> None:
    caplog.set_level(logging.WARNING)
    address = f"127.0.0.1:{unused_port}"
    calls: dict[str, Callable[[], Any]] = {
        "consumer": lambda: poll(address),
        "producer": lambda: send(address),
        "admin": lambda: list_topics(address),
    }
    thread = threading.Thread(target=calls[client], daemon=True)
    thread.start()
    until(lambda: "Connection refused" in caplog.text, REPORTED_S + SLACK_S, "a warning")
    assert caplog.records[0].levelname == "WARNING"
    thread.join(30)
    assert not thread.is_alive()


def poll(address: str) -> None:
    with headrace.Consumer(address, group="g", request_timeout_ms=5_000) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(HeadraceError):
            consumer.poll(30)


def send(address: str) -> None:
    with (
        headrace.Producer(
            address, delivery_timeout_ms=5_000, request_timeout_ms=4_000, max_block_ms=5_000
        ) as producer,
        pytest.raises(HeadraceError),
    ):
        producer.send("t", b"x").result()


def list_topics(address: str) -> None:
    with headrace.Admin(address, request_timeout_ms=5_000) as admin, pytest.raises(HeadraceError):
        admin.topics()


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port that refuses connections: it is bound, and no process listens."""

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
