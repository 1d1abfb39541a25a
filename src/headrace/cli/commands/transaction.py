"""`headrace transaction`: list, describe and abort transactions, and find those that hang."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.arguments.completion import complete_topics, complete_transactions
from headrace.cli.arguments.connection import open_admin
from headrace.cli.arguments.options import client_options
from headrace.cli.arguments.types import DurationType
from headrace.cli.command_group import CommandGroup, argument
from headrace.cli.output.outcomes import print_outcomes
from headrace.cli.output.printing import confirm, print_facts, print_json, print_table, say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.clients.admin.blocking import Admin
    from headrace.clients.flows.transaction_admin import ProducerState, TransactionDescription
    from headrace.errors import ApiError
    from headrace.types import TopicPartition

OPEN: Final = frozenset({"Ongoing"})
"""States in which fencing the producer aborts a transaction."""
ENDING: Final = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which the coordinator is ending the transaction by itself."""


@click.group(cls=CommandGroup)
def transaction() -> None:
    """List, describe and abort transactions, on Headrace or any Kafka from 3.0 on."""


@transaction.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    help="Only transactions in this state, e.g. Ongoing; repeatable.",
)
@click.option(
    "--producer-id",
    "producer_ids",
    type=int,
    multiple=True,
    help="Only transactions of this producer; repeatable.",
)
@click.option(
    "--longer-than",
    type=DurationType(),
    help="Only transactions open for longer than this, e.g. 15m (Headrace; Kafka from 3.8).",
)
@client_options
def list_transactions(
    bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any
) -> None:
    """List transactional ids, with the states of their last transactions.

    Lists only the ids that the client is authorized to describe.
    """
    with open_admin(bootstrap, properties) as admin:
        found = admin.transactions(
            states=options["states"],
            producer_ids=options["producer_ids"],
            longer_than_ms=options["longer_than"],
        )
    rows = [
        {
            "transactional_id": each.transactional_id,
            "producer_id": each.producer_id,
            "state": each.state,
            "coordinator": each.coordinator,
        }
        for each in found
    ]
    if as_json:
        print_json(rows)
    else:
        columns = ("TRANSACTIONAL ID", "PRODUCER ID", "STATE", "COORDINATOR")
        print_table(columns, [list(row.values()) for row in rows])


@transaction.command("describe")
@argument(
    "ids",
    "The transactional ids.",
    nargs=-1,
    required=True,
    metavar="ID...",
    shell_complete=complete_transactions,
)
@client_options
def describe(
    bootstrap: str, properties: dict[str, Any], *, ids: tuple[str, ...], as_json: bool
) -> None:
    """Describe transactional ids: state, producer, start and partitions of an open transaction.

    Exit code 1 if an id does not exist.
    """
    with open_admin(bootstrap, properties) as admin:
        documents = [_document(admin.describe_transaction(each)) for each in ids]
    if as_json:
        print_json(documents)
        return
    for index, document in enumerate(documents):
        if index:
            click.echo()
        _print_document(document)


def _document(found: TransactionDescription) -> dict[str, Any]:
    began_ms = found.start_time_ms
    now_ms = time.time_ns() // 1_000_000
    return {
        "transactional_id": found.transactional_id,
        "state": found.state,
        "coordinator": found.coordinator,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "start_time_ms": began_ms,
        "open_ms": None if began_ms is None else max(0, now_ms - began_ms),
        "partitions": [
            {"topic": each.topic, "partition": each.partition} for each in found.partitions
        ],
    }


def _print_document(document: dict[str, Any]) -> None:
    from headrace.cli.formats.writer import iso_time

    facts: dict[str, object] = {
        "transactional id": document["transactional_id"],
        "state": document["state"],
        "coordinator": document["coordinator"],
        "producer id": document["producer_id"],
        "producer epoch": document["producer_epoch"],
        "timeout": f"{document['timeout_ms'] / 1000:g} s",
    }
    if document["start_time_ms"] is not None:
        facts["open since"] = iso_time(document["start_time_ms"])
        facts["open for"] = f"{document['open_ms'] / 1000:.1f} s"
    print_facts(facts, 18)
    if document["partitions"]:
        click.echo()
        rows = [(each["topic"], each["partition"]) for each in document["partitions"]]
        print_table(("TOPIC", "PARTITION"), rows)


@transaction.command("producers")
@argument(
    "topics",
    "The topics; TOPIC:0,2 selects partitions.",
    nargs=-1,
    required=True,
    metavar="TOPIC[:N,...]...",
    shell_complete=complete_topics,
)
@client_options
def producers(
    bootstrap: str, properties: dict[str, Any], *, topics: tuple[str, ...], as_json: bool
) -> None:
    """Show the idempotent and transactional producers that partitions remember.

    Needs the permission to read the topic.
    """
    rows = []
    with open_admin(bootstrap, properties) as admin:
        for where in _partitions(admin, topics):
            rows += [_row(where, each) for each in admin.producers(where)]
    _print_rows(rows, as_json=as_json)


