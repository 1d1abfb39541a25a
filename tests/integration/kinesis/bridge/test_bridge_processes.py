"""`headrace bridge` in processes that are killed with SIGKILL and stopped with SIGTERM, over HTTP and TCP."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.testing import Broker
from headrace.testing.kinesis import FakeAws, Limits
from tests.integration.kinesis.bridge.harness import committed_records

PATIENCE_S = 40


class Scene:
    """A broker, the fakes of AWS, and commands."""

    def __init__(self, broker: Broker, aws: FakeAws) -> None:
        self.broker = broker
        self.aws = aws
        self.processes: list[subprocess.Popen[str]] = []
        self.sent = 0

    def stream(self, name: str = "orders", region: str = "us-east-1") -> str:
        return f"kinesis://{name}?region={region}&endpoint_url={self.aws.endpoint_url}"

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        mine = {"AWS_ACCESS_KEY_ID": "fake", "AWS_SECRET_ACCESS_KEY": "fake"}
        command = [sys.executable, "-m", "headrace.cli", "bridge", *arguments]
        process = subprocess.Popen(
            [*command, "--bootstrap", self.broker.bootstrap],
            env={**os.environ, **mine, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def run(self, *arguments: str, **environment: str) -> tuple[int, str, str]:
        process = self.start(*arguments, **environment)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def invoke(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run the command in this process."""
        mine = {"AWS_ACCESS_KEY_ID": "fake", "AWS_SECRET_ACCESS_KEY": "fake", **environment}
        command = ["bridge", *arguments, "--bootstrap", self.broker.bootstrap]
        result = CliRunner().invoke(main, command, env=mine)
        return result.exit_code, result.output

    def put(self, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            self.aws.kinesis.put("orders", b"%d" % number, f"key-{number % 7}")
        self.sent += count

    def check_once(self) -> None:
        found = asyncio.run(committed_records(self.broker, "orders"))
        for each in range(7):
            values = [int(one.value) for one in found if one.key == b"key-%d" % each]
            assert values == [number for number in range(self.sent) if number % 7 == each]


def wait_for_line(process: subprocess.Popen[str], pattern: str) -> None:
    """Wait until a process writes a text to standard error."""
    assert process.stderr is not None
    output = []
    for line in process.stderr:
        output.append(line)
        if re.search(pattern, line):
            return
        if len(output) > 300:  # a line each fifth of a second
            break
    pytest.fail(f"the process has not written {pattern!r}: {''.join(output)}")


@pytest.fixture
def scene() -> Iterator[Scene]:
    with FakeAws(limits=Limits().unthrottled(), region="us-east-1") as aws, Broker() as broker:
        aws.kinesis.create_stream("orders", 2)
        broker.create_topic("orders", partitions=2)
        made = Scene(broker, aws)
        yield made
        for process in made.processes:
            process.kill()
            process.communicate()


def test_processes_that_share_a_stream_and_are_killed_copy_it_once(
    scene: Scene, tmp_path: Path
) -> None:
    shared = ["--leases", f"sqlite:///{tmp_path}/leases.db", "--lease", "3", "--progress", "0.2"]
    first = scene.start(scene.stream(), "orders", *shared)
    second = scene.start(scene.stream(), "orders", *shared)
    scene.put(200)
    wait_for_line(first, "1 shards")
    wait_for_line(second, "1 shards")
    second.send_signal(signal.SIGSTOP)
    scene.put(100)
    wait_for_line(first, "2 shards")  # the leases of the other process have expired
    second.send_signal(signal.SIGCONT)
    scene.put(100)
    first.send_signal(signal.SIGKILL)
    scene.aws.kinesis.split("orders", "shardId-000000000000")
    scene.put(200)
    wait_for_line(second, "[23] shards")
    second.send_signal(signal.SIGKILL)
    third = scene.start(scene.stream(), "orders", *shared)
    scene.put(100)
    wait_for_line(third, "[23] shards")
    third.send_signal(signal.SIGTERM)
    _, err = third.communicate(timeout=PATIENCE_S)
    assert (third.returncode, "stopping" in err) == (0, True), err
    code, out, err = scene.run(scene.stream(), "orders", "--once", "--format", "json")
    assert code == 0, err
    last: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert last["shards_ended"] == 1
    scene.check_once()


def test_a_topic_is_copied_back(scene: Scene) -> None:
    scene.put(50)
    assert scene.invoke(scene.stream(), "orders", "--once")[0] == 0
    scene.aws.kinesis.create_stream("copies", 2)
    back = ["orders", scene.stream("copies"), "--once", "--aggregate"]
    code, output = scene.invoke(*back)
    assert (code, output) == (0, "50 records, 90 bytes copied\n")
    code, output = scene.invoke(*back)
    assert (code, output) == (0, "0 records, 0 bytes copied\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["orders", "others"], 2, "one of FROM and TO must be a topic"),
        (["{stream}", "absent", "--once"], 2, "headrace topic create absent"),
        (["kinesis://absent?region=us-east-1&endpoint_url={url}", "orders", "--once"], 1, "no stream 'absent'"),
        (["kinesis://orders?region=eu-west-1&endpoint_url={url}", "orders", "--once"], 1, "in eu-west-1"),
        (["{stream}", "orders", "--envelope"], 2, "bridges into a stream"),
        (["orders", "{stream}", "--leases", "sqlite:///x"], 2, "processes share a topic as a consumer group"),
        (["{stream}", "orders", "--start", "yesterday"], 2, "--start is TRIM_HORIZON, LATEST or AT_TIMESTAMP:<ms"),
        (["{stream}", "orders", "--start", "AT_TIMESTAMP:soon"], 2, "--start is TRIM_HORIZON, LATEST or AT"),
    ],
)  # fmt: skip
def test_a_wrong_use_is_refused_with_its_remedy(
    scene: Scene, arguments: list[str], code: int, message: str
) -> None:
    given = [each.format(stream=scene.stream(), url=scene.aws.endpoint_url) for each in arguments]
    ended, output = scene.invoke(*given)
    assert ended == code, output
    assert message in output
    assert "copied" not in output


def test_the_error_names_the_missing_credentials(scene: Scene, tmp_path: Path) -> None:
    none = {
        "AWS_ACCESS_KEY_ID": "",
        "AWS_SECRET_ACCESS_KEY": "",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    code, output = scene.invoke(scene.stream(), "orders", "--once", **none)
    assert (code, "there are no AWS credentials" in output) == (2, True), output
