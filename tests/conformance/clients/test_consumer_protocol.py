"""The server-side group protocol (KIP-848) with librdkafka and Kafka's Java client in one group."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.clients.java import tool_command
from tests.fixtures.targets import HEADRACE_TEST_SETTINGS, HeadraceServer

pytestmark = pytest.mark.java
PARTITIONS = 6
PATIENCE_S = 30
SETTINGS = {
    **HEADRACE_TEST_SETTINGS,
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HeadraceServer]:
    server = HeadraceServer(tmp_path / "headrace", settings=SETTINGS)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class Group:
    """The members in this process, and the records that they have read."""

    def __init__(self, server: HeadraceServer) -> None:
        self.server = server
        self.members: list[Any] = []
        self.read: set[bytes] = set()

    def joins(self, *topics: str, **settings: str) -> Any:
        member = Consumer(
            {
                "bootstrap.servers": self.server.bootstrap,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "log_level": 0,
                **({"group.protocol": "consumer"} | settings),
            }
        )
        member.subscribe(list(topics))
        self.members.append(member)
        return member

    def leaves(self, member: Any) -> None:
        self.members.remove(member)
        member.close()

    def until(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"not in time: {what}; shares are {self.shares()}"
            for member in self.members:
                message = member.poll(0.05)
                if message is not None and not message.error():
                    self.read.add(message.value())

    def shares(self) -> list[int]:
        return [len(member.assignment()) for member in self.members]


def produce(server: HeadraceServer, *numbers: int) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for number in numbers:
        producer.produce("t", str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_S) == 0


def test_members_of_two_clients_join_die_and_live_through_a_crash_of_the_broker(
    server: HeadraceServer, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result()
    group = Group(server)
    first = group.joins("t")
    group.until("one member has all", lambda: group.shares() == [6])
    second = group.joins("t")
    group.until("two share", lambda: group.shares() == [3, 3])
    output = tmp_path / "console"
    with output.open("wb") as out:
        console = subprocess.Popen(
            [
                *tool_command("console-consumer"),
                *("--bootstrap-server", server.bootstrap, "--topic", "t", "--group", "g"),
                "--from-beginning",
                *("--consumer-property", "group.protocol=consumer"),
            ],
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
    try:
        group.until("three share", lambda: group.shares() == [2, 2])
        server.kill()
        server.start()
        produce(server, *range(60))

        def read() -> set[bytes]:
            return group.read | set(output.read_bytes().split(b"\n"))

        wanted = {str(number).encode() for number in range(60)}
        group.until("all is read", lambda: wanted <= read())
        described = admin.describe_consumer_groups(["g"])["g"].result()
        assert [len(m.assignment.topic_partitions) for m in described.members] == [2, 2, 2]
    finally:
        console.kill()
        console.wait()
    group.until("the dead one's are taken over", lambda: group.shares() == [3, 3])
    group.leaves(first)
    group.until("the other one has all", lambda: group.shares() == [6])
    second.unsubscribe()
    group.until("nothing is left", lambda: group.shares() == [0])
    second.subscribe(["^t.*"])
    group.until("the expression matches", lambda: group.shares() == [6])
    group.leaves(second)
    classic = group.joins("t", **{"group.protocol": "classic"})
    group.until("an empty group goes back", lambda: group.shares() == [6])
    group.leaves(classic)
