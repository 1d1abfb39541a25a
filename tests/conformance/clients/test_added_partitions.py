"""Partitions that are added to a topic, with clients of every kind in their default settings: read within seconds.

The group has two members and one partition, so that the leader may be the one that reads nothing: it fetches from no
broker, and only the coordinator can notify it that its metadata are old.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import pytest

import headrace
from tests.conformance.clients.java import tool_command
from tests.fixtures.targets import HeadraceServer, Target
from tools.fetch_java import JavaUnavailableError

with warnings.catch_warnings():  # it uses what Python 3.11 has deprecated
    warnings.simplefilter("ignore")
    import kafka

MEMBERS = 2
GROWN = 4
WITHIN_S = 15
"""A heartbeat is sent every three seconds, in the slowest of these clients, and there may be two rebalances of a
heartbeat each; metadata are refreshed every five minutes."""
START_S = 60
TOPIC = "t"


class Reader:
    """A member of the group `g`, in a thread.

    Attributes:
        owned: The partitions that it has.
    """

    def __init__(self, run: Callable[[Reader, str], None], bootstrap: str) -> None:
        self.owned: set[int] = set()
        self.stopping = threading.Event()
        self._thread = threading.Thread(target=run, args=(self, bootstrap), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the producer thread."""
        self.stopping.set()
        self._thread.join(30)
        assert not self._thread.is_alive()


def own(group_protocol: str) -> Callable[[Reader, str], None]:
    def run(reader: Reader, bootstrap: str) -> None:
        with headrace.Consumer(bootstrap, group="g", group_protocol=group_protocol) as consumer:
            consumer.subscribe([TOPIC])
            while not reader.stopping.is_set():
                consumer.poll(0.2)
                reader.owned = {number for _, number in consumer.assignment()}

    return run


def librdkafka(reader: Reader, bootstrap: str) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    consumer.subscribe([TOPIC])
    while not reader.stopping.is_set():
        consumer.poll(0.2)
        reader.owned = {each.partition for each in consumer.assignment()}
    consumer.close()


def kafka_python(reader: Reader, bootstrap: str) -> None:
    consumer = kafka.KafkaConsumer(TOPIC, bootstrap_servers=bootstrap, group_id="g")
    while not reader.stopping.is_set():
        consumer.poll(200)
        reader.owned = {each.partition for each in consumer.assignment()}
    consumer.close()


def aio_kafka(reader: Reader, bootstrap: str) -> None:
    async def read() -> None:
        consumer = aiokafka.AIOKafkaConsumer(TOPIC, bootstrap_servers=bootstrap, group_id="g")
        await consumer.start()
        while not reader.stopping.is_set():
            await consumer.getmany(timeout_ms=200)
            reader.owned = {each.partition for each in consumer.assignment()}
        await consumer.stop()

    asyncio.run(read())


def java(assignor: str) -> Callable[[Reader, str], None]:
    def run(reader: Reader, bootstrap: str) -> None:
        command = [*tool_command("verifiable-consumer"), "--bootstrap-server", bootstrap]
        command += ["--topic", TOPIC, "--group-id", "g"]
        command += ["--assignment-strategy", f"org.apache.kafka.clients.consumer.{assignor}"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:

            def end() -> None:
                reader.stopping.wait()
                process.terminate()

            ender = threading.Thread(target=end)
            ender.start()
            for line in process.stdout or ():
                said = json.loads(line) if line.startswith("{") else {}
                numbers = {each["partition"] for each in said.get("partitions", [])}
                if said.get("name") == "partitions_assigned":
                    reader.owned = reader.owned | numbers
                elif said.get("name") == "partitions_revoked":
                    reader.owned = reader.owned - numbers
            reader.stopping.set()
            ender.join()

    return run


CLIENTS: dict[str, Callable[[Reader, str], None]] = {
    "headrace, classic": own("classic"),
    "headrace, KIP-848": own("consumer"),
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
    "aiokafka": aio_kafka,
    "Java, range": java("RangeAssignor"),
    "Java, cooperative": java("CooperativeStickyAssignor"),
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Target]:
    # Default settings, of the broker too; a broker for each test, so that its log is about one group.
    server = HeadraceServer(tmp_path / "headrace", settings={})
    server.start()
    yield server
    server.stop()


def wait_until(condition: Callable[[], bool], timeout_s: float, what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_added_partitions_are_read_within_seconds(server: HeadraceServer, client: str) -> None:
    if client.startswith("Java"):
        try:
            tool_command("verifiable-consumer")
        except JavaUnavailableError as error:
            pytest.skip(str(error))
    with headrace.Admin(server.bootstrap) as admin, contextlib.ExitStack() as ending:
        admin.create_topic(TOPIC, partitions=1)
        readers = [Reader(CLIENTS[client], server.bootstrap) for _ in range(MEMBERS)]
        for reader in readers:
            ending.callback(reader.stop)

        def owned() -> list[int]:
            return sorted(number for reader in readers for number in reader.owned)

        def group() -> tuple[str, int]:
            found = admin.describe_group("g")
            return found.state, len(found.members)

        wait_until(lambda: owned() == [0], START_S, owned)
        wait_until(lambda: group() == ("Stable", MEMBERS), START_S, group)
        admin.add_partitions(TOPIC, GROWN)
        wait_until(lambda: owned() == list(range(GROWN)), WITHIN_S, owned)
    if "KIP-848" not in client:
        log = server.log_path.read_text()
        assert log.count("partitions that no member reads") == 1, "one rebalance for one change"
