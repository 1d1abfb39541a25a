"""The help of commands, and names that are mistyped."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from headrace.cli import main
from headrace.cli.command_group import Argument


def groups(command: click.Command, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(command, click.Group):
        yield names
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from groups(found, (*names, name))


def commands(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*names, name))
        else:
            yield (*names, name)


def command_named(names: tuple[str, ...]) -> click.Command:
    command: click.Command = main
    for name in names:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


@pytest.mark.parametrize("names", list(commands(main)), ids=" ".join)
def test_every_argument_and_option_has_a_help_text(names: tuple[str, ...]) -> None:
    for parameter in command_named(names).params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{parameter.opts[0]} has no help text"
        else:
            assert isinstance(parameter, Argument), f"{parameter.name} has no meaning"
            assert parameter.meaning


def test_the_help_of_a_command_describes_its_arguments() -> None:
    result = CliRunner().invoke(main, ["bridge", "--help"])
    assert result.exit_code == 0
    arguments = result.stdout.partition("Arguments:\n")[2].partition("\n\n")[0]
    assert [line.split()[0] for line in arguments.splitlines()] == ["FROM", "TO"]


@pytest.mark.parametrize("names", list(groups(main)), ids=" ".join)
def test_no_description_is_cut(names: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*names, "--help"])
    assert result.exit_code == 0
    listed = result.stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    assert listed
    assert "..." not in listed


@pytest.mark.parametrize("names", list(groups(main)), ids=" ".join)
def test_a_mistyped_command_is_corrected(names: tuple[str, ...]) -> None:
    command = command_named(names)
    assert isinstance(command, click.Group)
    for meant in command.list_commands(click.Context(command)):
        result = CliRunner().invoke(main, [*names, f"{meant[:-1]}x{meant[-1]}"])
        assert result.exit_code == 2
        assert f"{meant!r}" in result.stderr, result.stderr
        assert "Did you mean" in result.stderr


def test_a_name_like_no_other_is_refused() -> None:
    result = CliRunner().invoke(main, ["topic", "qqqqq"])
    assert result.exit_code == 2
    assert result.stderr.endswith("Error: No such command 'qqqqq'.\n")


def test_mistyped_options_are_corrected() -> None:
    result = CliRunner().invoke(main, ["topic", "list", "--intrnal"])
    assert result.exit_code == 2
    assert "--internal" in result.stderr
