"""`headrace group create`, `attach`, `detach` and `remove-member`: the topics and members of a group."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.arguments.completion import complete_groups, complete_topics
from headrace.cli.arguments.connection import open_client
from headrace.cli.arguments.options import client_options
from headrace.cli.command_group import argument, command
from headrace.cli.output.outcomes import print_outcomes
from headrace.cli.output.printing import confirm, print_json, print_table

if TYPE_CHECKING:
    from headrace.clients.flows.attachments import Attachments
    from headrace.errors import ApiError

_dry_run = click.option(
    "--dry-run", is_flag=True, help="Let the broker check the request; change nothing."
)


def attached_document(found: Attachments) -> dict[str, Any]:
    """Return the topics or pattern to which a group is attached, for JSON."""
    return {
        "topics": sorted(found.topics),
        "pattern": found.pattern,
        "assignor": found.assignor,
    }


def _print_attached(name: str, found: Attachments, *, as_json: bool) -> None:
    if as_json:
        print_json({"group": name, **attached_document(found)})
        return
    row = (name, ",".join(sorted(found.topics)) or None, found.pattern, found.assignor)
    print_table(("GROUP", "TOPICS", "PATTERN", "ASSIGNOR"), [row])


@command("create")
@argument("name", "The name of the new group.", metavar="GROUP")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="A topic that the group reads; repeatable.",
)
@click.option(
    "--pattern",
    metavar="REGEX",
    help="Instead of topics: the group reads all topics with matching names.",
)
@click.option(
    "-a",
    "--assignor",
    metavar="NAME",
    help="The assignor: range (the default), roundrobin, sticky, cooperative-sticky, equal, or a custom one that the "
    "members have.",
)
@_dry_run
@client_options
def create(bootstrap: str, properties: dict[str, str], *, as_json: bool, **options: Any) -> None:
    """Create a group that is attached to topics, on Headrace.

    Consumers that join it without a subscription read these topics. On Kafka the first consumer creates a group.
    """
    from headrace.clients.flows.attachments import create_group

    if options["topics"] and options["pattern"]:
        raise click.UsageError("--topic and --pattern exclude each other")
    name = options["name"]
    with open_client(bootstrap, properties) as client:
        flow = create_group(
            client.state,
            name,
            assignor=options["assignor"],
            topics=options["topics"],
            pattern=options["pattern"],
            validate_only=options["dry_run"],
        )
        client.run(flow)
    print_outcomes(
        "group", {name: None}, "ok" if options["dry_run"] else "created", as_json=as_json
    )


@command("attach")
@argument("name", "The name of the group.", metavar="GROUP", shell_complete=complete_groups)
@argument(
    "topics",
    "The topics to attach. Use either topics or --pattern.",
    nargs=-1,
    metavar="[TOPIC]...",
    shell_complete=complete_topics,
)
@click.option(
    "--pattern", metavar="REGEX", help="Instead of topics: all topics with matching names."
)
@_dry_run
@client_options
def attach(
    bootstrap: str,
    properties: dict[str, str],
    *,
    name: str,
    topics: tuple[str, ...],
    pattern: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Attach a group to more topics, or to a pattern. Running members start to read them.

    Prints all topics or the pattern to which the group is then attached.
    """
    from headrace.clients.flows import attachments

    if bool(topics) == (pattern is not None):
        raise click.UsageError("give either TOPICs or --pattern")
    with open_client(bootstrap, properties) as client:
        flow = attachments.attach(client.state, name, topics, pattern, validate_only=dry_run)
        found = client.run(flow)
    if dry_run:
        print_outcomes("group", {name: None}, "ok", as_json=as_json)
    else:
        _print_attached(name, found, as_json=as_json)


@command("detach")
@argument("name", "The name of the group.", metavar="GROUP", shell_complete=complete_groups)
@argument(
    "topics",
    "The topics to detach. Use either topics or --all.",
    nargs=-1,
    metavar="[TOPIC]...",
    shell_complete=complete_topics,
)
@click.option(
    "--all", "everything", is_flag=True, help="Detach from all topics, and from the pattern."
)
@_dry_run
@client_options
def detach(
    bootstrap: str,
    properties: dict[str, str],
    *,
    name: str,
    topics: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Detach a group from topics. Its members stop reading them; committed offsets stay.

    Prints the topics or the pattern to which the group is still attached.
    """
    from headrace.clients.flows import attachments

    if bool(topics) == everything:
        raise click.UsageError("give either TOPICs or --all")
    wanted = None if everything else topics
    with open_client(bootstrap, properties) as client:
        flow = attachments.detach(client.state, name, wanted, validate_only=dry_run)
        found = client.run(flow)
    if dry_run:
        print_outcomes("group", {name: None}, "ok", as_json=as_json)
    else:
        _print_attached(name, found, as_json=as_json)


@command("remove-member")
@argument("name", "The name of the group.", metavar="GROUP", shell_complete=complete_groups)
@argument(
    "members",
    "The ids of the members. Static members have a --instance instead.",
    nargs=-1,
    metavar="[MEMBER]...",
)
@click.option(
    "-i",
    "--instance",
    "instances",
    multiple=True,
    metavar="NAME",
    help="The group.instance.id of a static member; repeatable.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def remove_member(
    bootstrap: str,
    properties: dict[str, str],
    *,
    name: str,
    members: tuple[str, ...],
    instances: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Remove members from a group, by member id or group.instance.id. Other members take over their partitions.

    A running member joins again; `stop-member` prevents that. Asks for confirmation; without a terminal, --yes is
    required. Prints one row per member; exit code 1 if one is missing.
    """
    from headrace.clients.flows.groups import remove_member as flow
    from headrace.errors import ApiError

    if not members and not instances:
        raise click.UsageError(
            "give a MEMBER or --instance; `headrace group describe` lists the members"
        )
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("removing needs --yes without a terminal")
        confirm(f"Remove {', '.join([*members, *instances])}?")
    outcomes: dict[str, ApiError | None] = {}
    with open_client(bootstrap, properties) as client:
        who = [(member, None) for member in members] + [("", instance) for instance in instances]
        for member, instance in who:
            label = instance or member
            try:
                client.run(flow(client.state, name, member, instance))
                outcomes[label] = None
            except ApiError as error:
                outcomes[label] = error
    print_outcomes("member", outcomes, "removed", as_json=as_json)


COMMANDS: Final = (create, attach, detach, remove_member)
