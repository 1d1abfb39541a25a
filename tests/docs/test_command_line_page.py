"""docs/guides/command-line.md: what it shows is run, in order, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from headrace.cli import main
from headrace.testing import Broker
from tests.docs.console import run_shell, steps, users_environment

PAGE = (Path(__file__).parents[2] / "docs" / "guides" / "command-line.md").read_text()


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    environment = {**users_environment(), "XDG_CONFIG_HOME": str(tmp_path / "config")}
    commands = [step for step in steps(PAGE) if step.kind == "console"]
    assert len(commands) > 15
    with Broker() as broker:
        for step in commands:
            command = step.text.replace("broker:9092", broker.bootstrap)
            done = run_shell(command, tmp_path, environment)
            assert done.returncode == 0, (command, done.stderr)
            lines = done.stdout.splitlines()
            for line in step.shown:
                assert line.split() in [each.split() for each in lines], (command, lines)
    assert json.loads((tmp_path / "load.json").read_text())["records"] >= 2000
    assert {each["api"] for each in json.loads((tmp_path / "apis.json").read_text())} > {"FETCH"}
    assert len((tmp_path / "orders.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("name", ["cluster", "transaction", "context", "bench"])
def test_the_page_names_every_command(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert isinstance(command, click.Group)
    context = click.Context(command)
    missing = [each for each in command.list_commands(context) if f"{each}" not in PAGE]
    assert missing == []
