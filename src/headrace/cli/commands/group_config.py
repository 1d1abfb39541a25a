"""`headrace group config`: the configs of one group that differ from the broker's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.arguments.completion import complete_groups
from headrace.cli.arguments.connection import assignments, open_client
from headrace.cli.arguments.options import client_options
from headrace.cli.command_group import argument, command
from headrace.cli.output.configs import config_document, print_configs
from headrace.cli.output.outcomes import print_outcomes
from headrace.cli.output.printing import print_json
from headrace.config.units import plain_numbers

if TYPE_CHECKING:
    from headrace.clients.blocking import BlockingClient
    from headrace.clients.flows.alter import ConfigAlteration
    from headrace.errors import ApiError


@command("config")
@argument("name", "The name of the group.", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "-s",
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a config. Durations may have units: consumer.session.timeout.ms=1m.",
)
@click.option(
    "-d",
    "--unset",
    "--delete",
    "deleted",
    multiple=True,
    metavar="KEY",
    help="Remove a config of the group, so that the broker's value applies again.",
)
@click.option("--dry-run", is_flag=True, help="Let the broker check the request; change nothing.")
@client_options
def config(
    bootstrap: str, properties: dict[str, str], *, as_json: bool, name: str, **options: Any
) -> None:
    """Show or change the configs of a group: its timeouts, and on Headrace also its attached topics.

    Shows each effective value, its source, and the values that it overrides. With --set or --unset prints the outcome;
    exit code 1 if the broker refused the change, and then nothing has changed.
    """
    given = plain_numbers(assignments(options["settings"], "--set"))
    changes = _changes(given, options["deleted"])
    if options["dry_run"] and not changes:
        raise click.UsageError("nothing to change: give --set or --delete")
    with open_client(bootstrap, properties) as client:
        if not changes:
            _show(client, name, as_json=as_json)
            return
        outcomes = _alter(client, name, changes, dry_run=options["dry_run"])
    print_outcomes("group", outcomes, "ok" if options["dry_run"] else "altered", as_json=as_json)


def _changes(settings: dict[str, str], deleted: tuple[str, ...]) -> list[ConfigAlteration]:
    from headrace.clients.flows.alter import ConfigAlteration
    from headrace.protocol.config_operation import ConfigOperation

    both = settings.keys() & set(deleted)
    if both:
        raise click.UsageError(f"{min(both)}: --set and --delete exclude each other")
    changes = [ConfigAlteration(name, value) for name, value in settings.items()]
    return changes + [ConfigAlteration(name, None, ConfigOperation.DELETE) for name in deleted]


def _show(client: BlockingClient, name: str, *, as_json: bool) -> None:
    from headrace.config.resources import ConfigResourceType

    found = client.describe_configs(ConfigResourceType.GROUP, [name])[name]
    documents = [config_document(each) for each in found]
    if as_json:
        print_json({"group": name, "configs": documents})
    else:
        print_configs(documents)


def _alter(
    client: BlockingClient, name: str, changes: list[ConfigAlteration], *, dry_run: bool
) -> dict[str, ApiError | None]:
    from headrace.clients.flows.alter import alter_configs
    from headrace.config.resources import ConfigResourceType

    flow = alter_configs(
        client.state, ConfigResourceType.GROUP, {name: changes}, validate_only=dry_run
    )
    return client.run(flow)


COMMANDS: Final = (config,)
