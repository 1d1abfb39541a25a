"""Every command: its JSON can be parsed, and it ends soon and with the right code when something is missing or
disappears."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import headrace
from headrace.cli import main
from headrace.dead_letters import letter_headers
from headrace.testing import Broker, FakeAws
from tests.fixtures.command_line import Done, run_command

SOON_S = 20
"""The seconds in which a command must end. On an idle machine each takes less than one."""
KEYS = {"AWS_ACCESS_KEY_ID": "any", "AWS_SECRET_ACCESS_KEY": "any", "AWS_REGION": "us-east-1"}

QUICK: dict[str, Any] = {"heartbeat_interval_ms": 50}
MEMBER_S = 20.0
CLIENT_COMMANDS = {
    "topic create": ["created-{n}"],
    "topic list": [],
    "topic describe": ["t", "--configs"],
    "topic alter": ["t", "-c", "retention.ms=1h"],
    "topic add-partitions": ["grown", "-n", "1"],
    "topic truncate": ["t", "-o", "0", "--yes"],
    "topic delete": ["deleted", "--yes"],
    "produce": ["t"],
    "consume": ["t", "-e"],
    "group create": ["created-{n}"],
    "group list": [],
    "group describe": ["g"],
    "group offsets": ["g"],
    "group lag": ["g"],
    "group reset": ["g", "--to", "earliest", "--dry-run"],
    "group attach": ["attached", "t"],
    "group detach": ["attached-{n}", "t"],
    "group config": ["g"],
    "group remove-member": ["member-{n}", "-i", "static", "--yes"],
    "group stop-member": ["stop-{n}", "-i", "static", "--timeout", "30s"],
    "group delete-offsets": ["offsets-{n}", "-t", "t", "--yes"],
    "group delete": ["deleted", "--yes"],
    "cluster info": [],
    "cluster apis": [],
    "cluster log-dirs": [],
    "bench produce": ["t", "-n", "10"],
    "bench consume": ["t", "-n", "1"],
    "transaction list": [],
    "transaction describe": ["x"],
    "transaction producers": ["t"],
    "transaction find-hanging": [],
    "transaction abort": ["x", "--yes"],
    "dlq list": [],
    "dlq show": ["t"],
    "dlq redrive": ["t", "--dry-run"],
    "dlq purge": ["t", "--dry-run"],
    "bridge": ["t", "{stream}", "--once"],
    "quota describe": [],
    "quota alter": ["--user", "u", "--set", "producer_byte_rate=1000000"],
    "user create": ["u-{n}", "--password-file", "{password}"],
    "user list": [],
    "user describe": ["u"],
    "user set-password": ["u", "--password-file", "{password}"],
    "user delete": ["u-deleted", "--yes"],
    "acl create": ["--allow-principal", "User:u", "-o", "Read", "--topic", "t"],
    "acl list": [],
    "acl delete": ["--topic", "nothing", "--yes"],
}
"""The commands that send requests to a broker, with arguments that succeed, even if there is nothing to do."""
OTHERS = {
    "health": "tests/conformance/cli/test_cluster_commands.py",
    "context": "asks no broker: tests/unit/cli/arguments/test_contexts.py",
    "completion": "asks no broker: tests/unit/cli/test_completion.py",
    "serve": "ends by signals, below",
    "dev": "ends by signals, below",
    "run": "ends by signals, below",
    "demo": "tests/integration/spark/test_demo.py",
    "spark": "asks no broker: tests/unit/cli/commands/test_spark_commands.py",
    "doctor broker": "asks no broker: tests/unit/cli/commands/test_doctor_broker.py",
    "doctor spark": "tests/unit/spark/test_doctor.py",
    "pipeline": "tests/integration/spark/test_pipeline_command.py",
    "archive": "tests/unit/cli/commands/test_archive_commands.py",
    "kinesis": "asks no broker: tests/integration/kinesis/test_kinesis_commands.py",
}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    # `acl` needs an authorizer, which denies everything but to the listed users.
    access = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with Broker(configs=access) as running:
        for topic in ("t", "grown", "deleted", "dlq.t"):
            running.create_topic(topic)
        running.publish("t", b"value", key=b"key", headers=[("a", None)])
        with headrace.Producer(running, transactional_id="x", serde="bytes") as producer:
            producer.init_transactions()
            with producer.transaction():
                producer.send("t", b"value")
        running.publish(
            "dlq.t",
            b"letter",
            headers=[
                ("kafka_dlt-original-topic", b"t"),
                ("kafka_dlt-original-partition", bytes(4)),
                ("kafka_dlt-original-offset", bytes(8)),
                ("kafka_dlt-original-timestamp", bytes(8)),
                (letter_headers.ATTEMPTS, b"3"),
                (letter_headers.REDRIVES, b"1"),
            ],
        )
        for group in ("g", "attached", "deleted"):
            running.create_group(group)
        yield running


@pytest.fixture(scope="module")
def aws() -> Iterator[FakeAws]:
    with FakeAws() as running:
        running.kinesis.create_stream("s", shards=1)
        yield running


def everything(command: click.Command, name: str = "") -> Iterator[str]:
    """Return the names of all commands."""
    if not isinstance(command, click.Group):
        yield name
        return
    context = click.Context(command)
    for each in command.list_commands(context):
        found = command.get_command(context, each)
        assert found is not None
        yield from everything(found, f"{name} {each}".strip())


def test_every_command_is_in_a_table() -> None:
    known = {*CLIENT_COMMANDS, *OTHERS}
    assert [
        name for name in everything(main) if name not in known and name.split()[0] not in known
    ] == []


class Runner:
    """A runner of the commands in the table."""

    def __init__(self, broker: Broker, aws: FakeAws, directory: Path) -> None:
        self._password = directory / "password"
        self._password.write_text("a long password")
        self._password.chmod(0o600)
        self._broker = broker
        self._bootstrap = broker.bootstrap
        self._stream = f"kinesis://s?region=us-east-1&endpoint_url={aws.endpoint_url}"
        self._number = 0

    def arguments(self, name: str) -> list[str]:
        self._number += 1
        number = self._number
        self._prepare(name, number)
        given = {"n": number, "stream": self._stream, "password": self._password}
        return [*name.split(), *(each.format(**given) for each in CLIENT_COMMANDS[name])]

    def _prepare(self, name: str, number: int) -> None:
        """Create the objects that a command deletes."""
        if name == "group detach":
            self._broker.create_group(f"attached-{number}", topics=["t"])
        elif name == "group delete-offsets":
            self.run("consume", "-g", f"offsets-{number}", "-n", "1")
        elif name == "group remove-member":
            with headrace.Consumer(
                self._broker, group=f"member-{number}", group_instance_id="static"
            ) as consumer:
                consumer.subscribe(["t"])
                consumer.assignment()

        elif name == "group stop-member":
            self._begin_member(f"stop-{number}")

    def _begin_member(self, group: str) -> None:
        """Begin a program that reads until its member is stopped, or for some seconds if it is not stopped."""
        joined = threading.Event()

        def read() -> None:
            with (
                contextlib.suppress(headrace.errors.HeadraceError),
                headrace.Consumer(
                    self._bootstrap, group=group, group_instance_id="static", **QUICK
                ) as consumer,
            ):
                consumer.subscribe(["t"])
                consumer.assignment()
                joined.set()
                end_s = time.monotonic() + MEMBER_S
                while not consumer.stopped and time.monotonic() < end_s:
                    consumer.poll(0.1)

        threading.Thread(target=read, daemon=True).start()
        assert joined.wait(MEMBER_S)

    def environment(self, bootstrap: str | None = None) -> dict[str, str]:
        return {"HEADRACE_BOOTSTRAP": bootstrap or self._bootstrap, **KEYS}

    def run(
        self, name: str, *more: str, bootstrap: str | None = None, out: int | None = None
    ) -> Done:
        environment = self.environment(bootstrap)
        return run_command(
            *self.arguments(name), *more, data=b"x\n", environment=environment, out=out
        )


@pytest.fixture(scope="module")
def runner(broker: Broker, aws: FakeAws, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    made = Runner(broker, aws, tmp_path_factory.mktemp("commands"))
    run = lambda *arguments: run_command(*arguments, environment=made.environment())  # noqa: E731 - it is short
    assert run("consume", "t", "-g", "g", "-n", "1").code == 0
    for user in ("u", "u-deleted"):
        path = str(made._password)
        assert run("user", "create", user, "--password-file", path).code == 0
    return made


TEXTS = {"value", "key", "headers"}
"""The fields that are always text: those of records and of settings, which are text in Kafka, too."""


def texts_that_are_numbers(document: object, path: str = "") -> Iterator[str]:
    """Yield the paths at which a document has a number or a boolean as text."""
    if isinstance(document, dict):
        for name, value in document.items():
            of_configs = name == "configs" and isinstance(value, dict)
            if name not in TEXTS and not of_configs:
                yield from texts_that_are_numbers(value, f"{path}.{name}")
    elif isinstance(document, list):
        for each in document:
            yield from texts_that_are_numbers(each, f"{path}[]")
    elif isinstance(document, str) and re.fullmatch(
        r"[-+]?[0-9]+([.,][0-9]+)?|true|false|null|none|yes|no", document, re.IGNORECASE
    ):
        yield f"{path}: {document!r}"


def test_a_text_that_is_a_number_is_noticed() -> None:
    document = {"a": [{"lag": "17"}], "b": {"on": "true", "value": "5"}, "c": "x1", "d": 5}
    assert list(texts_that_are_numbers(document)) == [".a[].lag: '17'", ".b.on: 'true'"]


@pytest.mark.parametrize("name", CLIENT_COMMANDS)
def test_json_is_what_programs_read(runner: Runner, name: str) -> None:
    done = runner.run(name, "--format", "json")
    assert done.code == 0, done
    for line in done.out.splitlines():
        assert list(texts_that_are_numbers(json.loads(line))) == []
    assert done.out or name in {"acl delete", "consume"}, done


@pytest.mark.parametrize("name", CLIENT_COMMANDS)
def test_a_broker_that_is_not_there_is_an_error_at_once(runner: Runner, name: str) -> None:
    began = time.monotonic()
    done = runner.run(name, bootstrap="127.0.0.1:1")
    assert (done.code, done.out) == (1, b""), done
    assert "cannot connect to 127.0.0.1:1" in done.err
    assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize("name", ["topic list", "produce", "consume", "dlq show", "bridge"])
def test_a_server_that_never_answers_is_given_up(runner: Runner, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        began = time.monotonic()
        done = runner.run(name, bootstrap=f"{host}:{port}")
        assert done.code == 1, done
        assert "does not answer" in done.err
        assert time.monotonic() - began < 2 * SOON_S


@pytest.mark.parametrize("form", ["table", "json"])
@pytest.mark.parametrize("name", CLIENT_COMMANDS)
def test_a_closed_pipe_is_no_error(runner: Runner, name: str, form: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = runner.run(name, "--format", form, out=writing)
    finally:
        os.close(writing)
    assert done.code == 0, done
    assert "Traceback" not in done.err
    assert "Broken pipe" not in done.err


APP = """
import headrace
app = headrace.App({bootstrap!r})

