"""A17: members of other clients, which do not support a stop; and brokers that end during a stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.acceptance.place import BROKER_SETTINGS, PATIENCE_S, QUICK, Place
from tests.fixtures.processes import ServerProcess

LIBRARIES = ["confluent-kafka", "confluent-kafka consumer", "kafka-python"]


def confluent(address: str, group: str, topic: str, **options: Any) -> Callable[[], object]:
    module = pytest.importorskip("confluent_kafka")
    consumer = module.Consumer({"bootstrap.servers": address, "group.id": group, **options})
    consumer.subscribe([topic])
    return lambda: consumer.poll(0.1)


def kafka_python(address: str, group: str, topic: str) -> Callable[[], object]:
    module = pytest.importorskip("kafka")
    consumer = module.KafkaConsumer(
        topic, bootstrap_servers=address, group_id=group, heartbeat_interval_ms=200
    )
    return lambda: consumer.poll(timeout_ms=100)


def foreign(library: str, address: str, group: str, topic: str) -> Callable[[], object]:
    if library == "kafka-python":
        return kafka_python(address, group, topic)
    options: dict[str, Any] = {"heartbeat.interval.ms": 200, "session.timeout.ms": 6_000}
    if library.endswith(" consumer"):
        options = {"group.protocol": "consumer"}
    return confluent(address, group, topic, **options)


@contextmanager
def polling(poll: Callable[[], object]) -> Iterator[None]:
    """Poll in a thread, as a program does."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            poll()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
    return found


def members(admin: headrace.Admin, group: str) -> list[str]:
    if group not in {each.group_id for each in admin.groups()}:
        return []
    return [member.member_id for member in admin.members(group) if member.assignment]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a17_stop_member_removes_a_foreign_member_and_returns_removed(
    served: str, name: str, library: str
) -> None:
    place = Place("tcp", served)
    topic = place.topic(name, 1)
    admin = place.admin()
    poll = foreign(library, served, name, topic)
    with polling(poll):
        [member] = wait_for(lambda: members(admin, name))
        assert admin.stop_member(name, member, timeout_s=1.0) == "removed"
        # It does not know the request to stop, and joins again, as after any removal.
        assert wait_for(lambda: members(admin, name))
    place.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a17_a_stop_continues_after_a_restart_of_the_broker(
    tmp_path: Path, name: str, protocol: str, how: str
) -> None:
    """The restarted broker notifies the member, because the administrator's client repeats its request there."""
    settings = [f"--config={key}={value}" for key, value in BROKER_SETTINGS.items()]
    server = ServerProcess(tmp_path / "data", arguments=settings, log_path=tmp_path / "log")
    with server:
        place = Place("tcp", server.bootstrap, protocol=protocol)
        topic = place.topic(name, 1)
        place.fill(topic, range(5))
        consumer = place.consumer(name)
        consumer.subscribe([topic])
        read: list[Any] = []
        while len(read) < 5:
            read += consumer.poll(0.2)
        who = consumer.group_metadata().member_id
        outcomes: list[str] = []
        with headrace.Admin(server.bootstrap, request_timeout_ms=60_000, **QUICK) as admin:
            thread = threading.Thread(
                target=lambda: outcomes.append(admin.stop_member(name, who, timeout_s=PATIENCE_S))
            )
            thread.start()
            wait_for(lambda: consumer._core._group.stopping)
            getattr(server, how)()
            server.start()
            while not consumer.stopped:
                consumer.poll(0.2)
            thread.join(2 * PATIENCE_S)
        assert outcomes
        assert outcomes[0] in {"stopped", "gone"}
        admin = place.admin()
        assert [at.offset for at in admin.offsets(name).values()] == [5]
        place.close()
