"""`headrace topic`: create, list, describe and delete topics. Commands that change topics are in `topic_changes.py`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.arguments.completion import complete_topics
from headrace.cli.arguments.connection import assignments, open_client
from headrace.cli.arguments.options import client_options
from headrace.cli.command_group import CommandGroup, argument
from headrace.cli.commands import topic_changes
from headrace.cli.commands.topic_groups import topic_groups
from headrace.cli.output.configs import config_document, look_at_strategies, print_configs
from headrace.cli.output.internal import is_internal_topic, report_hidden
from headrace.cli.output.outcomes import print_outcomes
from headrace.cli.output.printing import confirm, fail, print_facts, print_json, print_table, say
from headrace.config.units import plain_numbers

if TYPE_CHECKING:
    from headrace.clients.blocking import BlockingClient, ConfigEntry, TopicMetadata
    from headrace.clients.flows.list_offsets import ScheduledCount


@click.group(cls=CommandGroup)
def topic() -> None:
    """Create, list, describe, change and delete topics, on Headrace or any Kafka."""


for command in topic_changes.COMMANDS:
    topic.add_command(command)


@topic.command("create")
@argument("names", "The names of the new topics.", nargs=-1, required=True, metavar="TOPIC...")
@click.option(
    "-p",
    "--partitions",
    type=click.IntRange(min=1),
    help="The number of partitions.  [default: that of the broker]",
)
@click.option(
    "-r",
    "--replicas",
    "--replication-factor",
    "replicas",
    type=click.IntRange(min=1),
    help="The number of replicas.  [default: that of the broker]",
)
@click.option(
    "-c",
    "--config",
    "configs",
    multiple=True,
    metavar="KEY=VALUE",
    help="A topic config; repeatable. Values may have units: retention.ms=1h, segment.bytes=64MiB.",
)
@click.option("--storage", metavar="NAME", help="The storage of the records (headrace.storage).")
@click.option(
    "--if-not-exists", is_flag=True, help="Do not fail if the topic exists; it stays unchanged."
)
@click.option("--dry-run", is_flag=True, help="Let the broker check the request; create nothing.")
@client_options
def create(bootstrap: str, properties: dict[str, str], *, as_json: bool, **options: Any) -> None:
    """Create topics.

    Prints one row per topic; exit code 1 if one could not be created.
    """
    from headrace.clients.blocking import NewTopic
    from headrace.errors import ErrorCode

    configs = plain_numbers(assignments(options["configs"], "--config"))
    if options["storage"] is not None:
        configs = {**configs, "headrace.storage": options["storage"]}
    look_at_strategies(configs)
    topics = [
        NewTopic(name, options["partitions"] or -1, options["replicas"] or -1, configs)
        for name in options["names"]
    ]
    with open_client(bootstrap, properties) as client:
        outcomes = client.create_topics(topics, validate_only=options["dry_run"])
        there = {
            name
            for name, error in outcomes.items()
            if options["if_not_exists"] and error and error.code == ErrorCode.TOPIC_ALREADY_EXISTS
        }
        made = [name for name, error in outcomes.items() if error is None or name in there]
        counts = {} if options["dry_run"] else _partition_counts(client, made)
    for name in sorted(there):
        if options["partitions"] not in {None, counts[name]}:
            say(
                f"Warning: the topic {name} exists with {counts[name]} partitions, not {options['partitions']}"
            )
    done = "ok" if options["dry_run"] else "created"
    words = {name: "exists" if name in there else done for name in outcomes}
    outcomes = {name: None if name in there else error for name, error in outcomes.items()}
    facts = {name: {"partitions": counts.get(name)} for name in outcomes}
    print_outcomes("topic", outcomes, words, as_json=as_json, facts=facts)


def _partition_counts(client: BlockingClient, names: list[str]) -> dict[str, int | None]:
    """Return the partition counts of topics; None for a topic that the client may not describe."""
    found = client.metadata(names).topics if names else {}
    return {
        name: None if name not in found or found[name].error else len(found[name].partitions)
        for name in names
    }


@topic.command("delete")
@argument(
    "names",
    "The topics to delete.",
    nargs=-1,
    required=True,
    metavar="TOPIC...",
    shell_complete=complete_topics,
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def delete(
    bootstrap: str, properties: dict[str, str], *, names: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Delete topics and all their records.

    Asks for confirmation; without a terminal, --yes is required.
    """
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("deleting needs --yes without a terminal")
        confirm(f"Delete {', '.join(names)} and all records?")
    with open_client(bootstrap, properties) as client:
        outcomes = client.delete_topics(names)
    print_outcomes("topic", outcomes, "deleted", as_json=as_json)


@topic.command("list")
@click.option(
    "-i",
    "--internal",
    is_flag=True,
    help="Also list internal topics: of brokers, bridges, Spark sinks, and the keys of workers (headrace-seen.*).",
)
@client_options
def list_topics(
    bootstrap: str, properties: dict[str, str], *, internal: bool, as_json: bool
) -> None:
    """List the topics of the cluster."""
    with open_client(bootstrap, properties) as client:
        known = client.metadata().topics.values()
    shown = [entry for entry in known if internal or not is_internal_topic(entry)]
    topics = sorted(shown, key=lambda entry: entry.name)
    if as_json:
        print_json(
            [
                {
                    "topic": entry.name,
                    "partitions": len(entry.partitions),
                    "replicas": _replicas(entry),
                    "internal": entry.is_internal,
                }
                for entry in topics
            ]
        )
        return
    rows = [(entry.name, len(entry.partitions), _replicas(entry)) for entry in topics]
    print_table(("TOPIC", "PARTITIONS", "REPLICAS"), rows)
    report_hidden(len(known) - len(shown), "topic")


