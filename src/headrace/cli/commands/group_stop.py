"""`headrace group stop-member`: a member finishes, commits and leaves, and the command waits for it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import click

from headrace.cli.arguments.completion import complete_groups
from headrace.cli.arguments.connection import open_client
from headrace.cli.arguments.options import client_options
from headrace.cli.arguments.types import DurationType
from headrace.cli.command_group import argument, command
from headrace.cli.output.outcomes import print_outcomes
from headrace.cli.output.printing import say

if TYPE_CHECKING:
    from headrace.clients.blocking import BlockingClient
    from headrace.clients.flows.stopping import StopOutcome, StopProgress
    from headrace.errors import ApiError

_WORDS: Final[dict[StopOutcome, str]] = {
    "stopped": "stopped",
    "removed": "removed by force",
    "gone": "gone",
}


@command("stop-member")
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
@click.option(
    "--timeout",
    "timeout_ms",
    type=DurationType(),
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="The time that a member has to leave. After it the member is removed by force.",
)
@client_options
def stop_member(
    bootstrap: str,
    properties: dict[str, str],
    *,
    name: str,
    members: tuple[str, ...],
    instances: tuple[str, ...],
    timeout_ms: int,
    as_json: bool,
) -> None:
    """Stop members: they finish, commit, leave and do not join again. Waits until they have left.

    A member that does not leave in time, or whose client does not support this, is removed by force and may join
    again. Prints one row per member; exit code 1 if one is missing or was removed by force. Only on Headrace.
    """
    from headrace.errors import ApiError

    if not members and not instances:
        raise click.UsageError(
            "give a MEMBER or --instance; `headrace group describe` lists the members"
        )
    outcomes: dict[str, ApiError | None] = {}
    words: dict[str, str] = {}
    with open_client(bootstrap, properties) as client:
        who = [(member, None) for member in members] + [("", instance) for instance in instances]
        for member, instance in who:
            label = instance or member
            words[label] = ""
            try:
                words[label] = _WORDS[_stop(client, name, member, instance, timeout_ms)]
                outcomes[label] = None
            except ApiError as error:
                outcomes[label] = error
    print_outcomes("member", outcomes, words, as_json=as_json)
    forced = [label for label, word in words.items() if word == _WORDS["removed"]]
    if forced:
        say(
            *(
                f"member {label} did not leave in time and was removed; it may join again"
                for label in forced
            )
        )
        raise SystemExit(1)


def _stop(
    client: BlockingClient, group: str, member_id: str, instance: str | None, timeout_ms: int
) -> StopOutcome:
    from headrace.clients.flows.stopping import stop_member as flow

    asked = False

    def progress(at: StopProgress) -> None:
        nonlocal asked
        if not asked:
            asked = True
            seconds = math.ceil(at.remaining_ms / 1000)
            say(f"member {at.member_id} was asked to stop; it has {seconds} s to leave")

    wanted = flow(
        client.state,
        group,
        member_id=member_id,
        group_instance_id=instance,
        timeout_ms=timeout_ms,
        now_ms=client.driver.now_ms,
        on_progress=progress,
    )
    return client.run(wanted, timeout_ms + client.config.request_timeout_ms)


COMMANDS: Final = (stop_member,)
