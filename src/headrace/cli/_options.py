"""Options that every client command has, and the client that they describe."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from headrace.cli._complete import complete_contexts
from headrace.cli._output import CONTEXT, WIDE, guarded

if TYPE_CHECKING:
    from headrace.clients.admin.blocking import Admin
    from headrace.clients.blocking import BlockingClient

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
CONNECTION: Final = ("bootstrap", "context", "config_file", "properties")
"""Parameters that say which brokers a command asks, and how."""


def _note_width(ctx: click.Context, _parameter: click.Parameter, wide: bool) -> None:  # noqa: FBT001 - click calls it
    ctx.meta[WIDE] = wide


def format_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say how a command prints what it has found."""
    wide = click.option(
        "--wide",
        is_flag=True,
        expose_value=False,
        callback=_note_width,
        help="Do not cut tables to the width of the terminal.",
    )
    output_format = click.option(
        "--format",
        "output_format",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output for people or for programs.",
    )
    return output_format(wide(command))


def bootstrap_option(what: str) -> Callable[..., Any]:
    """Return the option that names brokers, and what they are for."""
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
    bootstrap_option("Brokers to begin with."),
    click.option(
        "--context",
        envvar="HEADRACE_CONTEXT",
        show_envvar=True,
        metavar="NAME",
        shell_complete=complete_contexts,
        help="The connection of this name; see `headrace context --help`.",
    ),
    click.option(
        "--config-file",
        envvar="HEADRACE_CLIENT_CONFIG",
        show_envvar=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Client properties, e.g. security.protocol; a file that Kafka's own tools read.",
    ),
    format_option,
    click.option(
        "-X",
        "properties",
        multiple=True,
        metavar="KEY=VALUE",
        help="A client property by its Kafka name, e.g. -X request.timeout.ms=5000; before the file's.",
    ),
)


def client_options(command: Callable[..., Any], role: str = "client") -> Callable[..., Any]:
    """Add the options of every client, and handle errors; the command gets `bootstrap`, `as_json`, `properties`.

    Args:
        command: The command.
        role: Which properties a file may have for it: those of a "client", a "producer" or a "consumer".
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
    for add in reversed(_OPTIONS):
        with_options = add(with_options)
    return with_options


def connection_of(ctx: click.Context, role: str) -> tuple[str, dict[str, Any]]:
    """Return the address and the client properties that a command is called with.

    Args:
        ctx: The context of a command with `client_options`.
        role: As for `client_options`.

    Raises:
        ConfigError: There is no such context, or a file cannot be read or understood.
    """
    from headrace.cli import _contexts
    from headrace.cli._client_settings import client_settings

    bootstrap: str = ctx.params["bootstrap"]
    files: list[Path] = [] if ctx.params["config_file"] is None else [ctx.params["config_file"]]
    named = ctx.get_parameter_source("bootstrap") is not ParameterSource.DEFAULT
    if (name := _chosen_context(ctx)) is not None:
        named = _on_line(ctx, "bootstrap")
        files = files if _on_line(ctx, "config_file") else []
        files.insert(0, _contexts.existing(name))
        ctx.meta[CONTEXT] = name
    given = assignments(ctx.params["properties"], "-X")
    settings = client_settings(files, given, role)
    if named and "bootstrap.servers" not in given:
        settings.pop("bootstrap.servers", None)
    return bootstrap, settings


def _chosen_context(ctx: click.Context) -> str | None:
    """Return the name of the context that counts; see the help of `headrace context`."""
    from headrace.cli import _contexts

    context: str | None = ctx.params["context"]
    if _on_line(ctx, "context"):
        return context
    if _on_line(ctx, "bootstrap") or _on_line(ctx, "config_file"):
        return None
    if context is not None:
        return context
    given = (ctx.get_parameter_source(name) for name in ("bootstrap", "config_file"))
    if any(source is not ParameterSource.DEFAULT for source in given):
        return None
    return _contexts.current()


def _on_line(ctx: click.Context, name: str) -> bool:
    """Return whether an option is among the arguments of the command."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


data_option = click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Work on the data directory of a broker that does not run, in place of asking a broker.",
)


def preformatted(text: str) -> str:
    """Mark the paragraphs of a help text so that click keeps their lines."""
    return "\n\n".join("\b\n" + paragraph for paragraph in text.strip().split("\n\n"))


def assignments(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """Split KEY=VALUE arguments.

    Raises:
        UsageError: One has no "=".
    """
    values = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise click.UsageError(f"{option} wants KEY=VALUE, not {pair!r}")
        values[key.strip()] = value
    return values


def open_client(bootstrap: str, properties: dict[str, Any]) -> BlockingClient:
    """Return a client that has reached a broker.

    Raises:
        TransportError: No bootstrap server answers.
    """
    from headrace.clients.blocking import BlockingClient

    client = BlockingClient(properties.pop("bootstrap.servers", bootstrap), **properties)
    try:
        client.connect()
    except BaseException:
        client.close()
        raise
    return client


def open_admin(bootstrap: str, properties: dict[str, Any]) -> Admin:
    """Return an admin client that has reached a broker.

    Raises:
        TransportError: No bootstrap server answers.
    """
    from headrace.clients.admin.blocking import Admin

    check_reachable(bootstrap, dict(properties))
    return Admin(properties.pop("bootstrap.servers", bootstrap), **properties)


def check_reachable(bootstrap: str, properties: dict[str, str]) -> None:
    """Fail at once, and not after retries, when nothing listens; `properties` may be those of any role."""
    from headrace.cli._client_settings import general

    open_client(bootstrap, general(properties)).close()
