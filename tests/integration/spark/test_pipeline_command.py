"""`headrace pipeline run` as a user runs it: killed during a batch, run again, watched, and stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable

import headrace
from headrace.errors import ConfigError
from headrace.pipelines.status.state import StateDirectory
from headrace.spark.java import check_java
from headrace.spark.session import JVM_OPTIONS
from tests.fixtures.targets import Target
from tests.integration.spark.conftest import Topics

TIMEOUT_S = 300
NAMES = {"doubles", "kept"}
FILE = """
from pyspark.sql import functions as f
from headrace.pipelines import pipeline, table, topic

NUMBERS = topic("{source}", schema="number BIGINT", options={{"maxOffsetsPerTrigger": 40}})

def double(number):
    return number * 2  # a function of this file, in Spark's workers

@pipeline(source=NUMBERS, sink=topic("{sink}", key="number", create=2), trigger="200 milliseconds")
def doubles(numbers):
    return numbers.select("number", f.udf(double, "bigint")("number").alias("double"))

@pipeline(source=NUMBERS, sink=table("{table}", format="delta"), trigger="200 milliseconds")
def kept(numbers):
    return numbers
"""


def wait_until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.1)


def lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Command:
    """Runs the command with a state directory of the test."""

    def __init__(self, path: Path, bootstrap: str, directory: Path) -> None:
        self.path = path
        self.bootstrap = bootstrap
        self.state = directory / "state"
        self.errors = directory / "errors"
        self.process: subprocess.Popen[bytes] | None = None

    def arguments(self, name: str, *arguments: str) -> list[str]:
        command = [sys.executable, "-m", "headrace.cli", "pipeline", name, *arguments]
        return [*command, "--state", str(self.state)]

    def start(self) -> None:
        settings = [f"spark.driver.extraJavaOptions={JVM_OPTIONS}", "spark.driver.memory=512m"]
        options = [part for setting in settings for part in ("--conf", setting)]
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [
                    *self.arguments("run", str(self.path), *options, "--master", "local[2,4]"),
                    *("-b", self.bootstrap, "--format", "json"),
                ],
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def ask(self, name: str, *arguments: str) -> Any:
        done = subprocess.run(
            self.arguments(name, *arguments, "--format", "json"),
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def ended(self) -> bool:
        assert self.process is not None
        return self.process.poll() is not None

    def family(self) -> list[psutil.Process]:
        assert self.process is not None
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]


@pytest.fixture
def command(server: Target, topics: Topics, tmp_path: Path) -> Iterator[Command]:
    try:
        check_java()
    except ConfigError as error:
        pytest.skip(str(error))
    path = tmp_path / "doubling.py"
    source = topics.create(partitions=2)
    path.write_text(FILE.format(source=source, sink=f"{source}-doubled", table=tmp_path / "kept"))
    made = Command(path, server.bootstrap, tmp_path)
    yield made
    if made.process is not None and not made.ended():
        family = made.family()
        made.process.kill()
        made.process.wait()
        wait_until(lambda: not any(map(lives, family)), "the end of every process")


def committed(bootstrap: str, topic: str) -> Counter[int]:
    """Return the number of occurrences of each number among the committed records."""
    found: Counter[int] = Counter()
    with headrace.Consumer(bootstrap, serde="json", isolation_level="read_committed") as consumer:
        consumer.assign([headrace.TopicPartition(topic, number) for number in range(2)])
        consumer.seek_to_beginning()
        while records := consumer.poll(1.0):
            for record in records:
                assert record.value["double"] == 2 * record.value["number"]
                found[record.value["number"]] += 1
    return found


@pytest.mark.timeout(TIMEOUT_S * 2)
def test_pipelines_killed_and_restarted_write_every_record_once(
    command: Command, topics: Topics, server: Target
) -> None:
    source = command.path.read_text().partition('topic("')[2].partition('"')[0]
    with headrace.Producer(server.bootstrap, serde="json") as producer:
        for number in range(400):
            producer.send(source, {"number": number})
    state = StateDirectory(command.state)
    command.start()
    assert command.process is not None
    wait_until(
        lambda: command.ended() or has_begun(state),
        "the first batches",
    )
    assert not command.ended(), command.errors.read_text()
    family = command.family()
    command.process.kill()
    command.process.wait()
    lost = [(each["state"], each["pid"]) for each in command.ask("list")]
    assert lost == [("lost", command.process.pid)] * 2
    wait_until(lambda: not any(map(lives, family)), "the end of the JVM and its workers")

    command.start()
    wait_until(
        lambda: command.ended() or not any(lag_of_group(topics, each, source) for each in NAMES),
        "the last batches, by their groups' offsets",
    )
    assert not command.ended(), command.errors.read_text()
    wait_until(lambda: shown_lag(state, "doubles") == 0, "its report")
    assert command.ask("describe", "doubles")["state"] == "running"
    assert command.ask("stop", "doubles") == [{"pipeline": "doubles", "state": "stopped"}]
    assert {each["name"]: each["state"] for each in command.ask("list")} == {
        "doubles": "stopped",
        "kept": "running",
    }
    command.process.send_signal(signal.SIGTERM)
    command.process.wait(120)

    assert command.process.returncode == 0, command.errors.read_text()
    assert command.ask("describe", "kept")["state"] == "stopped"
    rows = DeltaTable(command.path.parent / "kept").to_pyarrow_table()
    assert sorted(rows["number"].to_pylist()) == list(range(400))
    assert committed(server.bootstrap, f"{source}-doubled") == dict.fromkeys(range(400), 1)
    assert (command.path.parent / "checkpoints" / "doubles" / "metadata").exists()


def has_begun(state: StateDirectory) -> bool:
    """Return whether each pipeline has finished a batch."""
    return {each.name for each in state.statuses() if each.progress} == NAMES


def shown_lag(state: StateDirectory, name: str) -> int | None:
    """Return the lag that the pipeline's status has."""
    status = state.status(name)
    assert status is not None
    lag: int | None = (status.progress or {}).get("lag_records")
    return lag


def lag_of_group(topics: Topics, group: str, topic: str) -> int:
    """Return the lag of a group, as any tool computes it."""
    partitions = [headrace.TopicPartition(topic, number) for number in range(2)]
    done = topics.client.committed_offsets(group, partitions)
    ends = topics.client.list_offsets(dict.fromkeys(partitions, -1))
    return sum(
        end.offset - (done[each].offset if each in done else 0) for each, end in ends.items()
    )
