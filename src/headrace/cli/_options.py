"""Options that every client command has, and the client that they describe."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from headrace.cli._output import guarded

if TYPE_CHECKING:
    from headrace.clients.blocking import BlockingClient

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


def client_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --bootstrap, --format and -X, and handle errors; the command gets `bootstrap`, `as_json`, `properties`."""

    @click.option(
        "-b",
        "--bootstrap",
        envvar="HEADRACE_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT,...",
        help="Brokers to begin with.",
    )
    @click.option(
        "--format",
        "output_format",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output for people or for programs.",
    )
    @click.option(
        "-X",
        "properties",
        multiple=True,
        metavar="KEY=VALUE",
        help="Any client property by its Kafka name, e.g. -X request.timeout.ms=5000.",
    )
    @functools.wraps(command)
    @guarded
    def run(output_format: str, properties: tuple[str, ...], **options: Any) -> Any:
        return command(
            as_json=output_format == "json", properties=assignments(properties, "-X"), **options
        )

    return run


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
    from headrace.clients.blocking import BlockingClient  # noqa: PLC0415 - not for `--help`

    client = BlockingClient(properties.pop("bootstrap.servers", bootstrap), **properties)
    try:
        client.connect()
    except BaseException:
        client.close()
        raise
    return client


def check_reachable(bootstrap: str, properties: dict[str, str]) -> None:
    """Fail at once, and not after retries, when nothing listens; `properties` may be those of any role."""
    general = {
        name: value
        for name, value in properties.items()
        if name in {"request.timeout.ms", "socket.connection.setup.timeout.ms", "security.protocol"}
    }
    open_client(properties.get("bootstrap.servers", bootstrap), general).close()
