"""`headrace health`: check that a broker answers, and that topics have leaders."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.arguments.completion import complete_topics
from headrace.cli.arguments.connection import open_client
from headrace.cli.arguments.options import client_options
from headrace.cli.arguments.types import DurationType
from headrace.cli.command_group import command
from headrace.cli.output.printing import print_json, print_table

if TYPE_CHECKING:
    from headrace.clients.blocking import BlockingClient, TopicMetadata

PAUSE_S: Final = 0.2
"""The pause between two attempts, in seconds."""
ATTEMPT_MS: Final = 10_000
"""The timeout of one attempt in milliseconds, unless `request.timeout.ms` is set."""


@command("health")
@click.option(
    "--wait",
    "wait_ms",
    type=DurationType(),
    default="0s",
    help="Wait at most this long until all checks pass, e.g. 30s.",
)
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Also check that this topic exists and each of its partitions has a leader; repeatable.",
)
@client_options
def health(
    bootstrap: str,
    properties: dict[str, Any],
    *,
    wait_ms: int,
    topics: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check that a broker accepts this client, answers, and knows its cluster.

    Examples: headrace health --wait 30s && headrace topic create orders; as a health check of a container: headrace
    health -t orders.

    Exit codes: 0 all checks pass, 1 one fails, 2 wrong usage or configuration. --wait does not wait if the broker
    rejects the user or the certificate.
    """
    began = time.monotonic()
    while True:
        checks, final = _examine(bootstrap, properties, topics)
        healthy = all(each["state"] == "ok" for each in checks)
        waited_s = time.monotonic() - began
        if healthy or final or waited_s >= wait_ms / 1000:
            break
        time.sleep(min(PAUSE_S, max(0.0, wait_ms / 1000 - waited_s)))
    if as_json:
        print_json({"healthy": healthy, "waited_s": round(waited_s, 3), "checks": checks})
    else:
        rows = [(each["check"], each["state"], each["found"]) for each in checks]
        print_table(("CHECK", "STATE", "FOUND"), rows)
    if not healthy:
        raise SystemExit(1)


def _examine(
    bootstrap: str, properties: dict[str, Any], topics: tuple[str, ...]
) -> tuple[list[dict[str, str]], bool]:
    """Return the results of the checks, and whether waiting cannot change them."""
    from headrace.errors import AuthenticationError, ConfigError, HeadraceError

    checks: list[dict[str, str]] = []
    given = {"request.timeout.ms": str(ATTEMPT_MS), **properties}
    what = "connection"
    try:
        with open_client(bootstrap, given) as client:
            checks.append(_check(what, f"{properties.get('bootstrap.servers', bootstrap)} answers"))
            what = "metadata"
            checks.append(_check(what, _metadata(client)))
            for topic in topics:
                what = f"topic {topic}"
                checks.append(_topic(what, client.metadata([topic]).topics[topic]))
    except ConfigError:
        raise
    except HeadraceError as error:
        checks.append(_check(what, str(error), state="failed"))
        return checks, isinstance(error, AuthenticationError)
    return checks, False


def _check(check: str, found: str, *, state: str = "ok") -> dict[str, str]:
    return {"check": check, "state": state, "found": found}


def _metadata(client: BlockingClient) -> str:
    known = client.metadata(())
    brokers = len(known.brokers)
    return f"cluster {known.cluster_id}, {brokers} broker{'' if brokers == 1 else 's'}"


def _topic(check: str, found: TopicMetadata) -> dict[str, str]:
    if found.error:
        return _check(check, found.error.description, state="failed")
    without = [number for number, each in found.partitions.items() if each.leader < 0]
    if without:
        numbers = ", ".join(map(str, without[:10]))
        return _check(check, f"no leader for {len(without)} partitions: {numbers}", state="failed")
    return _check(check, f"{len(found.partitions)} partitions have leaders")
