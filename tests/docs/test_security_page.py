"""docs/guides/security.md: the commands of its sections on users and permissions run and print what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.console import Step, run_shell, section, steps, users_environment
from tests.fixtures.processes import running_server

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "security.md").read_text()
# Every client in plaintext is an administrator here: how commands log in is what security-walk.md is about.
SETTINGS = (
    "--config=authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "--config=super.users=User:ANONYMOUS",
)


@pytest.mark.parametrize("title", ["Users", "Rights"])
def test_what_a_section_shows_is_what_happens(title: str, tmp_path: Path) -> None:
    shown = list(steps(section(PAGE, title)))
    assert len(shown) >= 5
    with running_server(tmp_path, *SETTINGS, memory=True) as server:
        environment = {**users_environment(), "HEADRACE_BOOTSTRAP": server.bootstrap}
        for step in shown:
            check(step, tmp_path, environment)


def check(step: Step, directory: Path, environment: dict[str, str]) -> None:
    done = run_shell(step.text, directory, environment)
    assert (done.stdout + done.stderr).splitlines() == step.shown, step.text
    refused = any(line.startswith("Error") for line in step.shown)
    assert (done.returncode != 0) == refused, step.text
