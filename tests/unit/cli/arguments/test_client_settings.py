"""Client properties from files, -X and the environment: their precedence and the warnings about them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli.arguments.client_settings import client_settings, general
from headrace.errors import ConfigError

SHARED = "client.id = shared\ngroup.id=g\nacks=1\nrequest.timeout.ms=700\nmax.in.flight=1\n"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "client.properties"
    path.write_text(SHARED)
    return path


def test_each_role_accepts_its_own_properties(shared: Path) -> None:
    both = {"client.id": "shared", "request.timeout.ms": "700"}
    assert client_settings([shared], {}, "client") == both
    assert client_settings([shared], {}, "consumer") == {**both, "group.id": "g"}
    assert client_settings([shared], {}, "producer") == {**both, "acks": "1", "max.in.flight": "1"}
    assert general({"acks": "1", "client_id": "a", "group.id": "g"}) == {"client_id": "a"}


def test_the_command_line_is_before_the_file(shared: Path) -> None:
    assert client_settings([shared], {"client.id": "mine"}, "client")["client.id"] == "mine"


def test_properties_of_another_role_on_the_command_line_are_kept(shared: Path) -> None:
    assert client_settings([shared], {"group.id": "g"}, "client")["group.id"] == "g"


def test_a_line_that_is_no_property_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "client.properties"
    path.write_text("acks=1\nnonsense\n")
    with pytest.raises(ConfigError, match="line 2: expected key=value"):
        client_settings([path], {}, "client")


@pytest.mark.parametrize(
    "name", ["sasl.password", "ssl.key.password", "sasl_jaas_config", "ssl.key.pem", "x.secret"]
)
def test_a_secret_on_the_command_line_is_warned_of_and_not_repeated(name: str, capsys) -> None:
    client_settings([], {name: "hunter2"}, "client")
    told = capsys.readouterr().err
    assert "--config-file" in told
    assert "hunter2" not in told


@pytest.mark.parametrize(
    "given", [{"sasl.password": "${env:PASSWORD}"}, {"ssl.ca.location": "ca.pem"}]
)
def test_references_and_other_properties_are_not_warned_of(
    given: dict[str, str], capsys, monkeypatch
) -> None:
    monkeypatch.setenv("PASSWORD", "hunter2")
    client_settings([], given, "client")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "address"),
    [
        ((), "127.0.0.1:1"),
        (("-b", "127.0.0.1:2"), "127.0.0.1:2"),
        (("-b", "127.0.0.1:2", "-X", "bootstrap.servers=127.0.0.1:3"), "127.0.0.1:3"),
    ],
)
@pytest.mark.parametrize("command", [("topic", "list"), ("consume", "t"), ("produce", "t")])
def test_which_address_counts(
    command: tuple[str, ...], arguments: tuple[str, ...], address: str, tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=127.0.0.1:1\nauto.offset.reset=earliest\nacks=all\n")
    environment = {"HEADRACE_CLIENT_CONFIG": str(path)}
    result = CliRunner().invoke(main, (*command, *arguments), env=environment)
    assert result.exit_code == 1, result.output
    assert f"cannot connect to {address}" in result.stderr


def test_a_missing_file_is_reported() -> None:
    result = CliRunner().invoke(main, ("topic", "list", "--config-file", "no/such.properties"))
    assert result.exit_code == 2
    assert "no/such.properties" in result.stderr
