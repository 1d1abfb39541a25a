"""References to secrets in the files and arguments of the commands; and no option that takes a secret itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from headrace.cli import SUMMARIES, main
from headrace.cli.arguments.client_settings import client_settings
from headrace.config.broker import BrokerConfig
from headrace.server import process
from headrace.server.process import ServeOptions

SECRET = "hunter2-and-more"


@pytest.fixture
def configs(monkeypatch: pytest.MonkeyPatch) -> list[BrokerConfig]:
    """Return the configuration with which `serve` would have run; it ends at once."""
    seen: list[BrokerConfig] = []

    def run(options: ServeOptions) -> int:
        seen.append(options.config)
        return 0

    monkeypatch.setattr(process, "run", run)
    return seen


def test_serve_takes_references_from_its_file_and_its_arguments(
    tmp_path: Path, configs: list[BrokerConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_PASSWORD", SECRET)
    (tmp_path / "partitions").write_text("7\n")
    file = tmp_path / "server.properties"
    file.write_text(
        "ssl.key.password=${env:KEY_PASSWORD}\nconfig.providers=env,dir\n"
        "config.providers.env.class=org.apache.kafka.common.config.provider.EnvVarConfigProvider\n"
    )
    given = f"num.partitions=${{dir:{tmp_path}:partitions}}"
    arguments = ["--data", str(tmp_path), "--config-file", str(file), "--config", given]
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code == 0, result.output
    assert configs[0].ssl_key_password == SECRET
    assert configs[0].num_partitions == 7
    assert SECRET not in repr(configs[0])
    assert SECRET not in result.output


def test_serve_says_which_reference_leads_nowhere(configs: list[BrokerConfig]) -> None:
    result = CliRunner().invoke(main, ["serve", "--config", "ssl.key.password=${env:NOT_SET_HERE}"])
    assert result.exit_code == 2
    assert result.output == (
        "headrace: ssl.key.password: ${env:NOT_SET_HERE}: the environment has no such variable\n"
    )
    assert configs == []


def test_serve_warns_of_a_file_with_a_secret_that_everybody_may_read(
    tmp_path: Path, configs: list[BrokerConfig]
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(f"ssl.key.password={SECRET}\n")
    for mode, warned in ((0o600, False), (0o644, True)):
        file.chmod(mode)
        result = CliRunner().invoke(
            main, ["serve", "--data", str(tmp_path), "--config-file", str(file)]
        )
        assert ("secret_readable_by_everybody" in result.output) is warned
        assert SECRET not in result.output
    assert len(configs) == 2


def test_serve_warns_of_a_secret_that_a_list_of_processes_shows(
    tmp_path: Path, configs: list[BrokerConfig]
) -> None:
    given = f"listener.name.plaintext.ssl.key.password={SECRET}"
    result = CliRunner().invoke(main, ["serve", "--data", str(tmp_path), "--config", given])
    assert "secret_on_command_line option=listener.name.plaintext.ssl.key.password" in result.output
    assert SECRET not in result.output
    assert len(configs) == 1


def test_a_client_takes_references_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PASSWORD", SECRET)
    file = tmp_path / "client.properties"
    file.write_text("sasl.password=${env:PASSWORD}\n")
    file.chmod(0o644)  # it holds no secret, only says where one is
    assert client_settings([file], {}, "client") == {"sasl.password": SECRET}
    assert capsys.readouterr().err == ""
    file.write_text(f"sasl.password={SECRET}\n")
    assert client_settings([file], {}, "client") == {"sasl.password": SECRET}
    told = capsys.readouterr().err
    assert str(file) in told
    assert SECRET not in told


def options_of(command: click.Command, path: str) -> Iterator[tuple[str, click.Parameter]]:
    for parameter in command.params:
        yield path, parameter
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from options_of(child, f"{path} {name}")


def test_no_option_takes_a_secret_on_the_command_line() -> None:
    found = list(options_of(main, "headrace"))
    assert {path.split()[1] for path, _ in found if " " in path} == set(SUMMARIES)
    secret = re.compile(r"passw|secret|token|credential", re.IGNORECASE)
    for path, parameter in found:
        names = [*parameter.opts, *parameter.secondary_opts, parameter.name or ""]
        if any(secret.search(name) for name in names):
            # A file to read it from, or a flag to be asked for it, is no secret.
            is_file = isinstance(parameter.type, click.Path | click.File)
            is_flag = isinstance(parameter, click.Option) and parameter.is_flag
            assert is_file or is_flag, (
                f"{path} {parameter.opts}: every user who lists processes sees it"
            )
