"""`headrace quota`: limits for producing, consuming and requests of clients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.arguments.connection import assignments, open_client
from headrace.cli.arguments.options import client_options
from headrace.cli.command_group import CommandGroup
from headrace.cli.output.printing import fail, print_json, print_table, say

if TYPE_CHECKING:
    from headrace.clients.flows.quotas import Entity

DEFAULT_NAME: Final = "<default>"
TYPES: Final = {"user": "user", "client_id": "client-id"}


@click.group(cls=CommandGroup)
def quota() -> None:
    """Show and change the quotas of clients, on Headrace or any Kafka."""


def entity_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --user and --client-id; the command gets `entity`."""

    @click.option("-u", "--user", metavar="NAME", help=f"A user, or {DEFAULT_NAME}.")
    @click.option("-c", "--client-id", metavar="NAME", help=f"A client id, or {DEFAULT_NAME}.")
    @functools.wraps(command)
    def run(**options: Any) -> Any:
        given = {kind: options.pop(option) for option, kind in TYPES.items()}
        entity = {
            kind: None if name == DEFAULT_NAME else name
            for kind, name in given.items()
            if name is not None
        }
        return command(entity=entity, **options)

    return run


@quota.command("describe")
@entity_options
@click.option("--strict", is_flag=True, help="Show only quotas of exactly the given entity types.")
@client_options
def describe(
    bootstrap: str, properties: dict[str, str], *, entity: Entity, strict: bool, as_json: bool
) -> None:
    """Show quotas: all, or those of a user, of a client id, or of a user with a client id.

    The most specific quota applies to a client: user with client id, then user, then client id; each before its
    <default>.
    """
    from headrace.clients.flows import quotas as flows

    with open_client(bootstrap, properties) as client:
        found = client.run(flows.describe_quotas(entity, strict=strict))
    if as_json:
        print_json([{"entity": dict(each.entity), "quotas": dict(each.quotas)} for each in found])
        return
    rows = sorted(
        (*_names(each.entity), name, f"{value:.15g}")
        for each in found
        for name, value in each.quotas.items()
    )
    print_table(("ENTITY", "QUOTA", "VALUE"), rows)


def _names(entity: Entity) -> tuple[str]:
    return (
        ", ".join(
            f"{kind} {DEFAULT_NAME if name is None else name}" for kind, name in entity.items()
        ),
    )


@quota.command("alter")
@entity_options
@click.option(
    "-s",
    "--set",
    "settings",
    multiple=True,
    metavar="QUOTA=VALUE",
    help="producer_byte_rate, consumer_byte_rate (bytes per second) or request_percentage.",
)
@click.option("--unset", multiple=True, metavar="QUOTA", help="Remove a quota.")
@click.option("--dry-run", is_flag=True, help="Let the broker check the request; change nothing.")
@client_options
def alter(bootstrap: str, properties: dict[str, str], *, as_json: bool, **options: Any) -> None:
    """Set and remove quotas of a user, of a client id, or of a user with a client id.

    <default> applies to all users or client ids without a quota. Exit code 1 if the broker refuses.
    """
    entity: Entity = options["entity"]
    changes = _changes(options)
    if not entity:
        raise click.UsageError("give --user or --client-id")
    if not changes:
        raise click.UsageError("nothing to change: give --set or --unset")
    from headrace.clients.flows import quotas as flows

    with open_client(bootstrap, properties) as client:
        error = client.run(flows.alter_quotas(entity, changes, validate_only=options["dry_run"]))
    if error is not None:
        fail(f"{error.code.name}: {error.message}")
    status = "ok" if options["dry_run"] else "altered"
    if as_json:
        print_json({"entity": dict(entity), "status": status})
    else:
        say(f"{_names(entity)[0]}: {status}")


def _changes(options: dict[str, Any]) -> dict[str, float | None]:
    changes: dict[str, float | None] = dict.fromkeys(options["unset"])
    for name, text in assignments(options["settings"], "--set").items():
        try:
            changes[name] = float(text)
        except ValueError:
            raise click.UsageError(f"--set {name} expects a number, not {text!r}") from None
    return changes
