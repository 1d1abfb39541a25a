"""The brokers and client properties that a command line names, and clients connected with them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from headrace.cli.output.printing import CONTEXT

if TYPE_CHECKING:
    from headrace.clients.admin.blocking import Admin
    from headrace.clients.blocking import BlockingClient

CONNECTION: Final = ("bootstrap", "context", "config_file", "properties")
"""Parameters that select the brokers of a command, and the client properties."""


def connection_of(ctx: click.Context, role: str) -> tuple[str, dict[str, Any]]:
    """Return the address and the client properties of a command line.

    Args:
        ctx: The context of a command with `client_options`.
        role: As for `client_options`.

    Raises:
        ConfigError: The context does not exist, or a file cannot be read or parsed.
    """
    from headrace.cli.arguments import contexts
    from headrace.cli.arguments.client_settings import client_settings

    bootstrap: str = ctx.params["bootstrap"]
    files: list[Path] = [] if ctx.params["config_file"] is None else [ctx.params["config_file"]]
    named = ctx.get_parameter_source("bootstrap") is not ParameterSource.DEFAULT
    if (name := _chosen_context(ctx)) is not None:
        named = _on_line(ctx, "bootstrap")
        files = files if _on_line(ctx, "config_file") else []
        files.insert(0, contexts.existing(name))
        ctx.meta[CONTEXT] = name
    given = assignments(ctx.params["properties"], "-X")
    settings = client_settings(files, given, role)
    if named and "bootstrap.servers" not in given:
        settings.pop("bootstrap.servers", None)
    return bootstrap, settings


def _chosen_context(ctx: click.Context) -> str | None:
    """Return the name of the context to use, or None. `headrace context --help` states the precedence."""
    from headrace.cli.arguments import contexts

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
    return contexts.current()


def _on_line(ctx: click.Context, name: str) -> bool:
    """Return whether an option was given on the command line."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def assignments(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """Split KEY=VALUE arguments.

    Raises:
        UsageError: An argument has no "=".
    """
    values = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise click.UsageError(f"{option} expects KEY=VALUE, not {pair!r}")
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
    """Fail at once, without retries, if no broker listens. `properties` may belong to any role."""
    from headrace.cli.arguments.client_settings import general

    open_client(bootstrap, general(properties)).close()
