"""The commands of docs/guides/authentication.md and permissions.md run and print what the pages show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.console import Step, run_shell, section, steps, users_environment
from tests.fixtures.processes import running_server

GUIDES = Path(__file__).resolve().parents[2] / "docs" / "guides"
# On this plaintext listener every client is an administrator. security-walk.md shows how commands authenticate.
SETTINGS = (
    "--config=authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "--config=super.users=User:ANONYMOUS",
)


@pytest.mark.parametrize(
    ("page", "title"), [("authentication", "Users"), ("permissions", "Example")]
)
def test_the_commands_print_what_the_page_shows(page: str, title: str, tmp_path: Path) -> None:
    shown = list(steps(section((GUIDES / f"{page}.md").read_text(), title)))
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
