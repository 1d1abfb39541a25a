"""The commands of docs/guides/dead-letters.md list, show, send back and delete a dead letter, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace
from headrace.testing import Broker
from tests.docs.console import run_shell, steps, users_environment

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "dead-letters.md").read_text()


@pytest.fixture
def broker():
    app = headrace.App()

    @app.worker("orders", group="billing", retry=1, dead_letter=True)
    def bill(order: dict) -> None:
        raise ValueError("negative")

    with Broker() as broker:
        broker.create_topic("orders")
        with app.test(broker) as trial:
            trial.produce("orders", {"id": 1, "total": -1}, key=b"alice")
            trial.wait_idle()
        yield broker


def test_the_commands_send_the_dead_letter_back_and_delete_it(broker: Broker, tmp_path: Path):
    environment = {**users_environment(), "HEADRACE_BOOTSTRAP": broker.bootstrap}

    def run(command: str) -> str:
        done = run_shell(command, tmp_path, environment)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    commands = [step.text.partition("  #")[0] for step in steps(PAGE) if step.kind == "console"]
    show_list, show, try_redrive, purge = commands
    assert "orders" in run(show_list)
    shown = run(show)
    assert "ValueError" in shown
    assert "billing" in shown
    run(try_redrive)
    assert len(broker.messages("orders")) == 1
    run(try_redrive.replace(" --dry-run", ""))
    first, again = broker.messages("orders")
    assert first.value == again.value
    assert dict(again.headers)["headrace-only-group"] == b"billing"
    assert len(broker.messages("dlq.orders")) == 1
    run(f"{purge} --yes")
    assert broker.messages("dlq.orders") == []
