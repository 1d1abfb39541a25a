"""A connection or request that ends leaves no reference cycles: its memory is free without the garbage collector."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from headrace import Admin, Consumer, Producer
from headrace.errors import HeadraceError
from tests.conformance.clients.observer import wait_until
from tests.fixtures.certificates import make_certificates
from tests.fixtures.client_security import NO_SECURITY, Properties, headrace, login
from tests.fixtures.secured_headrace import SecuredHeadrace
from tests.fixtures.secured_kafka import PASSWORD, USER

PROGRAM = Path(__file__).parents[2] / "fixtures" / "garbage_server.py"


def produce(target: str, security: Properties) -> None:
    for _ in range(5):
        with Producer(target, **security) as producer:
            producer.send("orders", b"1")


def transact(target: str, security: Properties) -> None:
    for number in range(3):
        name = f"t{number}"
        with (
            Producer(target, transactional_id=name, **security) as producer,
            producer.transaction(),
        ):
            producer.send("orders", b"1")


def consume(target: str, security: Properties) -> None:
    for _ in range(3):
        with Consumer(target, group="billing", **security) as consumer:
            consumer.subscribe(["orders"])
            consumer.poll()
            consumer.commit()


def administrate(target: str, security: Properties) -> None:
    for number in range(5):
        with Admin(target, **security) as admin:
            admin.create_topic(f"topic-{number}", partitions=3)
            admin.delete_topic(f"topic-{number}")


def fail(target: str, security: Properties) -> None:
    for _ in range(3):
        with Admin(target, **security) as admin:
            for wrong in (lambda: admin.delete_topic("unknown"), lambda: admin.create_topic("?")):
                with pytest.raises(HeadraceError):
                    wrong()
        host, port = target.split(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"GET / HTTP/1.1\r\n\r\n")
            client.recv(1)


def leave(target: str, security: Properties) -> None:
    """Close consumers while their requests wait: a poll, and a member that joins."""
    for _ in range(3):
        with ThreadPoolExecutor(2) as pool:
            consumers = [Consumer(target, group="leaving", **security) for _ in range(2)]
            for consumer in consumers:
                consumer.subscribe(["orders"])
            list(pool.map(lambda consumer: consumer.poll(timeout_s=0.3), consumers))
            list(pool.map(lambda consumer: consumer.close(), consumers))


class Report(NamedTuple):
    """The report of a server on the time since its last report."""

    garbage: dict[str, int]
    """Numbers of objects that only the garbage collector would free, by type."""
    imported: list[str]
    """Modules that the server has imported."""


class Server:
    """A server without a garbage collector, with a listener of each kind."""

    def __init__(self, directory: Path) -> None:
        self._report = directory / "found.json"
        certificates = make_certificates(directory / "certificates")
        self.secured = SecuredHeadrace(directory / "server", certificates)
        process = self.secured.process
        python, _, _, *arguments = process.command()
        watched = [python, str(PROGRAM), str(self._report), *arguments]
        process.command = lambda: watched  # type: ignore[method-assign]  # a program around it
        encrypted = login(certificates.authority, "SCRAM-SHA-256", USER, PASSWORD)
        self.security = {"PLAINTEXT": NO_SECURITY, "SASL_SSL": encrypted}

    def report(self) -> Report:
        """Have the server report, and free the garbage that it reports."""
        self._report.unlink(missing_ok=True)
        os.kill(self.secured.pid, signal.SIGUSR1)
        wait_until("a report", self._report.exists)
        return Report(**json.loads(self._report.read_text()))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("garbage"))
    server.secured.start()
    try:
        yield server
    finally:
        server.secured.stop()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("clients", [produce, transact, consume, administrate, fail, leave])
def test_clients_leave_nothing_that_only_the_garbage_collector_frees(
    server: Server, clients: Callable[[str, Properties], None], protocol: str
) -> None:
    """Repeat the clients if they made the server import a module: an import leaves garbage of its own, but only once.

    `dataclass(slots=True)`, for example, replaces the class that it decorates; the first class is garbage.
    """
    target, security = server.secured.bootstraps[protocol], headrace(server.security[protocol])
    server.report()  # the start and the tests before have left garbage
    clients(target, security)
    report = server.report()
    if report.imported:
        clients(target, security)
        report = server.report()
    assert report == Report({}, [])