@app.worker("t", group="app")
def handle(value: bytes):
    pass
"""
LONG = {
    "consume": (["consume", "t"], 130, 143),
    "consume -g": (["consume", "t", "-g", "long"], 130, 143),
    "produce": (["produce", "t"], 130, -signal.SIGTERM),
    "group lag": (["group", "lag", "g", "--watch"], 130, -signal.SIGTERM),
    "bridge out": (["bridge", "t", "{stream}"], 0, 0),
    "bridge in": (["bridge", "{stream}", "t", "--name", "{name}"], 0, 0),
    "run": (["run", "app:app", "-C", "{directory}"], 0, 0),
    "dev": (["dev", "--listen", "127.0.0.1:0"], 0, 0),
    "serve": (["serve", "--listen", "127.0.0.1:0", "--data", "{directory}/data"], 0, 0),
}
"""Commands that run until a signal ends them, with their exit codes for SIGINT and SIGTERM."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda each: each.name)
@pytest.mark.parametrize("name", LONG)
def test_a_signal_ends_what_goes_on(
    runner: Runner, broker: Broker, name: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP.format(bootstrap=broker.bootstrap))
    command, on_interrupt, on_term = LONG[name]
    given = {"stream": runner._stream, "directory": tmp_path, "name": f"in-{number.name}"}
    with subprocess.Popen(
        [sys.executable, "-m", "headrace", *(each.format(**given) for each in command)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **runner.environment()},
    ) as process:
        try:
            _wait_until_it_works(process, broker, name, number)
            process.send_signal(number)
            assert process.wait(SOON_S) == (on_interrupt if number == signal.SIGINT else on_term)
        finally:
            process.kill()
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def _wait_until_it_works(
    process: subprocess.Popen[bytes], broker: Broker, name: str, number: signal.Signals
) -> None:
    """Wait until a command has begun its work, as far as other processes can see this."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    if name in {"consume", "group lag"}:
        process.stdout.readline()
    elif name == "produce":
        process.stdin.write(b"one\n")
        process.stdin.flush()
        process.stdout.readline()
    elif name == "bridge in":
        broker.wait_for(topic=f"__bridge.in-{number.name}", timeout_s=SOON_S)
    elif name in {"consume -g", "bridge out"}:
        group = "long" if name == "consume -g" else "__bridge.t.s"
        broker.wait_for(group=group, state="Stable", members=1, timeout_s=SOON_S)
    elif name == "run":
        broker.wait_for(group="app", state="Stable", members=1, timeout_s=SOON_S)
    else:
        process.stderr.readline() if name == "serve" else process.stdout.readline()
