"""The README is right: its commands run in order and print what the README shows."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.testing import FakeAws
from tests.fixtures.processes import READY_LINE, ServerProcess

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
CONSOLE_BLOCKS = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)


def commands(block: str) -> list[tuple[str, str]]:
    """Split a console block into (command, the output shown below it)."""
    parsed: list[tuple[str, str]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            parsed.append((line[2:].split("  # ")[0].strip(), ""))
        else:
            command, output = parsed[-1]
            parsed[-1] = (command, output + line + "\n")
    return parsed


@pytest.fixture
def shell_environment() -> dict[str, str]:
    """The environment of somebody who has installed the package: its command is on the path."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_the_blocks_are_those_this_test_knows() -> None:
    firsts = [commands(block)[0][0] for block in CONSOLE_BLOCKS]
    assert firsts == [
        "make run",
        "headrace dev &",
        "headrace serve --listen 127.0.0.1:9092 --data headrace-data",
    ]


def test_make_knows_the_targets() -> None:
    for command, _ in commands(CONSOLE_BLOCKS[0]):
        plan = subprocess.run(
            [*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert "prepare.py" in plan.stdout


def test_five_minutes(tmp_path: Path, shell_environment: dict[str, str]) -> None:
    first, *others = commands(CONSOLE_BLOCKS[1])
    assert first == ("headrace dev &", "")
    # One difference: a port of its own instead of 9092, which the commands read from the documented variable.
    with ServerProcess(None, log_path=tmp_path / "server.log") as server:
        environment = {**shell_environment, "HEADRACE_BOOTSTRAP": server.bootstrap}
        for command, shown in others:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            if shown:
                assert done.stdout == shown, command


def test_serve_prints_the_line_shown(tmp_path: Path, shell_environment: dict[str, str]) -> None:
    ((command, shown),) = commands(CONSOLE_BLOCKS[2])
    assert READY_LINE.fullmatch(shown.encode())
    process = subprocess.Popen(
        command.replace(":9092", ":0").split(),
        cwd=tmp_path,
        env=shell_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        printed = READY_LINE.fullmatch(process.stdout.readline())
        assert printed is not None
        assert printed["data"] == b"headrace-data"
        assert int(printed["pid"]) == process.pid
    finally:
        process.terminate()
        assert process.wait(10) == 0
        assert process.stdout is not None
        process.stdout.close()


PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_program_with_a_broker_inside_runs(capsys: pytest.CaptureFixture[str]) -> None:
    program = PYTHON_BLOCKS[0]
    names: dict[str, Any] = {}
    exec(compile(program, "README.md", "exec"), names)
    names["broker"].close()
    assert capsys.readouterr().out.endswith("b'alice' {'id': 1, 'total': 9.5}\n")


def test_the_worker_of_the_readme_works_and_its_failures_are_kept(tmp_path: Path) -> None:
    module = tmp_path / "readme_app.py"
    module.write_text(PYTHON_BLOCKS[1])
    specification = importlib.util.spec_from_file_location("readme_app", module)
    assert specification is not None
    assert specification.loader is not None
    loaded = importlib.util.module_from_spec(specification)
    sys.modules["readme_app"] = loaded
    try:
        specification.loader.exec_module(loaded)
        with headrace.Broker() as broker:
            broker.create_topic("orders", partitions=6)
            with loaded.app.test(broker) as trial:
                trial.produce("orders", {"id": 1, "total": 9.5}, key=b"alice")
                trial.produce("orders", {"id": 2, "total": "much"}, key=b"bob")
                trial.wait_idle()
                [letter] = trial.messages("dlq.orders")
                assert letter.key == b"bob"
    finally:
        del sys.modules["readme_app"]


def test_the_worker_on_a_stream_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(PYTHON_BLOCKS[1], "README.md", "exec", dont_inherit=True), names)
    names["app"] = headrace.App()
    exec(compile(PYTHON_BLOCKS[2], "README.md", "exec", dont_inherit=True), names)
    with FakeAws(region="eu-central-1") as aws:
        monkeypatch.setenv("AWS_ENDPOINT_URL", aws.endpoint_url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "fake")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "fake")
        aws.kinesis.create_stream("orders")
        aws.kinesis.put("orders", b'{"id": 1, "total": 9.5}', "alice")
        with names["app"].test() as trial:
            trial.wait_idle(30)
        [row] = aws.dynamodb.items("headrace-leases")
        assert aws.kinesis.records("orders")[0].sequence_number in json.dumps(row, default=str)
