"""`headrace group`: list and describe consumer groups. Commands that change groups are in the modules `group_*`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.arguments.completion import complete_groups
from headrace.cli.arguments.connection import open_client
from headrace.cli.arguments.options import client_options
from headrace.cli.command_group import CommandGroup, argument
from headrace.cli.commands import (
    group_attach,
    group_changes,
    group_config,
    group_offsets,
    group_stop,
)
from headrace.cli.output.internal import is_own_group, report_hidden
from headrace.cli.output.printing import fail, print_facts, print_json, print_table, say

if TYPE_CHECKING:
    from headrace.clients.blocking import BlockingClient, GroupDescription
    from headrace.types import TopicPartition


@click.group(cls=CommandGroup)
def group() -> None:
    """List, describe, reset and delete consumer groups, on Headrace or any Kafka; attach topics, on Headrace."""


for command in (
    *group_attach.COMMANDS,
    *group_offsets.COMMANDS,
    *group_config.COMMANDS,
    *group_changes.COMMANDS,
    *group_stop.COMMANDS,
):
    group.add_command(command)


@group.command("list")
@click.option(
    "-i",
    "--internal",
    is_flag=True,
    help="Also list the groups of `dlq redrive` and of Spark sinks.",
)
@client_options
def list_groups(
    bootstrap: str, properties: dict[str, str], *, internal: bool, as_json: bool
) -> None:
    """List consumer groups and their states."""
    with open_client(bootstrap, properties) as client:
        known = client.list_groups()
    listings = [each for each in known if internal or not is_own_group(each.group_id)]
    if as_json:
        print_json(
            [
                {
                    "group": listing.group_id,
                    "state": listing.state,
                    "protocol_type": listing.protocol_type,
                    "coordinator": listing.coordinator,
                }
                for listing in listings
            ]
        )
        return
    rows = [(listing.group_id, listing.state, listing.coordinator) for listing in listings]
    print_table(("GROUP", "STATE", "COORDINATOR"), rows)
    report_hidden(len(known) - len(listings), "group")


@group.command("describe")
@argument(
    "names",
    "The groups to describe.",
    nargs=-1,
    required=True,
    metavar="GROUP...",
    shell_complete=complete_groups,
)
@client_options
def describe(
    bootstrap: str, properties: dict[str, str], *, names: tuple[str, ...], as_json: bool
) -> None:
    """Describe groups: state, members, and for each partition the committed offset and the lag.

    Exit code 1 if a group does not exist.
    """
    with open_client(bootstrap, properties) as client:
        described = client.describe_groups(names)
        documents = [_document(client, described[name]) for name in names]
    if as_json:
        print_json(documents)
        return
    for index, document in enumerate(documents):
        if index:
            click.echo()
        _print_document(document)


def _document(client: BlockingClient, group: GroupDescription) -> dict[str, Any]:
    committed = client.committed_offsets(group.group_id)
    if group.state == "Dead" and not committed:
        fail(f"no group {group.group_id!r}")
    state = group.state
    if state == "Dead":
        # Committed offsets without a classic group: a group of the newer protocol. Only ListGroups returns its state.
        listed = {listing.group_id: listing.state for listing in client.list_groups()}
        state = listed.get(group.group_id, "Empty")
        if state != "Empty":
            say(
                f"group {group.group_id!r} uses the newer protocol (KIP-848): members are not shown"
            )
    owners = {where: member for member in group.members for where in member.assignment}
    partitions = sorted(set(committed) | set(owners))
    ends = _end_offsets(client, partitions)
    rows = []
    for where in partitions:
        offset = committed[where].offset if where in committed else None
        end = ends.get(where)
        owner = owners.get(where)
        rows.append(
            {
                "topic": where.topic,
                "partition": where.partition,
                "committed_offset": offset,
                "end_offset": end,
                "lag": None if offset is None or end is None else max(0, end - offset),
                "member_id": owner.member_id if owner else None,
                "client_id": owner.client_id if owner else None,
                "host": owner.client_host if owner else None,
            }
        )
    return {
        "group": group.group_id,
        "state": state,
        "coordinator": group.coordinator,
        "protocol_type": group.protocol_type,
        "assignor": group.protocol,
        "attached": _attached(client, group.group_id),
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.client_host,
                "group_instance_id": member.group_instance_id,
                "partitions": [
                    {"topic": where.topic, "partition": where.partition}
                    for where in member.assignment
                ],
            }
            for member in group.members
        ],
        "partitions": rows,
        "total_lag": sum(row["lag"] or 0 for row in rows),
    }


def _attached(client: BlockingClient, name: str) -> dict[str, Any] | None:
    """Return the attached topics or pattern of the group; None without, or if the broker does not support them."""
    from headrace.clients.flows.attachments import group_attachments
    from headrace.errors import ApiError, ConfigError

    try:
        found = client.run(group_attachments(client.state, name))
    except (ApiError, ConfigError):
        return None
    return group_attach.attached_document(found) if found.configured else None


def _end_offsets(
    client: BlockingClient, partitions: list[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the end offsets. A topic that was deleted after the commit has none."""
    from headrace.clients.blocking import LATEST

    topics = client.metadata(sorted({where.topic for where in partitions})).topics
    present = [
        where
        for where in partitions
        if where.topic in topics
        and where.partition in topics[where.topic].partitions
        and topics[where.topic].partitions[where.partition].leader >= 0
    ]
    if not present:
        return {}
    found = client.list_offsets(dict.fromkeys(present, LATEST))
    return {where: listed.offset for where, listed in found.items()}


def _print_members(members: list[dict[str, Any]]) -> None:
    if not members:
        return
    click.echo()
    print_table(
        ("MEMBER", "INSTANCE", "CLIENT", "HOST", "PARTITIONS"),
        [
            (
                member["member_id"],
                member["group_instance_id"],
                member["client_id"],
                member["host"],
                len(member["partitions"]),
            )
            for member in members
        ],
    )


def _print_document(document: dict[str, Any]) -> None:
    facts = {
        "group": document["group"],
        "state": document["state"],
        "coordinator": document["coordinator"],
        "assignor": document["assignor"] or "-",
        "members": len(document["members"]),
        "total lag": document["total_lag"],
    }
    if document["attached"] is not None:
        attached = document["attached"]
        facts["attached to"] = attached["pattern"] or ", ".join(attached["topics"]) or "nothing"
    print_facts(facts, 13)
    _print_members(document["members"])
    if not document["partitions"]:
        return
    click.echo()
    columns = ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "MEMBER", "HOST")
    keys = ("topic", "partition", "committed_offset", "end_offset", "lag", "member_id", "host")
    print_table(columns, [[row[key] for key in keys] for row in document["partitions"]])
