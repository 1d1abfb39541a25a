"""`headrace group offsets`, `reset` and `lag`: the committed offsets of a group, and how to change them."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.arguments.completion import complete_groups, complete_topics
from headrace.cli.arguments.connection import open_client
from headrace.cli.arguments.options import client_options, preformatted
from headrace.cli.command_group import argument, command
from headrace.cli.output.internal import is_own_group, report_hidden
from headrace.cli.output.printing import confirm, fail, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.clients.admin.offsets import Reset
    from headrace.clients.blocking import BlockingClient
    from headrace.types import TopicPartition

_topics = click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:N,...]",
    shell_complete=complete_topics,
    help="Only this topic, or some of its partitions; repeatable.  [default: all with a committed offset]",
)


@command("offsets")
@argument("name", "The name of the group.", metavar="GROUP", shell_complete=complete_groups)
@_topics
@client_options
def offsets(
    bootstrap: str,
    properties: dict[str, str],
    *,
    name: str,
    topics: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show the committed offsets of a group, with their metadata.

    Exit code 1 if the group has no committed offsets for these topics.
    """
    wanted = [topic_and_partitions(text) for text in topics]
    with open_client(bootstrap, properties) as client:
        committed = client.committed_offsets(name)
    chosen = [where for where in sorted(committed) if not wanted or _is_wanted(where, wanted)]
    if not chosen:
        fail(
            f"group {name!r} has no committed offsets"
            + (" for these topics" if wanted and committed else "")
        )
    rows = [
        {
            "topic": where.topic,
            "partition": where.partition,
            "committed_offset": committed[where].offset,
            "leader_epoch": committed[where].leader_epoch,
            "metadata": committed[where].metadata,
        }
        for where in chosen
    ]
    _print_rows(rows, ("TOPIC", "PARTITION", "COMMITTED", "EPOCH", "METADATA"), as_json=as_json)


def _is_wanted(where: TopicPartition, wanted: list[tuple[str, list[int] | None]]) -> bool:
    return any(
        where.topic == topic and (numbers is None or where.partition in numbers)
        for topic, numbers in wanted
    )