@transaction.command("find-hanging")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Only in this topic; repeatable.  [default: all topics]",
)
@click.option(
    "--idle",
    type=DurationType(),
    default="15m",
    show_default=True,
    help="The least age of the last record: longer than any transaction timeout of the cluster.",
)
@client_options
def find_hanging(
    bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any
) -> None:
    """Find hanging transactions: open in a partition, but unknown to every coordinator, so that none will end them.

    Readers with read_committed cannot pass them. `headrace transaction abort -t TOPIC:N --start-offset N` ends one.

    Needs the permission to read the topics. Exit code 1 if there are hanging transactions.
    """
    with open_admin(bootstrap, properties) as admin:
        found = admin.hanging_transactions(options["topics"] or None, idle_ms=options["idle"])
    rows = [
        {**_row(each.partition, each.producer), "transactional_id": each.transactional_id}
        for each in found
    ]
    _print_rows(rows, as_json=as_json)
    if rows:
        raise SystemExit(1)


@transaction.command("abort")
@argument(
    "ids",
    "The transactional ids. Use either ids or --topic.",
    nargs=-1,
    metavar="[ID]...",
    shell_complete=complete_transactions,
)
@click.option(
    "-t",
    "--topic",
    metavar="TOPIC:N",
    shell_complete=complete_topics,
    help="Instead of IDs: the partition with a hanging transaction.",
)
@click.option(
    "--start-offset",
    type=click.IntRange(min=0),
    help="With --topic: the start offset that `find-hanging` shows.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def abort(bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any) -> None:
    """Abort open transactions: by their transactional ids, or in one partition.

    With an ID its producer is fenced and its open transaction is aborted in all partitions. The program gets a
    ProducerFencedError and must open a new producer. Needs the permission to write with the ID.

    With --topic and --start-offset an abort marker is written into one partition, like `kafka-transactions.sh abort`.
    Use it only for transactions that `find-hanging` reports. Needs CLUSTER_ACTION on the cluster.

    Asks for confirmation; without a terminal, --yes is required.
    """
    ids: tuple[str, ...] = options["ids"]
    topic, offset = options["topic"], options["start_offset"]
    if bool(ids) == (topic is not None):
        raise click.UsageError("give either IDs or --topic and --start-offset")
    if (topic is None) != (offset is None):
        raise click.UsageError("--topic and --start-offset need each other")
    where = None if topic is None else _one_partition(topic)
    what = ", ".join(ids) if where is None else f"the transaction at {where}, offset {offset}"
    if not options["yes"]:
        if not sys.stdin.isatty():
            raise click.UsageError("aborting needs --yes without a terminal")
        confirm(f"Abort {what}?")
    with open_admin(bootstrap, properties) as admin:
        if where is not None:
            ended = admin.abort_hanging_transaction(where, offset)
            _print_rows([_row(where, ended)], as_json=as_json)
            if not as_json:
                say("aborted")
            return
        outcomes: dict[str, ApiError | None] = {}
        words: dict[str, str] = {}
        for each in ids:
            outcomes[each], words[each] = _abort(admin, each)
    print_outcomes("transactional_id", outcomes, words, as_json=as_json)


def _abort(admin: Admin, transactional_id: str) -> tuple[ApiError | None, str]:
    """Abort the transaction of a transactional id; return the outcome or the error."""
    from headrace.errors import ApiError, ErrorCode

    try:
        state = admin.describe_transaction(transactional_id).state
        if state in ENDING:
            raise ApiError.for_code(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"transactional id {transactional_id!r}: the coordinator is ending the transaction ({state}). If that "
                "lasts long, a partition refuses its marker: see the coordinator's log and `transaction find-hanging`",
            )
        if state not in OPEN:
            return None, "not open"
        admin.fence_producer(transactional_id)
    except ApiError as error:
        return error, ""
    return None, "aborted"


def _one_partition(text: str) -> TopicPartition:
    from headrace.cli.commands.group_offsets import topic_and_partitions
    from headrace.types import TopicPartition

    topic, numbers = topic_and_partitions(text)
    if numbers is None or len(numbers) != 1:
        raise click.UsageError(f"--topic expects TOPIC:N, not {text!r}")
    return TopicPartition(topic, numbers[0])


def _partitions(admin: Admin, topics: Iterable[str]) -> list[TopicPartition]:
    from headrace.cli.commands.group_offsets import topic_and_partitions
    from headrace.types import TopicPartition

    found = []
    for text in topics:
        topic, numbers = topic_and_partitions(text)
        if numbers is None:
            numbers = sorted(admin.describe_topic(topic).partitions)
        found += [TopicPartition(topic, number) for number in numbers]
    return found


def _row(where: TopicPartition, producer: ProducerState) -> dict[str, Any]:
    last_ms = producer.last_timestamp_ms
    return {
        "topic": where.topic,
        "partition": where.partition,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.producer_epoch,
        "coordinator_epoch": producer.coordinator_epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp_ms": last_ms if last_ms >= 0 else None,
        "start_offset": producer.transaction_start_offset,
    }


def _print_rows(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    from headrace.cli.formats.writer import iso_time

    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "producer_id": "PRODUCER ID",
        "producer_epoch": "EPOCH",
        "coordinator_epoch": "COORDINATOR EPOCH",
        "last_timestamp_ms": "LAST RECORD",
        "start_offset": "START OFFSET",
    }
    if any("transactional_id" in row for row in rows):
        columns["transactional_id"] = "TRANSACTIONAL ID"
    shown = []
    for row in rows:
        last_ms = row["last_timestamp_ms"]
        told = {**row, "last_timestamp_ms": None if last_ms is None else iso_time(last_ms)}
        shown.append([told[key] for key in columns])
    print_table(list(columns.values()), shown)
