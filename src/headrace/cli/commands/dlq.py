"""`headrace dlq`: list, show, redrive and delete dead letters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.arguments.completion import complete_letters, complete_topics
from headrace.cli.arguments.connection import check_reachable
from headrace.cli.arguments.options import client_options
from headrace.cli.command_group import CommandGroup, argument
from headrace.cli.output.printing import confirm, fail, print_json, print_table, say

if TYPE_CHECKING:
    from headrace.clients.admin.blocking import Admin
    from headrace.clients.consumer.records import ConsumerRecord
    from headrace.clients.flows.offsets import OffsetAndMetadata
    from headrace.types import TopicPartition

GROUP: Final = "headrace-redrive"
"""The group of `dlq redrive`. Its committed offset in a dead-letter topic is after the last dead letter redriven."""
CLIENT: Final = "headrace-dlq"
MAX_DIGITS: Final = 18
"""The most digits of a counter in a header. A header with more digits is shown as text."""
SHOWN: Final = 5
"""The most skipped dead letters whose offsets a message lists. JSON output lists more (`MAX_LEFT`)."""


@click.group(cls=CommandGroup)
def dlq() -> None:
    """List, show, redrive and delete dead letters. TOPIC is the topic that they come from."""


def _topic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = argument(
        "topic", "The topic from which the dead letters come.", shell_complete=complete_letters
    )(command)
    return click.option(
        "--named", is_flag=True, help="TOPIC is the name of the dead-letter topic itself."
    )(command)


@dlq.command("list")
@client_options
def list_letters(bootstrap: str, properties: dict[str, Any], *, as_json: bool) -> None:
    """List the topics whose names begin with dlq., with their numbers of records and their last errors."""
    from headrace.dead_letters.letter_headers import DEAD_LETTER_PREFIX

    rows = []
    with _admin(bootstrap, properties) as admin, _consumer(bootstrap, properties) as consumer:
        for topic in admin.topics():
            if not topic.startswith(DEAD_LETTER_PREFIX):
                continue
            partitions = consumer.partitions_for(topic)
            begins, ends = consumer.begin_offsets(partitions), consumer.end_offsets(partitions)
            sent = _sent_back(admin, topic)
            last = _last(consumer, topic, {name: end - 1 for name, end in ends.items()})
            rows.append(
                {
                    "topic": topic,
                    "records": sum(ends[name] - begins[name] for name in partitions),
                    "waiting": sum(
                        max(0, ends[name] - max(begins[name], sent.get(name, 0)))
                        for name in partitions
                    ),
                    "last_error": None if last is None else _describe(last)["error_type"],
                }
            )
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("TOPIC", "RECORDS", "WAITING", "LAST ERROR"), [list(row.values()) for row in rows]
        )


@dlq.command("show")
@_topic_options
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="The most dead letters to show.",
)
@click.option("--waiting", is_flag=True, help="Only dead letters that were not redriven.")
@client_options
def show(bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any) -> None:
    """Show dead letters with their origins and errors."""
    topic = _letters_of(options)
    described = []
    with _admin(bootstrap, properties) as admin, _consumer(bootstrap, properties) as consumer:
        start = _sent_back(admin, topic) if options["waiting"] else {}
        for record in _letters(consumer, topic, start):
            described.append(_describe(record))
            if len(described) == options["limit"]:
                break
    described.sort(key=lambda one: (one["partition"], one["offset"]))
    if as_json:
        print_json(described)
        return
    columns = ("partition", "offset", "from", "error_type", "error", "attempts", "group", "key")
    headings = [column.replace("_", " ").upper() for column in columns]
    rows = [[one[column] for column in columns] for one in described]
    print_table(headings, rows)


@dlq.command("redrive")
@_topic_options
@click.option("--dry-run", is_flag=True, help="Show what would be sent; send nothing.")
@click.option(
    "--all", "everything", is_flag=True, help="Also dead letters that were redriven before."
)
@click.option(
    "--error-type", metavar="NAME", help="Only dead letters with this error, e.g. ValueError."
)
@click.option(
    "--to",
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="Send to this topic, instead of the topic that the dead letters come from.",
)
@click.option(
    "--from",
    "sources",
    metavar="TOPIC",
    multiple=True,
    shell_complete=complete_topics,
    help="Only dead letters from this topic, sent back to it; repeatable.",
)
@click.option(
    "--any-topic",
    is_flag=True,
    help="Send each dead letter to the topic that its headers name, if it exists. Safe only if no "
    "client except workers can write to the dead-letter topic.",
)
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Send at most this many.")
@click.option(
    "--max-redrives",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Skip dead letters that were redriven this many times.",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not show progress on the terminal.")
@client_options
def redrive(bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any) -> None:
    """Send dead letters back to their topic, for the workers of the group that failed to process them.

    Dead letters in dlq.TOPIC go back to TOPIC. Dead letters that name another topic are skipped, and the exit code is
    1: otherwise a client with access to dlq.TOPIC could write to any topic. --from, --to and --any-topic allow others.

    Dead letters are copied, not moved. The next redrive begins after the last dead letter that was sent, also if this
    redrive is interrupted. --all begins at the first one. It is needed for dead letters that --error-type, --from or
    --max-redrives has skipped, and for those that were skipped because of their topic before a later one was sent.
    """
    from headrace.cli.commands.dlq_redrive import Redrive, Targets

    topic = _letters_of(options)
    to, sources, any_topic = options["to"], options["sources"], options["any_topic"]
    if any_topic and (to or sources):
        raise click.UsageError("--any-topic cannot be used with --to or --from")
    if topic in {to, *sources}:
        raise click.UsageError(
            f"--to names {topic}, the dead-letter topic itself: name another topic"
        )
    with _admin(bootstrap, properties) as admin, _consumer(bootstrap, properties) as consumer:
        existing = admin.topics() if any_topic else ()
        before = _committed(admin, topic)
        start = {} if options["everything"] else {name: at.offset for name, at in before.items()}
        result = Redrive(
            bootstrap,
            Targets(topic, to=to, sources=sources, existing=existing),
            options,
            client={"client_id": CLIENT, **properties},
            positions=_consumer(bootstrap, properties),
            before=before,
        ).run(_letters(consumer, topic, start))
    if as_json:
        print_json({"topic": topic, "dry_run": options["dry_run"], **result})
    else:
        word = "would be sent" if options["dry_run"] else "sent"
        say(f"{result['sent']} {word}, {result['passed_over']} skipped")
    if result["homeless"]:
        fail(_of_homeless(topic, result["homeless"], result["left"]))


@dlq.command("purge")
@_topic_options
@click.option(
    "--sent",
    is_flag=True,
    help="Only dead letters that were redriven: in each partition, up to the first one that a redrive did not send.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@client_options
def purge(bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any) -> None:
    """Delete dead letters permanently.

    Asks for confirmation; without a terminal, --yes is required.
    """
    topic = _letters_of(options)
    with _admin(bootstrap, properties) as admin, _consumer(bootstrap, properties) as consumer:
        partitions = consumer.partitions_for(topic)
        begins, ends = consumer.begin_offsets(partitions), consumer.end_offsets(partitions)
        before = _all_sent(admin, topic) if options["sent"] else ends
        before = {name: min(at, ends[name]) for name, at in before.items() if at > begins[name]}
        count = sum(at - begins[name] for name, at in before.items())
        if count and not options["dry_run"]:
            _confirm(f"Delete {count} records of {topic}?", yes=options["yes"])
            admin.truncate(topic, {name.partition: at for name, at in before.items()})
    kept = sum(ends.values()) - sum(begins.values()) - count
    if as_json:
        print_json({"topic": topic, "dry_run": options["dry_run"], "deleted": count, "kept": kept})
    else:
        stays = f", {kept} stay" if options["sent"] else ""
        say(f"{count} {'would be deleted' if options['dry_run'] else 'deleted'}{stays}")


def _of_homeless(topic: str, count: int, left: list[dict[str, Any]]) -> str:
    """Return the message about dead letters whose topic is not allowed, or None."""
    shown = [
        f"{topic}-{one['partition']}@{one['offset']} names "
        + ("no topic" if one["names"] is None else f"{one['names']!r}")
        for one in left[:SHOWN]
    ]
    more = f", and {count - len(shown)} more" if count > len(shown) else ""
    return (
        f"{count} skipped, because the topic in their headers is not allowed: {', '.join(shown)}{more}. "
        "If you trust every client that can "
        f"write to {topic}, --from TOPIC sends the dead letters of one topic back (with --all, if later ones were "
        "sent), and --any-topic sends each to its own topic. --to TOPIC sends all to one topic, also those of streams"
    )


def _letters_of(options: dict[str, Any]) -> str:
    from headrace.dead_letters.letter_headers import DEAD_LETTER_PREFIX

    topic: str = options["topic"]
    if options["named"] or topic.startswith(DEAD_LETTER_PREFIX):
        return topic
    return f"{DEAD_LETTER_PREFIX}{topic}"


def _letters(
    consumer: Any, topic: str, start: dict[TopicPartition, int]
) -> Iterator[ConsumerRecord]:
    from headrace.workers.topic_reader import read_topic

    consumer.partitions_for(topic)  # a missing topic is an error here
    yield from read_topic(consumer, topic, start)


def _last(consumer: Any, topic: str, start: dict[TopicPartition, int]) -> ConsumerRecord | None:
    records = _letters(consumer, topic, start)
    return max(records, key=lambda record: record.timestamp_ms, default=None)


def _describe(record: ConsumerRecord) -> dict[str, Any]:
    """Return the columns of a dead letter, for people and for programs."""
    from headrace.dead_letters import letter_headers

    place = letter_headers.named_origin(record, letter_headers.LETTER)
    headers = {name: letter_headers.header_text(name, value) for name, value in record.headers}
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "from": None if place is None else f"{place.topic}-{place.partition}@{place.offset}",
        "error_type": headers.get(letter_headers.ERROR_TYPE),
        "error": headers.get(letter_headers.ERROR_MESSAGE),
        "attempts": _number(headers.get(letter_headers.ATTEMPTS)),
        "group": headers.get(letter_headers.GROUP),
        "redrives": letter_headers.redrives(record),
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": headers,
    }


def _number(text: str | None) -> int | str | None:
    """Return the number in a header, or its text: other programs may write headers with any text."""
    is_count = text is not None and len(text) <= MAX_DIGITS and text.isascii() and text.isdecimal()
    return int(text) if text is not None and is_count else text


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


def _sent_back(admin: Admin, topic: str) -> dict[TopicPartition, int]:
    """Return for each partition the offset up to which dead letters were redriven or skipped."""
    return {name: at.offset for name, at in _committed(admin, topic).items()}


def _all_sent(admin: Admin, topic: str) -> dict[TopicPartition, int]:
    """Return for each partition the offset before which every dead letter was redriven."""
    from headrace.cli.commands.dlq_redrive import kept_of

    found = {}
    for name, at in _committed(admin, topic).items():
        kept = kept_of(at)
        found[name] = at.offset if kept is None else min(at.offset, kept)
    return found


def _committed(admin: Admin, topic: str) -> dict[TopicPartition, OffsetAndMetadata]:
    return {name: at for name, at in admin.offsets(GROUP).items() if name.topic == topic}


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("deleting needs --yes without a terminal")
    confirm(question)


def _admin(bootstrap: str, properties: dict[str, Any]) -> Admin:
    from headrace.clients.admin.blocking import Admin

    check_reachable(bootstrap, properties)
    return Admin(bootstrap, client_id=CLIENT, **properties)


def _consumer(bootstrap: str, properties: dict[str, Any]) -> Any:
    from headrace.clients.consumer.blocking import Consumer

    return Consumer(
        bootstrap,
        group=GROUP,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        serde="bytes",
        key_serde="bytes",
        client_id=CLIENT,
        **properties,
    )
