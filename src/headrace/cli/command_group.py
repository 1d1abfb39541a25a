"""Groups of sub-commands: descriptions that are not cut, and names that a mistyped one may have meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_WHOLE: Final = 10_000
"""Characters of a description in a list of commands: more than any has."""


class CommandGroup(click.Group):
    """A group of commands, as every group of `headrace` is one."""

    def summary(self, ctx: click.Context, name: str) -> str:
        """Return the line that says what a command does."""
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(_WHOLE)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their whole descriptions; click cuts them after 45 characters."""
        with formatter.section("Commands"):
            names = self.list_commands(ctx)
            formatter.write_dl([(name, self.summary(ctx, name)) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands and options that begin so; no command is imported for it."""
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
        """Find the command that is called; an unknown one is refused with those that look like it."""
        name = args[0]
        if ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name) is not None:
            return super().resolve_command(ctx, args)
        import difflib

        close = difflib.get_close_matches(name, self.list_commands(ctx))
        known = " or ".join(repr(each) for each in close)
        hint = f" Did you mean {known}?" if close else ""
        raise click.UsageError(f"No such command {name!r}.{hint}", ctx)

    def group(self, *args: Any, **kwargs: Any) -> Any:
        """Return the decorator of a group of this kind within this one."""
        kwargs.setdefault("cls", CommandGroup)
        return super().group(*args, **kwargs)