def _replicas(topic: TopicMetadata) -> int:
    return max((len(partition.replicas) for partition in topic.partitions.values()), default=0)


@topic.command("describe")
@argument(
    "names",
    "The topics to describe.",
    nargs=-1,
    required=True,
    metavar="TOPIC...",
    shell_complete=complete_topics,
)
@click.option(
    "--configs",
    "all_configs",
    is_flag=True,
    help="All configs: the effective value, its source, and the values that it overrides.",
)
@click.option(
    "--no-groups",
    is_flag=True,
    help="Do not show groups. Finding them reads all groups of the cluster.",
)
@client_options
def describe(
    bootstrap: str,
    properties: dict[str, str],
    *,
    names: tuple[str, ...],
    all_configs: bool,
    no_groups: bool,
    as_json: bool,
) -> None:
    """Describe topics: partitions, leaders, offsets, the configs that were set on the topic itself, and groups.

    For topics with scheduled records also the number of waiting records in each partition, and the next delivery time.
    """
    with open_client(bootstrap, properties) as client:
        descriptions = [
            _describe(client, name, all_configs=all_configs, groups=not no_groups) for name in names
        ]
    if as_json:
        print_json(descriptions)
        return
    for index, description in enumerate(descriptions):
        if index:
            click.echo()
        _print_description(description)


def _describe(
    client: BlockingClient, name: str, *, all_configs: bool, groups: bool
) -> dict[str, Any]:
    from headrace.clients.blocking import EARLIEST, LATEST
    from headrace.config.resources import ConfigResourceType
    from headrace.types import TopicPartition

    entry = client.metadata([name]).topics[name]
    if entry.error:
        fail(f"no topic {name!r}" if entry.error == 3 else f"topic {name!r}: {entry.error.name}")
    led = [TopicPartition(name, number) for number, p in entry.partitions.items() if p.leader >= 0]
    starts = client.list_offsets(dict.fromkeys(led, EARLIEST)) if led else {}
    ends = client.list_offsets(dict.fromkeys(led, LATEST), delayed=True) if led else {}
    configs = client.describe_configs(ConfigResourceType.TOPIC, [name])[name]
    partitions = []
    for number, partition in entry.partitions.items():
        where = TopicPartition(name, number)
        partitions.append(
            {
                "partition": number,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": list(partition.replicas),
                "isr": list(partition.isr),
                "start_offset": starts[where].offset if where in starts else None,
                "end_offset": ends[where].offset if where in ends else None,
                "delayed": _delayed(ends[where].delayed) if where in ends else None,
            }
        )
    description = {
        "topic": name,
        "topic_id": entry.topic_id.hex(),
        "internal": entry.is_internal,
        "replicas": _replicas(entry),
        "configs": {config.name: config.value for config in configs if _is_set(config)},
        "partitions": partitions,
    }
    if all_configs:
        description["all_configs"] = [config_document(config) for config in configs]
    if groups:
        description["groups"] = topic_groups(client, name, ends)
    return description


def _delayed(delayed: ScheduledCount | None) -> dict[str, int | None] | None:
    """Return the scheduled records of a partition; None if the broker cannot read its schedule."""
    if delayed is None:
        return None
    found = {"pending": delayed.pending, "earliest_due_ms": delayed.earliest_due_ms}
    return {name: None if value < 0 else value for name, value in found.items()}


def _is_set(config: ConfigEntry) -> bool:
    """Whether the value was set on the topic itself, rather than inherited from the broker."""
    return config.source == 1


def _print_description(description: dict[str, Any]) -> None:
    partitions = description["partitions"]
    held = [
        partition["end_offset"] - partition["start_offset"]
        for partition in partitions
        if partition["end_offset"] is not None
    ]
    configs = " ".join(f"{name}={value}" for name, value in description["configs"].items())
    facts = {
        "topic": description["topic"],
        "id": description["topic_id"],
        "partitions": len(partitions),
        "replicas": description["replicas"],
        "offsets held": sum(held),
        "configs": configs or "(defaults)",
    }
    print_facts(facts, 14)
    click.echo()
    _print_partitions(partitions)
    if description.get("groups"):
        click.echo()
        print_table(
            ("GROUP", "STATE", "MEMBERS", "ATTACHED", "COMMITTED", "LAG"),
            [
                (
                    each["group"],
                    each["state"],
                    each["members"],
                    "yes" if each["attached"] else None,
                    each["committed_partitions"],
                    each["lag"],
                )
                for each in description["groups"]
            ],
        )
    if "all_configs" in description:
        click.echo()
        print_configs(description["all_configs"])


def _print_partitions(partitions: list[dict[str, Any]]) -> None:
    columns = ["PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "START", "END"]
    rows = [
        [
            partition["partition"],
            partition["leader"],
            partition["leader_epoch"],
            ",".join(map(str, partition["replicas"])),
            ",".join(map(str, partition["isr"])),
            partition["start_offset"],
            partition["end_offset"],
        ]
        for partition in partitions
    ]
    if any(partition["delayed"] for partition in partitions):
        columns += ["DELAYED", "NEXT DUE"]
        for row, partition in zip(rows, partitions, strict=True):
            row.extend(_delayed_cells(partition["delayed"]))
    print_table(columns, rows)


def _delayed_cells(delayed: dict[str, int | None] | None) -> list[object]:
    from headrace.cli.formats.writer import iso_time

    if delayed is None:
        return [None, None]
    due_ms = delayed["earliest_due_ms"]
    return [delayed["pending"], None if due_ms is None else iso_time(due_ms)]
