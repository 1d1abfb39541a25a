"""docs/guides/groups.md: the programs run, and the commands print what the page shows."""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

import headrace
from tests.docs.console import run_shell, steps, users_environment
from tests.fixtures.processes import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides" / "groups.md").read_text()
PATIENCE_S = 60
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PRINTED = re.compile(r"^ *print\(.*\)  # (.*)$", re.MULTILINE)
COMMANDS = {"create", "list", "describe", "attach", "detach", "reset", "lag", "offsets"}
COMMANDS |= {"delete", "stop-member"}


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_the_programs_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) > 6
    names: dict[str, object] = {"__name__": "groups"}
    try:
        for block in blocks:
            exec(compile(block, "docs/guides/groups.md", "exec"), names)
            assert capsys.readouterr().out.splitlines() == PRINTED.findall(block), block
    finally:
        names["broker"].close()  # type: ignore[attr-defined]  # it is the page's


def test_the_commands_print_what_the_page_shows(tmp_path) -> None:
    shown = [step for step in steps(PAGE) if step.kind == "console"]
    named = {match[1] for step in shown for match in re.finditer(r"group ([a-z-]+)", step.text)}
    assert named >= COMMANDS
    with ServerProcess(None, log_path=tmp_path / "server.log") as server:
        environment = {**users_environment(), "HEADRACE_BOOTSTRAP": server.bootstrap}
        behind: list[Popen[bytes]] = []
        for step in shown:
            if step.text.endswith(" &"):
                words = shlex.split(step.text.removesuffix(" &"))
                behind.append(Popen(words, cwd=tmp_path, env=environment, stdout=PIPE, stderr=PIPE))
                wait_for_members(server.bootstrap, words[words.index("--group") + 1])
                continue
            done = run_shell(step.text, tmp_path, environment)
            assert done.returncode == 0, f"{step.text}\n{done.stdout}{done.stderr}"
            lines = [line.rstrip() for line in done.stdout.splitlines()]
            assert lines == step.shown, step.text
        for process in behind:  # each has received a signal and ends by itself
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, errors
            assert b"an administrator stops this member" in errors


def wait_for_members(bootstrap: str, group: str) -> None:
    """Wait until a group has a member with its partitions."""
    deadline = time.monotonic() + PATIENCE_S
    with headrace.Admin(bootstrap) as admin:
        while True:
            listed = any(each.group_id == group for each in admin.groups())
            if listed and any(member.assignment for member in admin.members(group)):
                return
            assert time.monotonic() < deadline, f"no member has joined {group}"
