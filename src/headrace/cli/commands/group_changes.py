"""`headrace group delete` and `delete-offsets`: delete groups and their committed offsets."""

from __future__ import annotations

import sys
from typing import Final

import click

from headrace.cli.arguments.completion import complete_groups, complete_topics
from headrace.cli.arguments.connection import open_client
from headrace.cli.arguments.options import client_options
from headrace.cli.command_group import argument, command
from headrace.cli.commands.group_offsets import topic_and_partitions
from headrace.cli.output.outcomes import print_outcomes
from headrace.cli.output.printing import confirm, fail


def _confirm(what: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("deleting needs --yes without a terminal")
    confirm(f"Delete {what}?")


@command("delete")
@argument(
    "names",
    "The groups to delete.",
    nargs=-1,
    required=True,
    metavar="GROUP...",
    shell_complete=complete_groups,
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def delete(
    bootstrap: str, properties: dict[str, str], *, names: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Delete groups without members, and their committed offsets.

    Asks for confirmation; without a terminal, --yes is required. Prints one row per group; exit code 1 if one could not
    be deleted.
    """
    from headrace.clients.flows import alter as flows

    _confirm(f"{', '.join(names)} and their committed offsets", yes=yes)
    with open_client(bootstrap, properties) as client:
        outcomes = client.run(flows.delete_groups(client.state, dict.fromkeys(names)))
    print_outcomes("group", outcomes, "deleted", as_json=as_json)


@command("delete-offsets")
@argument("name", "The name of the group.", metavar="GROUP", shell_complete=complete_groups)
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="TOPIC[:N,...]",
    shell_complete=complete_topics,
    help="The topic, or some of its partitions, whose committed offsets are deleted; repeatable.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def delete_offsets(
    bootstrap: str,
    properties: dict[str, str],
    *,
    name: str,
    topics: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Delete committed offsets of a group for topics that its members are not subscribed to.

    Asks for confirmation; without a terminal, --yes is required. Prints one row per partition; exit code 1 if an
    offset could not be deleted.
    """
    from headrace.clients.flows import alter as flows
    from headrace.types import TopicPartition

    wanted = [topic_and_partitions(text) for text in topics]
    _confirm(f"offsets of {name} for {', '.join(topics)}", yes=yes)
    with open_client(bootstrap, properties) as client:
        committed = client.committed_offsets(name)
        partitions = [
            where
            for topic, numbers in wanted
            for where in (
                sorted(known for known in committed if known.topic == topic)
                if numbers is None
                else [TopicPartition(topic, number) for number in numbers]
            )
        ]
        if not partitions:
            fail(f"group {name!r} has no committed offsets for {', '.join(topics)}")
        outcomes = client.run(flows.delete_offsets(client.state, name, partitions))
    named = {f"{where.topic}:{where.partition}": error for where, error in outcomes.items()}
    print_outcomes("partition", named, "deleted", as_json=as_json)


COMMANDS: Final = (delete, delete_offsets)
