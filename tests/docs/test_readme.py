"""The commands and programs of the README and of docs/start run in order and print what is shown."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import headrace
from tests.fixtures.processes import READY_LINE, ServerProcess

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
FIRST_STEPS = (ROOT / "docs" / "start" / "first-steps.md").read_text()
DEMO = (ROOT / "docs" / "start" / "demo.md").read_text()
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)
README_BLOCKS = CONSOLE.findall(README)
FIRST_BLOCKS = CONSOLE.findall(FIRST_STEPS)


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
    """Return the environment of a user who has installed the package, with its command on the path."""
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def test_this_file_runs_every_block() -> None:
    firsts = [
        commands(block)[0][0] for block in (*README_BLOCKS, *FIRST_BLOCKS, *CONSOLE.findall(DEMO))
    ]
    assert firsts == [
        "pip install .",
        "make run",
        "python3 -m venv .venv",
        "headrace dev &",
        "headrace serve --listen 127.0.0.1:9092 --data headrace-data",
        "make run",
    ]


def test_every_make_target_exists() -> None:
    for command, _ in commands(README_BLOCKS[1]):
        plan = subprocess.run(
            [*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert "prepare.py" in plan.stdout


def test_the_page_names_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"^\| `(\w+)`(?:, `(\w+)`, `(\w+)`)? \| ", FIRST_STEPS, re.MULTILINE)
    extras = {extra for row in named for extra in row if extra}
    assert extras == set(project["optional-dependencies"]) - {"demo", "dev", "docs", "regex"}
    assert project["requires-python"] == ">=3.11"


@pytest.mark.parametrize(
    "steps",
    [commands(README_BLOCKS[0])[1:], commands(FIRST_BLOCKS[1])],
    ids=["README", "first-steps"],
)
def test_the_first_commands_print_what_is_shown(
    steps: list[tuple[str, str]], tmp_path: Path, shell_environment: dict[str, str]
) -> None:
    first, *others = steps
    assert first == ("headrace dev &", "")
    # The documented variable gives the commands another port than 9092.
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
    ((command, shown),) = commands(FIRST_BLOCKS[2])
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


def test_the_program_with_an_embedded_broker_runs(capsys: pytest.CaptureFixture[str]) -> None:
    program = PYTHON_BLOCKS[0]
    names: dict[str, Any] = {}
    exec(compile(program, "README.md", "exec"), names)
    names["broker"].close()
    assert capsys.readouterr().out.endswith("b'alice' {'id': 1, 'total': 9.5}\n")


def test_the_worker_writes_results_and_dead_letters(tmp_path: Path) -> None:
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
