"""Options that every client command has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from headrace.cli.arguments.completion import complete_contexts
from headrace.cli.arguments.connection import CONNECTION, connection_of
from headrace.cli.output.printing import WIDE, guarded

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def _note_width(ctx: click.Context, _parameter: click.Parameter, wide: bool) -> None:  # noqa: FBT001 - click calls it
    ctx.meta[WIDE] = wide


TABLE_OR_JSON: Final = "The output format: a table for people, JSON for programs."
LINES_OR_JSON: Final = (
    "The output format: `table` stands for lines as described above, `json` for one JSON "
    "object per line."
)


def format_option(command: Callable[..., Any], meaning: str = TABLE_OR_JSON) -> Callable[..., Any]:
    """Add the options for the output format.

    Args:
        command: The command.
        meaning: The help text of --format. A command that prints no table accepts --wide, but its help omits it.
    """
    wide = click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=_note_width,
        hidden=meaning != TABLE_OR_JSON,
        help="Do not cut tables to the width of the terminal.",
    )
    output_format = click.option(
        "--format",
        "output_format",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help=meaning,
    )
    return output_format(wide(command))


def bootstrap_option(what: str) -> Callable[..., Any]:
    """Return the option --bootstrap, with `what` as its help text."""
    return click.option(
        "-b",
        "--bootstrap",
        envvar="HEADRACE_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT,...",
        help=what,
    )


_OPTIONS: Final = (
    bootstrap_option("Addresses of one or more brokers of the cluster."),
    click.option(
        "--context",
        envvar="HEADRACE_CONTEXT",
        show_envvar=True,
        metavar="NAME",
        shell_complete=complete_contexts,
        help="The stored connection with this name; see `headrace context --help`.",
    ),
    click.option(
        "--config-file",
        envvar="HEADRACE_CLIENT_CONFIG",
        show_envvar=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A file of client properties, e.g. security.protocol, as for Kafka's own tools.",
    ),
)
_PROPERTY: Final = click.option(
    "-X",
    "properties",
    multiple=True,
    metavar="KEY=VALUE",
    help="A client property by its Kafka name, e.g. -X request.timeout.ms=5000. Overrides the file; repeatable.",
)


def client_options(
    command: Callable[..., Any], role: str = "client", *, formats: str = TABLE_OR_JSON
) -> Callable[..., Any]:
    """Add the options of every client, and handle errors; the command gets `bootstrap`, `as_json`, `properties`.

    Args:
        command: The command.
        role: The role whose properties a file may contain: "client", "producer" or "consumer".
        formats: The help text of --format.
    """

    @functools.wraps(command)
    @guarded
    def run(output_format: str, **options: Any) -> Any:
        for name in CONNECTION:
            del options[name]
        bootstrap, settings = connection_of(click.get_current_context(), role)
        return command(
            as_json=output_format == "json", bootstrap=bootstrap, properties=settings, **options
        )

    with_options: Callable[..., Any] = run
    for add in reversed((*_OPTIONS, functools.partial(format_option, meaning=formats), _PROPERTY)):
        with_options = add(with_options)
    return with_options


data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Work on the data directory of a stopped broker, instead of a running broker.",
)


def preformatted(text: str) -> str:
    """Mark the paragraphs of a help text so that click keeps their line breaks."""
    return "\n\n".join("\b\n" + paragraph for paragraph in text.strip().split("\n\n"))
