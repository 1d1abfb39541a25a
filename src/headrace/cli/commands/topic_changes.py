"""`headrace topic alter`, `add-partitions` and `truncate`: change existing topics."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.arguments.completion import complete_topics
from headrace.cli.arguments.connection import assignments, open_client
from headrace.cli.arguments.options import client_options
from headrace.cli.command_group import argument, command
from headrace.cli.output.configs import look_at_strategies
from headrace.cli.output.outcomes import print_outcomes
from headrace.cli.output.printing import confirm, fail, print_json, print_table
from headrace.config.units import plain_numbers

if TYPE_CHECKING:
    from headrace.clients.blocking import BlockingClient
    from headrace.clients.flows.alter import ConfigAlteration
    from headrace.errors import ApiError
    from headrace.types import TopicPartition


@command("alter")
@argument(
    "names",
    "The topics to change.",
    nargs=-1,
    required=True,
    metavar="TOPIC...",
    shell_complete=complete_topics,
)
@click.option(
    "-p", "--partitions", type=click.IntRange(min=1), help="The new number of partitions."
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a topic config; repeatable. Values may have units: retention.ms=1h, segment.bytes=64MiB.",
)
@click.option(
    "--append", multiple=True, metavar="KEY=VALUE", help="Append to a list config; repeatable."
)
@click.option(
    "--subtract", multiple=True, metavar="KEY=VALUE", help="Remove from a list config; repeatable."
)
@click.option(
    "--unset",
    multiple=True,
    metavar="KEY",
    help="Remove a config of the topic, so that the broker's value applies again; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Let the broker check the request; change nothing.")
@client_options
def alter(bootstrap: str, properties: dict[str, str], *, as_json: bool, **options: Any) -> None:
    """Change configs of topics, and add partitions.

    Prints one row per topic; exit code 1 if one could not be changed.
    """
    changes = _changes(options)
    look_at_strategies({each.name: each.value for each in changes if each.value is not None})
    if not changes and options["partitions"] is None:
        raise click.UsageError("nothing to change: give --partitions, --config or --unset")
    names: tuple[str, ...] = options["names"]
    with open_client(bootstrap, properties) as client:
        outcomes = _alter(client, names, changes, options["partitions"], dry_run=options["dry_run"])
    print_outcomes("topic", outcomes, "ok" if options["dry_run"] else "altered", as_json=as_json)


def _changes(options: dict[str, Any]) -> list[ConfigAlteration]:
    from headrace.clients.flows.alter import ConfigAlteration
    from headrace.protocol.config_operation import ConfigOperation

    given = {
        ConfigOperation.SET: ("configs", "--config"),
        ConfigOperation.APPEND: ("append", "--append"),
        ConfigOperation.SUBTRACT: ("subtract", "--subtract"),
    }
    changes = [
        ConfigAlteration(name, value, operation)
        for operation, (key, option) in given.items()
        for name, value in plain_numbers(assignments(options[key], option)).items()
    ]
    changes += [ConfigAlteration(name, None, ConfigOperation.DELETE) for name in options["unset"]]
    return changes


def _alter(
    client: BlockingClient,
    names: tuple[str, ...],
    changes: list[ConfigAlteration],
    partitions: int | None,
    *,
    dry_run: bool,
) -> dict[str, ApiError | None]:
    from headrace.clients.flows import alter as flows
    from headrace.config.resources import ConfigResourceType

    outcomes: dict[str, ApiError | None] = dict.fromkeys(names)
    if changes:
        wanted = dict.fromkeys(names, changes)
        flow = flows.alter_configs(
            client.state, ConfigResourceType.TOPIC, wanted, validate_only=dry_run
        )
        outcomes |= client.run(flow)
    # If the configs of a topic were refused, its partitions stay unchanged.
    counts = {name: partitions for name in names if outcomes[name] is None and partitions}
    if counts:
        outcomes |= client.run(flows.create_partitions(client.state, counts, validate_only=dry_run))
    return outcomes


@command("add-partitions")
@argument(
    "names",
    "The topics that get more partitions.",
    nargs=-1,
    required=True,
    metavar="TOPIC...",
    shell_complete=complete_topics,
)
@click.option(
    "-n",
    "--num",
    type=click.IntRange(min=1),
    required=True,
    help="The number of partitions to add.",
)
@click.option("--dry-run", is_flag=True, help="Let the broker check the request; change nothing.")
@client_options
def add_partitions(
    bootstrap: str,
    properties: dict[str, str],
    *,
    names: tuple[str, ...],
    num: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Add partitions to topics.

    Existing records stay in their partitions. New records of some keys go to other partitions than before.
    """
    from headrace.clients.flows import alter as flows

    with open_client(bootstrap, properties) as client:
        known = client.metadata(names).topics
        for name in names:
            if known[name].error:
                fail(f"no topic {name!r}" if known[name].error == 3 else f"topic {name!r}")
        counts = {name: len(known[name].partitions) + num for name in names}
        flow = flows.create_partitions(client.state, counts, validate_only=dry_run)
        outcomes = client.run(flow)
    print_outcomes("topic", outcomes, "ok" if dry_run else "altered", as_json=as_json)


