"""Partitioners, serdes and storages of packages and modules, as a command line and other processes find them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headrace

pytestmark = pytest.mark.slow  # not in `make check`

MODULE = """
class Modulo:
    def __init__(self, modulus=2, first=1):
        self.modulus, self.first = modulus, first

    def partition(self, key, value, available, count):
        return (int(value) + self.first) % self.modulus


class Reversed:
    def serialize(self, value):
        return value.encode()[::-1]

    def deserialize(self, data):
        return data[::-1].decode()


from headrace.storage.memory_files import MemoryFileSystem as Memory

NOTHING = 7
"""
ENTRY_POINTS = """
[headrace.partitioners]
modulo = routing:Modulo
broken = routing:Missing

[headrace.serdes]
reversed = routing:Reversed

[headrace.storages]
elsewhere = routing:Memory
"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """Return a directory with a module."""
    (tmp_path / "routing.py").write_text(MODULE)
    (tmp_path / "torn.py").write_text("import nothing_of_that_name\n")
    return tmp_path


@pytest.fixture
def installed(modules: Path) -> Path:
    """Return a directory with an installed distribution: its module and its metadata."""
    metadata = modules / "routing-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: routing\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return modules


@pytest.fixture
def broker() -> Iterator[headrace.Broker]:
    with headrace.Broker() as broker:
        yield broker


def python(directory: Path, *arguments: str, data: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python where the directory is on the path of imports, and not the current one."""
    path = os.pathsep.join([str(directory), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, *arguments],
        input=data,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


def produce(directory: Path, address: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Write the values 1, 2 and 3 with the command, from a directory of its own."""
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", "produce", "t", "-b", address, *arguments],
        input="1\n2\n3\n",
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def partitions(done: subprocess.CompletedProcess[str]) -> list[int]:
    assert done.returncode == 0, done.stderr
    return sorted(int(line[2]) for line in done.stdout.splitlines())


def test_a_package_offers_partitioners_serdes_and_storages(installed, broker) -> None:
    program = """
import sys, headrace
with headrace.Admin(sys.argv[1]) as admin:
    admin.create_topic("t", 3, partitioner="modulo", partitioner_parameters={"modulus": 3}, serde="reversed")
with headrace.Producer(sys.argv[1]) as producer:
    print(*[producer.send("t", value).result().partition for value in ("1", "20")])
with headrace.Broker() as broker:
    broker.create_topic("u", storage="elsewhere", serde="reversed")
    print(broker.publish("u", "x").offset)
    for wrong in ({"partitioner": "module"}, {"partitioner": "broken"}):
        try:
            broker.create_topic("v", **wrong)
        except headrace.HeadraceError as error:
            print(error)
"""
    done = python(installed, "-c", program, broker.listen())
    first, offset, near, broken, *rest = done.stdout.splitlines()
    assert (first, offset, rest) == ("2 0", "0", []), done.stderr
    assert "did you mean 'modulo'" in near
    assert "'broken' of an installed package (routing:Missing) cannot be imported" in broken
    assert broker.read("t", 0, 0, serde="bytes")[0].value == b"02"


def test_the_command_obeys_a_topic_that_names_a_partitioner_of_a_package(installed, broker) -> None:
    address = broker.listen()
    configs = {"headrace.partitioner": "modulo", "headrace.partitioner.parameters": '{"first": 0}'}
    broker.create_topic("t", 2, configs=configs)
    command = ("-m", "headrace.cli", "produce", "t", "-b", address)
    assert partitions(python(installed, *command, data="1\n2\n3\n")) == [0, 1, 1]
    option = ("--partitioner", "modulo", "--partitioner-parameters", '{"modulus": 1}')
    assert partitions(python(installed, *command, *option, data="1\n2\n3\n")) == [0, 0, 0]


def test_the_command_takes_a_class_of_a_module(modules, broker) -> None:
    broker.create_topic("t", 3, configs={"headrace.partitioner": "theirs"})
    address = broker.listen()
    own = ("--partitioner", "routing:Modulo")
    assert partitions(produce(modules, address, *own)) == [0, 0, 1]
    parameters = ("--partitioner-parameters", '{"modulus": 3, "first": 2}')
    assert partitions(produce(modules, address, *own, *parameters)) == [0, 1, 2]
    assert partitions(produce(modules, address, "--partition", "2")) == [2, 2, 2]
    assert partitions(produce(modules, address, "--partitioner", "round_robin")) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ([], 2, "--partitioner NAME or MODULE:CLASS, or --partition N"),
        ([], 2, "did you mean 'sticky'"),
        (["--partitioner", "roundrobin"], 2, "did you mean 'round_robin'"),
        (["--partitioner", "routing:Modulus"], 2, "routing has no 'Modulus'"),
        (["--partitioner", "routing:NOTHING"], 2, "7 is not a partitioner"),
        (["--partitioner", "nowhere:Modulo"], 2, "there is no module 'nowhere'"),
        (["--partitioner", "torn:Modulo"], 2, "nothing_of_that_name"),
        (["--partitioner", ":Modulo"], 2, "cannot be imported"),
        (["--partitioner", "routing:Modulo", "--partitioner-parameters", "[]"], 2, "JSON object"),
        (["--partitioner", "routing:Modulo", "--partitioner-parameters", '{"n": 1}'], 2, "it takes modulus, first"),
        (["--partitioner-parameters", "{}"], 2, "--partitioner-parameters needs --partitioner"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_before_anything_is_written(
    modules, broker, options: list[str], code: int, text: str
) -> None:
    broker.create_topic("t", configs={"headrace.partitioner": "stickyy"})
    done = produce(modules, broker.listen(), *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert text in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert broker.read("t", 0, 0) == []


def headrace_topic(broker: headrace.Broker, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ("-m", "headrace.cli", "topic", *arguments, "-b", broker.listen())
    return python(Path(), *command)


def test_topic_commands_set_check_and_show_parameters(broker) -> None:
    schema = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}'
    settings = (
        "-c",
        "headrace.serde=avro",
        "-c",
        f'headrace.serde.parameters={{"schema": {schema}}}',
    )
    assert headrace_topic(broker, "create", "t", *settings).returncode == 0
    broker.publish("t", {"id": 1})
    described = headrace_topic(broker, "describe", "t", "--format", "json")
    [topic] = json.loads(described.stdout)
    shown = topic["configs"]
    assert json.loads(shown["headrace.serde.parameters"]) == {"schema": json.loads(schema)}

    wrong = headrace_topic(
        broker,
        "create",
        "u",
        "-c",
        "headrace.serde=avro",
        "-c",
        'headrace.serde.parameters={"schema": {"type": "no"}}',
    )
    assert (wrong.returncode, "the Avro schema cannot be used" in wrong.stderr) == (2, True)
    wrong = headrace_topic(broker, "alter", "t", "-c", 'headrace.serde.parameters={"scheme": 1}')
    assert wrong.returncode == 1
    assert "it takes schema" in wrong.stderr
    assert (
        broker.configs("t")["headrace.serde.parameters"].value == shown["headrace.serde.parameters"]
    )
    done = headrace_topic(
        broker, "alter", "t", "-c", "headrace.serde=jsonn", "-c", "headrace.serde.parameters={}"
    )
    assert done.returncode == 0
    assert "did you mean json?" in done.stderr
    assert broker.configs("t")["headrace.serde"].value == "jsonn"
    assert broker.topics() == ["t"]