def _print_rows(rows: list[dict[str, Any]], columns: tuple[str, ...], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
    else:
        print_table(columns, [list(row.values()) for row in rows])


def topic_and_partitions(text: str) -> tuple[str, list[int] | None]:
    """Read TOPIC or TOPIC:N,N; None stands for all partitions."""
    topic, colon, numbers = text.partition(":")
    if not colon:
        return topic, None
    words = numbers.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise click.UsageError(f"--topic expects TOPIC or TOPIC:N,N, not {text!r}")
    return topic, [int(word) for word in words]


RESET_HELP = preformatted(
    """
earliest, latest   the first record; the end, so that only new records are read
N                  offset N
+N, -N             N records forward, N records back
@TIME              the first record at or after a time: 2013-01-31, 2013-01-31T15:00:00Z,
                   milliseconds or seconds since 1970, or -15m before now
"""
)


@command("reset", epilog=f"Values of --to, limited to the records in the log:\n\n{RESET_HELP}")
@argument("name", "The name of the group.", metavar="GROUP", shell_complete=complete_groups)
@click.option("--to", metavar="POSITION", help="The new position; see below.")
@click.option(
    "--from-file",
    type=click.File(),
    metavar="FILE",
    help="Instead of --to: a file with the output of `group offsets --format json`, of this or another group.",
)
@_topics
@click.option("--dry-run", is_flag=True, help="Show what would be committed; commit nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def reset(bootstrap: str, properties: dict[str, str], *, as_json: bool, **options: Any) -> None:
    """Reset the committed offsets of a group without members.

    Shows the old and new offset of each partition and asks for confirmation; without a terminal, --yes or --dry-run is
    required.
    """
    from headrace.clients.admin.offsets import reset_offsets

    name, dry_run = options["name"], options["dry_run"]
    if (options["to"] is None) == (options["from_file"] is None):
        raise click.UsageError("give either --to or --from-file")
    if options["from_file"] is not None:
        if options["topics"]:
            raise click.UsageError(
                "--topic cannot be used with --from-file: the file names the partitions"
            )
        place = {"offsets": _saved(options["from_file"].read())}
    else:
        place = _place(options["to"])
    wanted = [topic_and_partitions(text) for text in options["topics"]]
    if not (options["yes"] or dry_run) and not sys.stdin.isatty():
        raise click.UsageError("this needs --yes or --dry-run without a terminal")
    with open_client(bootstrap, properties) as client:
        before = client.committed_offsets(name)
        request = _request(client, wanted, place)
        after = client.run(reset_offsets(client.state, name, request, dry_run=True))
        rows: list[dict[str, Any]] = [
            {
                "topic": where.topic,
                "partition": where.partition,
                "committed_offset": before[where].offset if where in before else None,
                "new_offset": offset,
            }
            for where, offset in after.items()
        ]
        if not as_json:
            _print_rows(rows, ("TOPIC", "PARTITION", "COMMITTED", "NEW"), as_json=False)
        if not dry_run:
            if not options["yes"]:
                confirm(f"Commit these offsets for {name}?")
            _commit(client, name, after)
    if as_json:
        print_json(rows)


def _commit(client: BlockingClient, name: str, after: dict[TopicPartition, int]) -> None:
    from headrace.clients.admin.offsets import Reset, reset_offsets

    client.run(reset_offsets(client.state, name, Reset(offsets=after), dry_run=False))


def _saved(text: str) -> dict[TopicPartition, int]:
    """Read the output of `group offsets`."""
    import json

    from headrace.types import TopicPartition

    try:
        return {
            TopicPartition(str(row["topic"]), int(row["partition"])): int(row["committed_offset"])
            for row in json.loads(text)
        }
    except (ValueError, KeyError, TypeError) as error:
        raise click.UsageError(
            f"--from-file is not the output of `group offsets --format json`: {error!r}"
        ) from None


def _place(text: str) -> dict[str, Any]:
    """Convert --to to a `Reset`."""
    from headrace.cli.arguments.offsets import OffsetSpecError, parse_time

    words = {"start": "earliest", "end": "latest", "earliest": "earliest", "latest": "latest"}
    if text.lower() in words:
        return {"to": words[text.lower()]}
    digits = text.removeprefix("+").removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(text) - len(digits) <= 1:
        return {"offset" if text == digits else "shift": int(text)}
    if text.startswith("@"):
        try:
            return {"to": parse_time(text[1:], time.time_ns() // 1_000_000)}
        except OffsetSpecError as error:
            raise click.UsageError(str(error)) from None
    raise click.UsageError(f"--to expects earliest, latest, N, +N, -N or @TIME, not {text!r}")


def _request(
    client: BlockingClient, wanted: list[tuple[str, list[int] | None]], place: dict[str, Any]
) -> Reset:
    from headrace.clients.admin.offsets import Reset, topic_partitions
    from headrace.types import TopicPartition

    if not wanted:
        return Reset(**place)
    chosen: list[TopicPartition] = []
    for topic, numbers in wanted:
        if numbers is None:
            chosen += client.run(topic_partitions(client.state, [topic]))
        else:
            chosen += [TopicPartition(topic, number) for number in numbers]
    return Reset(partitions=chosen, **place)


@command("lag")
@argument(
    "names",
    "The groups.  [default: all groups]",
    nargs=-1,
    metavar="[GROUP]...",
    shell_complete=complete_groups,
)
@click.option(
    "-i", "--internal", is_flag=True, help="Without GROUP: also the groups that `group list` hides."
)
@click.option("-w", "--watch", is_flag=True, help="Repeat until interrupted, and show rates.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="The interval of --watch.",
)
@click.option(
    "-n", "--count", type=click.IntRange(min=1), help="The number of repetitions of --watch."
)
@client_options
def lag(bootstrap: str, properties: dict[str, str], *, as_json: bool, **options: Any) -> None:
    """Show the lag of groups by topic: the number of records, and the age of the oldest one in seconds.

    Without GROUP it shows every group with committed offsets. --watch also shows the records processed and produced per
    second, and the time until the lag is zero at this rate; with --format json each line is one document. Partitions
    without a committed offset are not counted. Exit code 1 if a GROUP has no committed offsets.
    """
    rounds = 1
    if options["watch"]:
        rounds = options["count"] or sys.maxsize
    elif options["count"]:
        raise click.UsageError("--count needs --watch")
    if options["names"] and options["internal"]:
        raise click.UsageError("--internal cannot be used with GROUP")
    with open_client(bootstrap, properties) as client:
        before: dict[tuple[str, str], tuple[float, int, int]] = {}
        for number in range(rounds):
            if number:
                time.sleep(options["interval"])
            rows = _rows_of(client, options["names"], before, internal=options["internal"])
            if as_json:
                print_json(rows)
            else:
                if number:
                    click.echo()
                _print_lag(rows, watch=options["watch"])


def _rows_of(
    client: BlockingClient,
    names: tuple[str, ...],
    before: dict[tuple[str, str], tuple[float, int, int]],
    *,
    internal: bool,
) -> list[dict[str, Any]]:
    """Return the rows of the named groups, or of all groups with committed offsets."""
    from headrace.errors import ApiError

    rows = []
    for name in names:
        found = list(_lag_rows(client, name, before))
        if not found:
            fail(f"group {name!r} has no committed offsets")
        rows += found
    if names:
        return rows
    known = [each.group_id for each in client.list_groups()]
    shown = [name for name in known if internal or not is_own_group(name)]
    for name in shown:
        # Share groups and others have no committed offsets of this kind.
        with contextlib.suppress(ApiError):
            rows += _lag_rows(client, name, before)
    report_hidden(len(known) - len(shown), "group")
    return rows


def _lag_rows(
    client: BlockingClient, name: str, before: dict[tuple[str, str], tuple[float, int, int]]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each topic. `before` has the values of the previous round, and is updated."""
    from headrace.clients.admin.offsets import positions, waiting_since

    found = client.run(positions(client.state, name))
    at_s, now_ms = time.monotonic(), time.time_ns() // 1_000_000
    since = client.run(waiting_since(client.state, found))
    for topic in sorted({where.topic for where in found}):
        pairs = [pair for where, pair in found.items() if where.topic == topic]
        committed, ends = sum(c for c, _ in pairs), sum(e for _, e in pairs)
        behind = sum(max(0, e - c) for c, e in pairs)
        waiting = [since_ms for where, since_ms in since.items() if where.topic == topic]
        row: dict[str, Any] = {
            "group": name,
            "topic": topic,
            "partitions": len(pairs),
            "lag": behind,
            "lag_s": round(max(0, now_ms - min(waiting)) / 1000, 1) if waiting else None,
            "finished_per_s": None,
            "written_per_s": None,
            "done_in_s": None,
        }
        last = before.get((name, topic))
        if last is not None:
            passed_s = max(at_s - last[0], 1e-3)
            row["finished_per_s"] = round((committed - last[1]) / passed_s, 1)
            row["written_per_s"] = round((ends - last[2]) / passed_s, 1)
            gained = row["finished_per_s"] - row["written_per_s"]
            row["done_in_s"] = 0 if not behind else round(behind / gained) if gained > 0 else None
        before[name, topic] = at_s, committed, ends
        yield row


def _print_lag(rows: list[dict[str, Any]], *, watch: bool) -> None:
    columns = (
        "GROUP",
        "TOPIC",
        "PARTITIONS",
        "LAG",
        "LAG S",
        "FINISHED/S",
        "WRITTEN/S",
        "DONE IN S",
    )
    shown = len(columns) if watch else 5
    print_table(columns[:shown], [list(row.values())[:shown] for row in rows])


COMMANDS: Final = (offsets, reset, lag)
