"""The programs and commands of docs/guides/kinesis.md and its example run, and its tables are complete."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from headrace.kinesis.reading.settings import ReadSettings
from headrace.testing import FakeAws
from headrace.workers.handler.context import Context
from tests.docs.console import run_shell, steps, users_environment
from tests.fixtures.kafka import free_ports

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"
TIMEOUT_S = 60
COMMANDS = [step for step in steps((GUIDES / "kinesis.md").read_text()) if step.kind == "console"]
PAGE = (GUIDES / "kinesis.md").read_text() + (GUIDES / "kinesis-consumer.md").read_text()
APP, FIVE_MINUTES, PUT, FENCING, DERIVED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def run(text: str, names: dict[str, Any]) -> None:
    exec(compile(text, "docs/guides/kinesis.md", "exec"), names)


def variables(aws: FakeAws) -> dict[str, str]:
    """Return the environment variables that the page exports."""
    [line] = re.findall(r"^\$ export (.*)$", PAGE, re.MULTILINE)
    named = dict(pair.split("=", 1) for pair in line.split())
    return {**named, "AWS_ENDPOINT_URL": aws.endpoint_url}


def test_the_first_program_needs_neither_an_account_nor_a_broker() -> None:
    names: dict[str, Any] = {"__name__": "billing"}
    with patch.dict(os.environ):
        run(APP, names)
        run(FIVE_MINUTES, names)


def test_the_sink_refuses_a_former_owner() -> None:
    names: dict[str, Any] = {}
    run(FENCING, names)
    allowed = [
        names["may_write"](SimpleNamespace(shard="shardId-000000000000", epoch=epoch))
        for epoch in (3, 3, 4, 3)
    ]
    assert allowed == [True, True, True, False]


def test_the_app_reads_the_records_that_were_put() -> None:
    names: dict[str, Any] = {"__name__": "billing"}
    with FakeAws(region="eu-central-1") as aws, patch.dict(os.environ, variables(aws)):
        aws.kinesis.create_stream("orders", 2)
        run(PUT, {"__name__": "__main__"})
        run(APP, names)
        with names["app"].test() as trial:
            trial.wait_idle(30)
    assert names["bills"] == ["carol owes 4.0"]


def test_a_derived_consumer_prints_the_records(capsys: Any) -> None:
    names: dict[str, Any] = {}
    run(DERIVED, names)
    with FakeAws(region="eu-central-1") as aws, patch.dict(os.environ, variables(aws)):
        aws.kinesis.create_stream("orders", 1)
        aws.kinesis.put("orders", b"one", "alice")
        process_batch = names["Billing"].process_batch

        async def once(self: Any, batch: list[Any]) -> None:
            await process_batch(self, batch)
            self.stop()

        names["Billing"].process_batch = once
        asyncio.run(asyncio.wait_for(names["main"](), 30))
    assert capsys.readouterr().out == "shardId-000000000000 alice b'one'\n"


def test_the_page_names_every_setting_and_every_attribute_of_the_context() -> None:
    for name in ReadSettings.__dataclass_fields__:
        assert f"`{name}`" in PAGE
    for name in ("shard", "sequence_number", "sub_sequence", "epoch", "valid"):
        assert hasattr(Context, name)
        assert f"`{name}" in PAGE


def test_the_example_rescales_a_stream_under_two_workers() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples/kinesis_workers.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "300 orders, each handled once" in done.stdout
    assert done.stderr == ""


def test_the_commands_run_the_app_against_the_fake_server(tmp_path: Path) -> None:
    _, serve, export, run_app, describe = COMMANDS
    assert export.text.startswith("export ")
    port = str(free_ports(1)[0])
    address = serve.shown[0].replace("4567", port)
    environment = users_environment()
    environment |= dict(pair.split("=", 1) for pair in export.text.split()[1:])
    environment["AWS_ENDPOINT_URL"] = address
    (tmp_path / "billing.py").write_text(APP)
    (tmp_path / "put.py").write_text(PUT)
    with ExitStack() as stack:
        begin = partial(background, stack, tmp_path, environment)
        server = begin(serve.text.replace("4567", port))
        assert server.stdout is not None
        assert server.stdout.readline() == f"{address}\n"
        app = begin(run_app.text)
        assert run_shell("python put.py", tmp_path, environment).returncode == 0
        deadline = time.monotonic() + TIMEOUT_S
        # The checkpoint of the shard with the record becomes the number of the record.
        while not re.search(
            r" \d{40,} ", (shown := run_shell(describe.text, tmp_path, environment)).stdout
        ):
            assert time.monotonic() < deadline, (shown, app.poll())
        assert "group:   billing" in shown.stdout
        app.terminate()
        assert app.wait(TIMEOUT_S) == 0


def background(
    stack: ExitStack, directory: Path, environment: dict[str, str], command: str
) -> subprocess.Popen[str]:
    """Start a command that the stack terminates."""
    words = shlex.split(command)
    process = subprocess.Popen(
        [shutil.which(words[0], path=environment["PATH"]) or words[0], *words[1:]],
        cwd=directory,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )

    def end() -> None:
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)

    stack.callback(end)
    return process
