"""Every installed client, opened with the properties that let it log in."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conformance.clients.java import JavaClient
from tests.conformance.clients.kcat import Kcat, find_kcat
from tests.conformance.clients.scenario import Client, ProgramClient
from tests.fixtures.client_security import Properties
from tests.fixtures.javascript import NodeUnavailableError, node_program
from tools.fetch_java import JavaUnavailableError

Open = Callable[[str, Path, Properties], Client]


def _python(name: str, module: str) -> Open:
    return lambda bootstrap, directory, properties: ProgramClient.python(
        name, module, bootstrap, directory, properties
    )


def _headrace(bootstrap: str, directory: Path, properties: Properties) -> Client:
    module = "tests.conformance.clients.programs.headrace_client"
    command = [sys.executable, "-m", module, "range"]
    return ProgramClient("headrace", command, bootstrap, directory, properties)


def _kafkajs(bootstrap: str, directory: Path, properties: Properties) -> Client:
    try:
        command = node_program("client.js")
    except NodeUnavailableError as error:
        pytest.skip(str(error))
    return ProgramClient("kafkajs", command, bootstrap, directory, properties)


def _kcat(bootstrap: str, directory: Path, properties: Properties) -> Client:
    command = find_kcat()
    if command is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    return Kcat(command, bootstrap, directory, properties)


def _java(bootstrap: str, directory: Path, properties: Properties) -> Client:
    try:
        return JavaClient(bootstrap, directory, properties)
    except JavaUnavailableError as error:
        pytest.skip(str(error))


CLIENTS: dict[str, Open] = {
    "confluent-kafka": _python("confluent-kafka", "confluent"),
    "kafka-python": _python("kafka-python", "kafka_python"),
    "aiokafka": _python("aiokafka", "aio"),
    "kafkajs": _kafkajs,
    "kcat": _kcat,
    "java": _java,
    "headrace": _headrace,
}


RECORDS = 3


def round_trip(
    name: str, bootstrap: str, directory: Path, properties: Properties, topic: str
) -> None:
    """Write some records and read them."""
    client = CLIENTS[name](bootstrap, directory, properties)
    try:
        written = client.produce(topic, 1, 0, RECORDS, "none", idempotent=False)
        assert sorted(number for number, *_ in written) == list(range(RECORDS))
        read = client.consume(topic, 1, RECORDS)
        assert [row[3] for row in read] == [client.value_of(n) for n in range(RECORDS)]
    finally:
        client.close()