@command("truncate")
@argument("name", "The topic.", metavar="TOPIC", shell_complete=complete_topics)
@click.option(
    "-o",
    "--offset",
    required=True,
    metavar="OFFSET|end|@TIME",
    help="The first offset to keep; or end, or a time as for `consume --offset`.",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    multiple=True,
    type=click.IntRange(min=0),
    help="Only this partition; repeatable.  [default: all partitions]",
)
@click.option(
    "--dry-run", is_flag=True, help="Show the new first offset of each partition; delete nothing."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def truncate(bootstrap: str, properties: dict[str, str], *, as_json: bool, **options: Any) -> None:
    """Delete the records of a topic below an offset, permanently.

    Asks for confirmation; without a terminal, --yes is required.
    """
    name, offset = options["name"], options["offset"]
    target = _target(offset)
    if not (options["yes"] or options["dry_run"]):
        if not sys.stdin.isatty():
            raise click.UsageError("deleting needs --yes without a terminal")
        confirm(f"Delete the records of {name} below {offset}?")
    from headrace.clients.flows import alter as flows

    with open_client(bootstrap, properties) as client:
        offsets = _offsets(client, _partitions(client, name, options["partitions"]), target)
        if options["dry_run"]:
            starts = _starts_after(client, offsets)
        else:
            starts = client.run(flows.delete_records(client.state, offsets))
    rows = [(where.partition, start) for where, start in sorted(starts.items())]
    if as_json:
        print_json([{"partition": number, "start_offset": start} for number, start in rows])
    else:
        print_table(("PARTITION", "START"), rows)


def _target(text: str) -> tuple[str, int]:
    """Read --offset: ("offset", N), ("end", 0) or ("time", milliseconds)."""
    import time

    from headrace.cli.arguments.offsets import OffsetSpecError, parse_offset

    try:
        spec = parse_offset(text, time.time_ns() // 1_000_000)
    except OffsetSpecError as error:
        raise click.UsageError(str(error)) from None
    if spec.stop is not None or spec.first.kind not in {"offset", "end", "time"}:
        raise click.UsageError("--offset expects a number, end or @TIME")
    return spec.first.kind, spec.first.value


def _partitions(client: BlockingClient, name: str, wanted: tuple[int, ...]) -> list[TopicPartition]:
    from headrace.types import TopicPartition

    topic = client.metadata([name]).topics[name]
    if topic.error:
        fail(f"no topic {name!r}" if topic.error == 3 else f"topic {name!r}: {topic.error.name}")
    return [TopicPartition(name, number) for number in wanted or sorted(topic.partitions)]


def _offsets(
    client: BlockingClient, partitions: list[TopicPartition], target: tuple[str, int]
) -> dict[TopicPartition, int]:
    from headrace.clients.flows.alter import HIGH_WATERMARK

    kind, value = target
    if kind != "time":
        return dict.fromkeys(partitions, HIGH_WATERMARK if kind == "end" else value)
    found = client.list_offsets(dict.fromkeys(partitions, value))
    # Without a record at or after the time, all records are older.
    return {
        where: listed.offset if listed.offset >= 0 else HIGH_WATERMARK
        for where, listed in found.items()
    }


def _starts_after(
    client: BlockingClient, offsets: dict[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return the new first offset of each partition. An offset beyond the end is refused, as a broker does."""
    from headrace.clients.blocking import EARLIEST, LATEST
    from headrace.clients.flows.alter import HIGH_WATERMARK

    starts = client.list_offsets(dict.fromkeys(offsets, EARLIEST))
    ends = client.list_offsets(dict.fromkeys(offsets, LATEST))
    after = {}
    for where, offset in offsets.items():
        end = ends[where].offset
        if offset > end:
            fail(f"partition {where.partition} ends at {end}, before offset {offset}")
        after[where] = end if offset == HIGH_WATERMARK else max(offset, starts[where].offset)
    return after


COMMANDS: Final = (alter, add_partitions, truncate)
