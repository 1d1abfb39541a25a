"""Contexts: which one a command uses, what is stored of it, and that other users cannot read it."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli import main
from headrace.cli.arguments import contexts
from headrace.cli.arguments.options import client_options
from headrace.config.properties_file import parse_properties

NOWHERE = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("HEADRACE_CONTEXT", "HEADRACE_BOOTSTRAP", "HEADRACE_CLIENT_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "config" / "headrace"


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exit_code == code, result.output
    return result


@click.command()
@client_options
def shown(bootstrap: str, properties: dict[str, str], *, as_json: bool) -> None:
    """Print the connection of a command."""
    address = properties.pop("bootstrap.servers", bootstrap)
    click.echo(f"{address} {as_json} {properties.get('client.id')}")


def connection(*arguments: str) -> list[str | None]:
    result = CliRunner().invoke(shown, list(arguments))
    assert result.exit_code == 0, result.output
    address, _, client_id = result.stdout.split()
    return [address, None if client_id == "None" else client_id]


def test_the_order_in_which_connections_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=file:1\nclient.id=of-file\n")
    run("context", "add", "a", "-b", "a:1", "-X", "client.id=of-a")
    run("context", "add", "b", "-b", "b:1", "-X", "client.id=of-b")
    assert connection() == ["127.0.0.1:9092", None]
    run("context", "use", "a")
    assert connection() == ["a:1", "of-a"]
    assert connection("-b", "x:1") == ["x:1", None]
    assert connection("--config-file", str(file)) == ["file:1", "of-file"]
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "env:1")
    assert connection() == ["env:1", None]
    monkeypatch.setenv("HEADRACE_CONTEXT", "b")
    assert connection() == ["b:1", "of-b"]
    assert connection("-b", "x:1") == ["x:1", None]
    assert connection("--context", "a") == ["a:1", "of-a"]
    assert connection("--context", "a", "-b", "x:1") == ["x:1", "of-a"]
    assert connection("--context", "a", "-X", "client.id=x") == ["a:1", "x"]
    assert connection("--context", "a", "--config-file", str(file)) == ["file:1", "of-file"]
    monkeypatch.setenv("HEADRACE_CLIENT_CONFIG", str(file))
    assert connection() == ["b:1", "of-b"]
    monkeypatch.delenv("HEADRACE_CONTEXT")
    assert connection() == ["env:1", "of-file"]


def test_contexts_are_listed_shown_used_and_removed(home: Path) -> None:
    run("context", "add", "dev", "-b", NOWHERE)
    secured = ("-X", "security.protocol=SASL_SSL", "-X", "sasl.username=alice")
    by_reference = ("-X", "sasl.password=${file:/run/password}")
    run("context", "add", "prod", "-b", "p:1", *secured, *by_reference, "--use")
    listed = json.loads(run("context", "list", "--format", "json").stdout)
    assert [(each["context"], each["current"], each["user"]) for each in listed] == [
        ("dev", False, None),
        ("prod", True, "alice"),
    ]
    told = json.loads(run("context", "show", "--format", "json").stdout)
    assert told["context"] == "prod"
    assert told["properties"]["sasl.password"] == "${file:/run/password}"
    assert "p:1" in run("context", "show").stdout

    modes = {stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert stat.S_IMODE((home / "contexts").stat().st_mode) == 0o700

    run("context", "use", "--none")
    run("context", "show", code=2)
    run("context", "use", "prod")
    run("context", "remove", "prod")
    assert [
        each["current"] for each in json.loads(run("context", "list", "--format", "json").stdout)
    ] == [False]


def test_a_secret_is_kept_by_reference_alone(home: Path) -> None:
    refused = run("context", "add", "prod", "-b", "p:1", "-X", "sasl.password=hunter2", code=2)
    assert "store no secrets" in refused.stderr
    assert "hunter2" not in refused.stderr
    assert not (home / "contexts").exists()
    (home / "contexts").mkdir(parents=True)
    (home / "contexts" / "own.properties").write_text("sasl.password=hunter2\n")
    assert "hunter2" not in run("context", "show", "own").stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("add", "x"), "give --bootstrap"),
        (("add", "a", "-b", "x:1"), "--replace"),
        (("add", "../x", "-b", "x:1"), "not allowed as the name of a context"),
        (("add", "x", "-b", "x:1", "-X", "clientid=y"), "did you mean client.id"),
        (("use", "missing"), "there are a"),
        (("use",), "either a NAME or --none"),
        (("remove", "missing"), "there is no context"),
    ],
)
def test_wrong_usage_exits_with_code_2_and_a_message(arguments: tuple[str, ...], text: str) -> None:
    run("context", "add", "a", "-b", "a:1")
    assert text in run("context", *arguments, code=2).stderr


def test_errors_name_the_context() -> None:
    run("context", "add", "away", "-b", NOWHERE, "--use")
    assert "(context away)" in run("topic", "list", code=1).stderr
    assert "there is no context 'x'" in run("topic", "list", "--context", "x", code=2).stderr


@given(
    settings=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
        st.text(st.characters(exclude_categories=["Cs"])),
    )
)
def test_a_stored_context_is_read_unchanged(settings: dict[str, str]) -> None:
    text = "".join(contexts._line(key, value) for key, value in settings.items())
    assert parse_properties(text, "context") == settings


def test_a_file_is_readable() -> None:
    assert contexts._line("sasl.password", "${file:/run/a b}") == "sasl.password=${file:/run/a b}\n"
