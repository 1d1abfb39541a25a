"""Real clients of both protocols in one group: librdkafka and Kafka's Java client, classic ones and KIP-848's.

Members join, leave and are killed, the broker too, while records come in all the time. Nothing may be lost or skipped,
and no partition may have two owners, whatever the group is at the moment: classic, mixed, of consumers only, classic
again. HEADRACE_MIXED_MEMBERS=20 has more of them than `make test` has time for.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.clients.java import JavaClient, JavaMember, translate
from tests.conformance.clients.observer import wait_until
from tests.conformance.clients.peer import Peer
from tests.conformance.clients.programs.common import (
    HEARTBEAT_MS,
    SESSION_TIMEOUT_MS,
    value_of,
)
from tests.conformance.clients.scenario import Member, ProgramClient, ProgramMember
from tests.fixtures.history.members import Event, History, check_deliveries, records_of
from tests.fixtures.targets import HEADRACE_TEST_SETTINGS, HeadraceServer

pytestmark = pytest.mark.java
PARTITIONS = 24
MEMBERS = int(os.environ.get("HEADRACE_MIXED_MEMBERS", "8"))
PATIENCE_S = 60
GROUP, TOPIC = "g", "t"
PAUSE_S = 0.02
SETTINGS = {
    **HEADRACE_TEST_SETTINGS,
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "500",
}
STRATEGIES = {
    "range": "org.apache.kafka.clients.consumer.RangeAssignor",
    "cooperative-sticky": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


class Crowd:
    """The members of the group, and their events."""

    def __init__(self, server: HeadraceServer, directory: Path, strategy: str) -> None:
        self.server, self.directory, self.strategy = server, directory, strategy
        self.history = History()
        self.alive: dict[str, Member] = {}
        self.numbers: dict[str, int] = defaultdict(int)
        self._librdkafka = ProgramClient.python(
            "confluent-kafka", "confluent", server.bootstrap, directory
        )
        self._java = JavaClient(server.bootstrap, directory)

    def joins(self, kind: str, count: int = 1) -> None:
        for _ in range(count):
            self.numbers[kind] += 1
            name = f"{kind}-{self.numbers[kind]}"
            self.alive[name] = (
                self._java_member(name) if kind.startswith("java") else self._member(name)
            )

    def _member(self, name: str) -> Member:
        peer = self._librdkafka.peer(name, self.history)
        settings = (
            {"group.protocol": "consumer"}
            if "consumer" in name
            else {"partition.assignment.strategy": self.strategy}
        )
        peer.send(do="member", name=name, group=GROUP, topic=TOPIC, settings=settings)
        return ProgramMember(peer, self.history)

    def _java_member(self, name: str) -> Member:
        options: dict[str, object] = {"client_id": name, "fetch_max_wait_ms": 100}
        command = self._java._command("verifiable-consumer")
        command += ["--group-id", GROUP, "--topic", TOPIC, "--verbose"]
        if "consumer" in name:
            command += ["--group-protocol", "consumer"]
        else:
            command += ["--session-timeout", str(SESSION_TIMEOUT_MS)]
            command += ["--assignment-strategy", STRATEGIES[self.strategy]]
            options["heartbeat_interval_ms"] = HEARTBEAT_MS
        command += self._java._settings(**options)
        peer = Peer(
            name, command, directory=self.directory, history=self.history, translate=translate
        )
        return JavaMember(peer, self.history)

    def names(self, kind: str) -> list[str]:
        return [name for name in self.alive if kind in name]

    def leaves(self, kind: str, count: int = 1) -> None:
        for name in self.names(kind)[:count]:
            self.alive.pop(name).leave()

    def dies(self, kind: str, count: int = 1) -> None:
        for name in self.names(kind)[:count]:
            self.alive.pop(name).kill()

    def owners(self) -> dict[int, str]:
        return check_owners(self.history.events())[0]

    def await_owners(self) -> None:
        """Wait until every running member owns partitions, and every partition has a running owner."""

        def probe() -> bool:
            owners = self.owners()
            return len(owners) == PARTITIONS and set(owners.values()) == set(self.alive)

        wait_until(f"partitions of {sorted(self.alive)}", probe, PATIENCE_S)

    def end(self) -> None:
        for member in self.alive.values():
            member.kill()
        self._librdkafka.close()


def check_owners(events: list[Event]) -> tuple[dict[int, str], list[str]]:
    """Return the owners at the end, and the partitions that had two owners at a time."""
    owners: dict[int, str] = {}
    problems = []
    for event in events:
        if event.kind == "assigned":
            for partition in event.fields["partitions"]:  # type: ignore[attr-defined]  # a list of numbers
                other = owners.get(partition, event.member)
                if other != event.member:
                    problems.append(f"{partition} of {other} is given to {event.member}")
                owners[partition] = event.member
        elif event.kind == "revoked":
            for partition in event.fields["partitions"]:  # type: ignore[attr-defined]  # a list of numbers
                if owners.get(partition) == event.member:
                    del owners[partition]
        elif event.kind in {"left", "killed"}:
            owners = {p: owner for p, owner in owners.items() if owner != event.member}
    return owners, problems


class Load:
    """A thread that produces numbered records, a few at a time."""

    def __init__(self, bootstrap: str) -> None:
        self.acknowledged: dict[tuple[int, int], str] = {}
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0}
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._ended.wait(PAUSE_S):
            value = value_of(number)
            self._producer.produce(
                TOPIC, value, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            self._producer.poll(0)
            number += 1
        assert self._producer.flush(PATIENCE_S) == 0

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.acknowledged[message.partition(), message.offset()] = message.value().decode()

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HeadraceServer]:
    server = HeadraceServer(tmp_path / "headrace", settings=SETTINGS)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def live(crowd: Crowd, server: HeadraceServer) -> None:
    """The life of a group: classic, mixed, of consumers only, mixed, classic."""
    some = max(MEMBERS // 4, 1)
    crowd.joins("classic", 2 * some - 1)
    crowd.joins("java-classic")
    crowd.await_owners()
    crowd.joins("consumer", 2 * some - 1)
    crowd.joins("java-consumer")
    crowd.await_owners()
    crowd.dies("classic", some)
    crowd.dies("consumer", some)
    crowd.joins("consumer", some)
    crowd.await_owners()
    crowd.history.add("broker", "broker_down", {})
    server.kill()
    server.start()
    crowd.joins("classic", some)
    crowd.await_owners()
    crowd.leaves("classic", len(crowd.names("classic")))
    crowd.await_owners()
    crowd.joins("classic", some)
    crowd.await_owners()
    crowd.dies("consumer")
    crowd.leaves("consumer", len(crowd.names("consumer")))
    crowd.joins("classic", some)
    crowd.await_owners()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_group_of_both_kinds_loses_nothing_and_shares_nothing(
    server: HeadraceServer, tmp_path: Path, strategy: str
) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result()
    crowd = Crowd(server, tmp_path, strategy)
    load = Load(server.bootstrap)
    try:
        with load.running():
            live(crowd, server)

        def missing() -> set[tuple[int, int]]:
            got = {
                (partition, offset)
                for event in crowd.history.events()
                for partition, offset, _ in records_of(event)
            }
            return load.acknowledged.keys() - got

        wait_until("everything is read", lambda: not missing(), PATIENCE_S)
    finally:
        crowd.end()
    events = crowd.history.events()
    assert {name.rpartition("-")[0] for name in {e.member for e in events}} >= {
        *("classic", "consumer", "java-classic", "java-consumer")
    }
    assert check_owners(events)[1] == []
    assert check_deliveries(events) == []
