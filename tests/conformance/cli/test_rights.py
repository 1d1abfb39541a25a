"""A user with permissions to write and read only gets an error for each command that needs more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.cli.conftest import Commands
from tests.fixtures.client_security import Properties
from tests.fixtures.targets import SecuredHeadraceServer


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredHeadraceServer]:
    server = SecuredHeadraceServer(tmp_path_factory.mktemp("secured") / "headrace")
    server.start()
    try:
        yield server
    finally:
        server.stop()


def login_file(path: Path, properties: Properties) -> str:
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    path.chmod(0o600)
    return str(path)


def test_a_command_without_the_permission_is_denied(
    secured: SecuredHeadraceServer, tmp_path: Path
) -> None:
    commands = Commands(secured)
    client = ("--config-file", login_file(tmp_path / "client", secured.client_properties))
    admin = ("--config-file", login_file(tmp_path / "admin", secured.admin_properties))
    commands.run("topic", "create", "t", *admin)
    assert json.loads(commands.run("health", "-t", "t", *client, "--format", "json").stdout)[
        "healthy"
    ]

    info = commands.run("cluster", "info", *client, "--format", "json")
    assert json.loads(info.stdout)["log_dirs"] is None
    assert b"Log directories are left out: " in info.stderr
    assert json.loads(commands.run("cluster", "info", *admin, "--format", "json").stdout)[
        "log_dirs"
    ]
    refused = commands.run("cluster", "log-dirs", *client, code=1)
    assert b"log directories of " in refused.stderr
    assert refused.stdout == b""

    commands.run("transaction", "list", *client)
    commands.run("transaction", "producers", "t", *client)
    commands.run("bench", "produce", "t", "-n", "10", *client)
    at = ("-t", "t:0", "--start-offset", "0", "--yes")
    refused = commands.run("transaction", "abort", *at, *client, code=1)
    assert b"no open transaction begins at offset 0" in refused.stderr


def test_a_wrong_password_is_not_waited_for(secured: SecuredHeadraceServer, tmp_path: Path) -> None:
    wrong = {**secured.client_properties, "sasl.password": "another one"}
    file = login_file(tmp_path / "wrong", wrong)
    done = Commands(secured).run(
        "health", "--wait", "10m", "--config-file", file, "--format", "json", code=1
    )
    [check] = json.loads(done.stdout)["checks"]
    assert (check["check"], check["state"]) == ("connection", "failed")


def test_a_context_logs_in_by_a_reference(
    secured: SecuredHeadraceServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    secret = tmp_path / "password"
    secret.write_text(secured.admin_properties["sasl.password"])
    secret.chmod(0o600)
    properties = {**secured.admin_properties, "sasl.password": f"${{file:{secret}}}"}
    given = [word for key, value in properties.items() for word in ("-X", f"{key}={value}")]
    commands = Commands(secured)
    commands.run("context", "add", "mine", "-b", secured.bootstrap, *given)
    commands.run("cluster", "log-dirs", "--context", "mine")
    shown = commands.run("context", "show", "mine").stdout.decode()
    assert f"${{file:{secret}}}" in shown
