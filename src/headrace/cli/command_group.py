"""Commands, their arguments, and groups of commands: whole descriptions in help, suggestions for mistyped names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_WHOLE: Final = 10_000
"""The most characters of a description in a list of commands; larger than every description."""


F = TypeVar("F", bound=Callable[..., Any] | click.Command)


class Argument(click.Argument):
    """An argument that the help of its command describes."""

    def __init__(self, names: Sequence[str], *, meaning: str, **attributes: Any) -> None:
        """Declare an argument.

        Args:
            names: The name of the parameter.
            meaning: The help text.
            attributes: Further arguments of `click.Argument`.
        """
        super().__init__(names, **attributes)
        self.meaning = meaning


def argument(name: str, meaning: str, **attributes: Any) -> Callable[[F], F]:
    """Return a decorator that adds an argument to a command."""
    return click.argument(name, cls=Argument, meaning=meaning, **attributes)


class Command(click.Command):
    """A command whose help describes its arguments, too."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments with their meanings, then the options."""
        rows = [
            (each.make_metavar(ctx), each.meaning)
            for each in self.params
            if isinstance(each, Argument)
        ]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


command = partial(click.command, cls=Command)
"""The decorator that makes a `Command` of a function."""


class CommandGroup(click.Group):
    """The base of all command groups of `headrace`."""

    command_class: type[click.Command] | None = Command

    def summary(self, ctx: click.Context, name: str) -> str:
        """Return the one-line description of a command."""
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(_WHOLE)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their whole descriptions, which click would cut after 45 characters."""
        with formatter.section("Commands"):
            names = self.list_commands(ctx)
            formatter.write_dl([(name, self.summary(ctx, name)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands and options that begin with `incomplete`, without importing a command."""
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=self.summary(ctx, name))
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the called command. The error for an unknown name suggests similar names."""
        name = args[0]
        if ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        import difflib

        close = difflib.get_close_matches(name, self.list_commands(ctx))
        known = " or ".join(repr(each) for each in close)
        hint = f" Did you mean {known}?" if close else ""
        raise click.UsageError(f"No such command {name!r}.{hint}", ctx)

    def group(self, *args: Any, **kwargs: Any) -> Any:
        """Return the decorator for a `CommandGroup` within this group."""
        kwargs.setdefault("cls", CommandGroup)
        return super().group(*args, **kwargs)
