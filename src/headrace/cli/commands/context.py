"""`headrace context`: named connections to clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from headrace.cli.arguments import contexts
from headrace.cli.arguments.completion import complete_contexts
from headrace.cli.arguments.connection import assignments
from headrace.cli.arguments.options import format_option
from headrace.cli.command_group import CommandGroup, argument
from headrace.cli.output.printing import guarded, print_facts, print_json, print_table, say

_name = argument(
    "name", "The name of the context.", metavar="NAME", shell_complete=complete_contexts
)


@click.group(cls=CommandGroup)
def context() -> None:
    """Store named connections: the address and client properties of a cluster under a name.

    A command takes the first of these that is given: --context; -b or --config-file; HEADRACE_CONTEXT;
    HEADRACE_BOOTSTRAP or HEADRACE_CLIENT_CONFIG; the context in use; 127.0.0.1:9092. -X changes single properties of a
    context. With --context, -b and --config-file do so too.
    """


@context.command("add")
@argument("name", "The name for the connection.", metavar="NAME")
@click.option(
    "-b",
    "--bootstrap",
    metavar="HOST:PORT,...",
    help="Addresses of one or more brokers of the cluster.",
)
@click.option(
    "--config-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A file with client properties for the context.",
)
@click.option(
    "-X", "properties", multiple=True, metavar="KEY=VALUE", help="A client property; repeatable."
)
@click.option("--replace", is_flag=True, help="Replace an existing context with this name.")
@click.option("--use", is_flag=True, help="Use the context from now on.")
@guarded
def add(
    name: str,
    *,
    bootstrap: str | None,
    config_file: Path | None,
    properties: tuple[str, ...],
    replace: bool,
    use: bool,
) -> None:
    """Store a connection under a name, in a file that only you can read.

    Secrets are stored as references: ${env:NAME} is an environment variable, ${file:/path} the text of a file.

    Example: headrace context add prod -b broker:9095 -X security.protocol=SASL_SSL -X sasl.mechanism=SCRAM-SHA-512 -X
    sasl.username=alice -X 'sasl.password=${file:/run/secrets/kafka}'
    """
    from headrace.cli.arguments.settings_files import read_settings
    from headrace.errors import ConfigError

    settings = read_settings(config_file) if config_file is not None else {}
    settings |= assignments(properties, "-X")
    if bootstrap is not None:
        settings[contexts.BOOTSTRAP] = bootstrap
    if not settings.get(contexts.BOOTSTRAP):
        raise ConfigError(
            "a context needs an address: give --bootstrap, or bootstrap.servers in --config-file"
        )
    _check(settings)
    contexts.add(name, settings, replace=replace)
    if use:
        contexts.use(name)


def _check(settings: dict[str, str]) -> None:
    """Refuse properties that no client has.

    Raises:
        ConfigError: A property is unknown.
    """
    from dataclasses import fields

    from headrace.clients.config import ALIASES, ConsumerConfig, ProducerConfig
    from headrace.config.options import unknown_key

    known = {
        field.name.replace("_", ".")
        for role in (ProducerConfig, ConsumerConfig)
        for field in fields(role)
    }
    for name in settings:
        dotted = name.replace("_", ".")
        if ALIASES.get(dotted, dotted) not in known:
            raise unknown_key(name, known | set(ALIASES))


@context.command("list")
@format_option
@guarded
def list_contexts(*, output_format: str) -> None:
    """List contexts and their brokers; a star marks the context in use."""
    current = contexts.current()
    rows = []
    for name in contexts.names():
        settings = contexts.settings_of(name)
        rows.append(
            {
                "context": name,
                "current": name == current,
                "bootstrap": settings.get(contexts.BOOTSTRAP),
                "security_protocol": settings.get("security.protocol", "PLAINTEXT"),
                "user": settings.get("sasl.username"),
            }
        )
    if output_format == "json":
        print_json(rows)
        return
    columns = ("", "CONTEXT", "BOOTSTRAP", "SECURITY", "USER")
    shown = [
        ("*" if row["current"] else "", row["context"], *list(row.values())[2:]) for row in rows
    ]
    print_table(columns, shown)


@context.command("show")
@argument(
    "name",
    "The name of the context.  [default: the context in use]",
    metavar="[NAME]",
    required=False,
    shell_complete=complete_contexts,
)
@format_option
@guarded
def show(name: str | None, *, output_format: str) -> None:
    """Show the properties of a context, by default of the one in use. Secrets that are no references are hidden."""
    from headrace.config.secrets import has_reference, is_secret
    from headrace.errors import ConfigError

    chosen = name or contexts.current()
    if chosen is None:
        raise ConfigError("no context is in use: give the NAME of one")
    settings = contexts.settings_of(chosen)
    told: dict[str, Any] = {
        key: "(hidden)" if is_secret(key) and not has_reference(value) else value
        for key, value in settings.items()
    }
    if output_format == "json":
        current = chosen == contexts.current()
        print_json({"context": chosen, "current": current, "properties": told})
        return
    print_facts(
        {"context": chosen, "file": contexts.path_of(chosen), **told},
        max(map(len, ["context", *told])) + 2,
    )


@context.command("use")
@argument(
    "name",
    "The name of the context. Use either a name or --none.",
    metavar="NAME",
    required=False,
    shell_complete=complete_contexts,
)
@click.option("--none", is_flag=True, help="Use no context.")
@guarded
def use(name: str | None, *, none: bool) -> None:
    """Choose the context that commands use by default."""
    if (name is None) != none:
        raise click.UsageError("give either a NAME or --none")
    contexts.use(name)
    say("no context is in use" if name is None else f"context {name} is in use")


@context.command("remove")
@_name
@guarded
def remove(name: str) -> None:
    """Delete a stored context."""
    contexts.remove(name)
