"""docs/guides/beyond-kafka.md is right: its programs run, and its options and headers exist."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.config.topic import TOPIC_OPTIONS
from headrace.records import directives
from tests.docs.console import run_shell, steps, users_environment
from tests.fixtures.processes import ServerProcess

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "beyond-kafka.md").read_text()
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_the_programs_of_the_page_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE)
    assert blocks
    for block in blocks:
        exec(compile(block, "docs/guides/beyond-kafka.md", "exec"), {"__name__": "beyond"})


def test_the_commands_print_what_the_page_shows(tmp_path) -> None:
    shown = [step for step in steps(PAGE) if step.kind == "console"]
    assert len(shown) == 5
    with ServerProcess(None, log_path=tmp_path / "server.log") as server:
        environment = {**users_environment(), "HEADRACE_BOOTSTRAP": server.bootstrap}
        for step in shown:
            done = run_shell(step.text, tmp_path, environment)
            assert done.returncode == 0, f"{step.text}\n{done.stderr}"
            printed, expected = (
                TIME.sub("TIME", text) for text in (done.stdout, "\n".join(step.shown))
            )
            assert printed.splitlines() == expected.splitlines(), step.text


def test_the_page_names_every_option_and_header() -> None:
    headers = {directives.TTL_MS, directives.TAG, directives.DELAY_MS, directives.DELIVER_AT_MS}
    named = set(re.findall(r"`(headrace\.[a-z.-]+)", PAGE))
    assert named <= headers | set(TOPIC_OPTIONS)
    assert {"headrace.ttl.enable", "headrace.filter.enable", directives.TTL_MS} <= named
    assert str(directives.MAX_TIME_MS) in PAGE
