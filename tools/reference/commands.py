"""The page of commands: what `--help` says, of all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import click

from headrace.cli import main
from headrace.cli.command_group import Argument
from tools.reference.markdown import anchor, code, paragraphs, prose, table

HEAD: Final = """\
# Commands

Every command of `headrace`, with its arguments and options: what `--help` prints. [The command
line](../guides/command-line.md) explains how to use them.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | done; also if the reader of the output has closed it (`headrace consume orders \\| head`) |
| 1 | the work failed, or a check found a problem |
| 2 | wrong usage or configuration; nothing was changed |
| 130 | interrupted by Ctrl-C (SIGINT) |

These codes are the same for every command. Where a command has more to say about them, its text below does.

## Connection options

Commands that connect to a broker have these options. The sections of such commands do not repeat them.

"""
CONNECTION: Final = ("bootstrap", "context", "config_file", "properties")
OUTPUT: Final = ("output_format", "wide")
MODEL: Final = ("topic", "list")
"""A command that has all of the connection options and of the output options."""
_DEFAULT: Final = re.compile(r"\s*\[default: (.*?)\]\s*$")


class Found(NamedTuple):
    """A command, with the words that call it."""

    words: tuple[str, ...]
    command: click.Command
    context: click.Context

    @property
    def name(self) -> str:
        """The words as they are typed."""
        return " ".join(("headrace", *self.words))


def commands_page() -> str:
    """Return the page of commands."""
    found = list(all_commands(main, ()))
    model = next(each for each in found if each.words == MODEL)
    shared: dict[str, click.Parameter] = {
        name: option
        for name in CONNECTION + OUTPUT
        for option in model.command.params
        if option.name == name
    }
    text = HEAD + _options(model, shared.values()) + "\n## Overview\n\n"
    text += table(
        ("command", "what it does"),
        (
            (
                f"[{code(each.name)}](#{anchor(each.name)})",
                prose(each.command.get_short_help_str(1000)),
            )
            for each in found
            if not isinstance(each.command, click.Group)
        ),
    )
    return text + "".join(_section(each, shared) for each in found)


def all_commands(
    group: click.Command, words: tuple[str, ...], parent: click.Context | None = None
) -> Iterator[Found]:
    """Yield a group's commands and their commands, each group before its commands."""
    context = click.Context(group, parent, info_name=words[-1] if words else "headrace")
    if words:
        yield Found(words, group, context)
    if isinstance(group, click.Group):
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if command is not None and not command.hidden:
                yield from all_commands(command, (*words, name), context)


def _section(found: Found, shared: dict[str, click.Parameter]) -> str:
    level = "##" if len(found.words) == 1 else "###"
    text = f"\n{level} `{found.name}`\n\n{_help(found.command)}"
    if isinstance(found.command, click.Group):
        return text
    usage = found.command.collect_usage_pieces(found.context)
    text += f"\n```text\n{found.name} {' '.join(usage)}\n```\n"
    own, common = [], set()
    for each in found.command.params:
        if _same(each, shared.get(each.name or "")):
            common.add("connection" if each.name in CONNECTION else "output")
        elif not getattr(each, "hidden", False):
            own.append(each)
    options = _options(found, own)
    text += f"\n{options}" if options else ""
    if "connection" in common:
        text += "\nAlso the [connection options](#connection-options).\n"
    elif "output" in common:
        text += "\nAlso `--format` and `--wide`, see [connection options](#connection-options).\n"
    return text


def _same(parameter: click.Parameter, model: click.Parameter | None) -> bool:
    mine, other = getattr(parameter, "help", None), getattr(model, "help", None)
    return model is not None and mine == other and parameter.opts == model.opts


def _help(command: click.Command) -> str:
    """Return the help of a command; paragraphs whose lines click keeps become blocks of code."""
    parts = []
    for part in re.split(r"\n\s*\n", (command.help or "").strip()):
        if part.lstrip().startswith("\b"):
            lines = part.replace("\b\n", "", 1).replace("\b", "", 1)
            parts.append(f"```text\n{lines}\n```\n")
        else:
            parts.append(paragraphs(prose(part)))
    return "\n".join(parts)


def _options(found: Found, parameters: Iterable[click.Parameter]) -> str:
    rows = [_row(each, found.context) for each in parameters]
    return table(("option", "value", "default", "meaning"), rows) if rows else ""


def _row(parameter: click.Parameter, context: click.Context) -> tuple[str, str, str, str]:
    if isinstance(parameter, click.Argument):
        assert isinstance(parameter, Argument), f"{parameter.name!r} has no meaning"
        meaning, default = parameter.meaning, "required" if parameter.required else ""
        if match := _DEFAULT.search(meaning):
            meaning, default = meaning[: match.start()], prose(match[1])
        return code(parameter.make_metavar(context)), "", default, prose(meaning)
    assert isinstance(parameter, click.Option)
    help_text = parameter.help or ""
    default = _default(parameter)
    if match := _DEFAULT.search(help_text):
        help_text, default = help_text[: match.start()], prose(match[1])
    if parameter.required:
        default = "required"
    notes = ""
    if parameter.multiple and "repeatable" not in help_text:
        notes += " Repeatable."
    if parameter.envvar:
        notes += f" Environment: {code(parameter.envvar)}."
    names = ", ".join(map(code, [*parameter.opts, *parameter.secondary_opts]))
    return names, _value(parameter, context), default, prose(help_text) + notes


def _value(option: click.Option, context: click.Context) -> str:
    if option.is_flag or option.count:
        return ""
    if isinstance(option.type, click.Choice):
        return ", ".join(code(choice) for choice in option.type.choices)
    if isinstance(option.type, click.IntRange | click.FloatRange) and option.metavar is None:
        low, high = option.type.min, option.type.max
        if low is not None and high is not None:
            return f"{low} to {high}"
        return f"at least {low}" if low is not None else f"at most {high}"
    return code(option.make_metavar(context))


def _default(option: click.Option) -> str:
    default = option.default
    if option.is_flag or default is None or default in ((), "") or callable(default):
        return ""
    if repr(default).startswith("Sentinel"):
        return ""
    return code(default)
