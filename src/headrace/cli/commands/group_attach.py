"""`headrace group create`, `attach`, `detach` and `remove-member`: what a group reads, and who is in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.arguments.completion import complete_groups, complete_topics
from headrace.cli.arguments.connection import open_client
from headrace.cli.arguments.options import client_options
from headrace.cli.output.outcomes import print_outcomes
from headrace.cli.output.printing import confirm, print_json, print_table

if TYPE_CHECKING:
    from headrace.clients.flows.attachments import Attachments
    from headrace.errors import ApiError

_dry_run = click.option(
    "--dry-run", is_flag=True, help="Have the broker check the request, change nothing."
)


def attached_document(found: Attachments) -> dict[str, Any]:
    """Return what a group is attached to, for JSON."""
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


@click.command("create")
@click.argument("name", metavar="GROUP")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="What it reads.",
)
@click.option("--pattern", metavar="REGEX", help="Or: it reads all topics with such a name.")
@click.option(
    "-a",
    "--assignor",
    metavar="NAME",
    help="Who reads which partition: range (the default), roundrobin, sticky, cooperative-sticky, equal, or the "
    "members' own.",
)
@_dry_run
@client_options
def create(bootstrap: str, properties: dict[str, str], *, as_json: bool, **options: Any) -> None:
    """Create a group, on Headrace: consumers that join it and subscribe to nothing read what it is attached to.

    On Kafka a group comes into being when its first consumer subscribes.
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


@click.command("attach")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@click.option("--pattern", metavar="REGEX", help="All topics with such a name, in place of topics.")
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
    """Attach a group to more topics, or to a pattern; its members begin to read them while they run.

    Prints what the group is attached to then.
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


@click.command("detach")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=complete_topics)
@click.option("--all", "everything", is_flag=True, help="From all topics, and from its pattern.")
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
    """Detach a group from topics; its members stop reading them. What it has committed stays.

    Prints what the group is attached to then.
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


@click.command("remove-member")
@click.argument("name", metavar="GROUP", shell_complete=complete_groups)
@click.argument("members", nargs=-1, metavar="[MEMBER]...")
@click.option(
    "-i", "--instance", "instances", multiple=True, metavar="NAME", help="A static member."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
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
    """Take members out of a group, by their ids or their static names; the others take over what they read.

    A member that is alive joins again: see `stop-member`. Prints one row per member; exit code 1 if one is not there.
    """
    from headrace.clients.flows.groups import remove_member as flow
    from headrace.errors import ApiError

    if not members and not instances:
        raise click.UsageError(
            "name a MEMBER or an --instance; `headrace group describe` lists them"
        )
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("removing needs --yes where nobody can be asked")
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
