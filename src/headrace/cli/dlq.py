"""`headrace dlq`: dead letters: what there is, why, sending it back, deleting it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli._options import check_reachable, client_options
from headrace.cli._output import fail, print_json, print_table, say

if TYPE_CHECKING:
    from headrace.clients.admin.blocking import Admin
    from headrace.clients.consumer.records import ConsumerRecord
    from headrace.types import TopicPartition

GROUP: Final = "headrace-redrive"
"""Its committed offsets in a dead-letter topic say how far letters were sent back."""
FLUSH_EVERY: Final = 500
CLIENT: Final = "headrace-dlq"


@click.group()
def dlq() -> None:
    """Look at dead letters, send them back, delete them; TOPIC is the topic that they come from."""


def _topic_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.argument("topic")(command)
    return click.option(
        "--named", is_flag=True, help="TOPIC is the dead-letter topic's own name, not dlq.TOPIC."
    )(command)


@dlq.command("list")
@client_options
def list_letters(bootstrap: str, properties: dict[str, Any], *, as_json: bool) -> None:
    """List the topics whose names begin with dlq., how many records they have, and the last error of each."""
    from headrace.workers.letters import DEAD_LETTER_PREFIX  # noqa: PLC0415 - not for `--help`

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
@click.option("-n", "--limit", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--waiting", is_flag=True, help="Only those that were not sent back.")
@client_options
def show(bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any) -> None:
    """Show dead letters: where they come from and why they are here."""
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
    print_table(headings, rows, fit=True)


@dlq.command("redrive")
@_topic_options
@click.option("--dry-run", is_flag=True, help="Tell what would be sent, and send nothing.")
@click.option("--all", "everything", is_flag=True, help="Also those that were sent back before.")
@click.option("--error-type", metavar="NAME", help="Only letters of this error, e.g. ValueError.")
@click.option("--to", metavar="TOPIC", help="Where to, in place of the topic they come from.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="At most so many.")
@click.option(
    "--max-redrives",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Leave letters that were sent back so often.",
)
@client_options
def redrive(bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any) -> None:
    """Send dead letters back to their topic, for the workers of the group that gave them up.

    They stay where they are, and the next redrive begins behind them; one that breaks off goes on where it was. Letters
    that are passed over, by --error-type or --max-redrives, come again only with --all.
    """
    topic = _letters_of(options)
    with _admin(bootstrap, properties) as admin, _consumer(bootstrap, properties) as consumer:
        start = {} if options["everything"] else _sent_back(admin, topic)
        result = _Redrive(bootstrap, properties, options).run(_letters(consumer, topic, start))
    if as_json:
        print_json({"topic": topic, "dry_run": options["dry_run"], **result})
    else:
        word = "would be sent" if options["dry_run"] else "sent"
        say(f"{result['sent']} {word}, {result['passed_over']} passed over")
    if result["homeless"]:
        fail(
            "the next letter names no topic that it comes from, as one of a Kinesis stream: it and those behind it "
            "wait for --to TOPIC"
        )


@dlq.command("purge")
@_topic_options
@click.option("--sent", is_flag=True, help="Only those that were sent back.")
@click.option("--dry-run", is_flag=True, help="Tell what would be deleted, and delete nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@client_options
def purge(bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any) -> None:
    """Delete dead letters, for good.

    Asks first; where nobody can answer, --yes is needed.
    """
    topic = _letters_of(options)
    with _admin(bootstrap, properties) as admin, _consumer(bootstrap, properties) as consumer:
        partitions = consumer.partitions_for(topic)
        begins, ends = consumer.begin_offsets(partitions), consumer.end_offsets(partitions)
        before = _sent_back(admin, topic) if options["sent"] else ends
        before = {name: min(at, ends[name]) for name, at in before.items() if at > begins[name]}
        count = sum(at - begins[name] for name, at in before.items())
        if count and not options["dry_run"]:
            _confirm(f"Delete {count} records of {topic}?", yes=options["yes"])
            admin.truncate(topic, {name.partition: at for name, at in before.items()})
    if as_json:
        print_json({"topic": topic, "dry_run": options["dry_run"], "deleted": count})
    else:
        say(f"{count} {'would be deleted' if options['dry_run'] else 'deleted'}")


class _Redrive:
    """Sends letters back; how far is committed when what was sent is safe."""

    def __init__(self, bootstrap: str, properties: dict[str, Any], options: dict[str, Any]) -> None:
        from headrace.clients.producer.blocking import Producer  # noqa: PLC0415 - not for `--help`
        from headrace.workers.outlet import LARGEST_RECORD_BYTES  # noqa: PLC0415 - as above

        self._options = options
        large = {"recreate_topics": False, "max_request_size": LARGEST_RECORD_BYTES, **properties}
        self._producer = Producer(
            bootstrap, serde="bytes", key_serde="bytes", client_id=CLIENT, **large
        )
        self._positions = _consumer(bootstrap, properties)
        self._done: dict[TopicPartition, int] = {}
        self._result = {"sent": 0, "passed_over": 0, "homeless": 0}

    def run(self, records: Iterator[ConsumerRecord]) -> dict[str, int]:
        with self._producer, self._positions:
            for number, record in enumerate(records, 1):
                if self._result["sent"] == self._options["limit"] or not self._one(record):
                    break
                if number % FLUSH_EVERY == 0:
                    self._settle()
            self._settle()
        return self._result

    def _one(self, record: ConsumerRecord) -> bool:
        """Send one; false where there is no place for it: what comes behind waits for an answer."""
        from headrace.types import TopicPartition  # noqa: PLC0415 - not for `--help`
        from headrace.workers import letters  # noqa: PLC0415 - as above

        options = self._options
        home = letters.place_of(record, letters.LETTER).topic
        if letters.header(record, letters.SHARD) is not None:
            home = record.topic  # it is of a stream, and no topic has to be its home
        target = options["to"] or home
        wanted = options["error_type"]
        # A letter without its value is no record to send back; its headers say where the whole record is.
        passed_over = (
            letters.header(record, letters.LEFT_OUT) is not None
            or (wanted is not None and _describe(record)["error_type"] != wanted)
            or letters.redrives(record) >= options["max_redrives"]
        )
        if passed_over:
            self._result["passed_over"] += 1
        elif target == record.topic:
            self._result["homeless"] += 1
            return False
        else:
            if not options["dry_run"]:
                headers = letters.redrive_headers(record)
                self._producer.send(target, record.value, key=record.key, headers=headers)
            self._result["sent"] += 1
        self._done[TopicPartition(record.topic, record.partition)] = record.offset + 1
        return True

    def _settle(self) -> None:
        if self._done and not self._options["dry_run"]:
            self._producer.flush()
            self._positions.assign(self._done)
            self._positions.commit(self._done)


def _letters_of(options: dict[str, Any]) -> str:
    from headrace.workers.letters import DEAD_LETTER_PREFIX  # noqa: PLC0415 - not for `--help`

    topic: str = options["topic"]
    if options["named"] or topic.startswith(DEAD_LETTER_PREFIX):
        return topic
    return f"{DEAD_LETTER_PREFIX}{topic}"


def _letters(
    consumer: Any, topic: str, start: dict[TopicPartition, int]
) -> Iterator[ConsumerRecord]:
    from headrace.workers.reading import read_topic  # noqa: PLC0415 - not for `--help`

    consumer.partitions_for(topic)  # a topic that is not there is an error here
    yield from read_topic(consumer, topic, start)


def _last(consumer: Any, topic: str, start: dict[TopicPartition, int]) -> ConsumerRecord | None:
    records = _letters(consumer, topic, start)
    return max(records, key=lambda record: record.timestamp_ms, default=None)


def _describe(record: ConsumerRecord) -> dict[str, Any]:
    """Return what a letter says, for people and for programs."""
    from headrace.workers import letters  # noqa: PLC0415 - not for `--help`

    place = letters.place_of(record, letters.LETTER)
    headers = {name: letters.header_text(name, value) for name, value in record.headers}
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "from": None
        if place.topic == record.topic
        else f"{place.topic}-{place.partition}@{place.offset}",
        "error_type": headers.get(letters.ERROR_TYPE),
        "error": headers.get(letters.ERROR_MESSAGE),
        "attempts": _number(headers.get(letters.ATTEMPTS)),
        "group": headers.get(letters.GROUP),
        "redrives": letters.redrives(record),
        "key": _text(record.key),
        "value": _text(record.value),
        "headers": headers,
    }


def _number(text: str | None) -> int | str | None:
    """Return what a header counts; one that somebody else wrote may count nothing."""
    return int(text) if text is not None and text.isascii() and text.isdecimal() else text


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode(errors="backslashreplace")


def _sent_back(admin: Admin, topic: str) -> dict[TopicPartition, int]:
    """Return how far letters were sent back."""
    return {name: at.offset for name, at in admin.offsets(GROUP).items() if name.topic == topic}


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("deleting needs --yes where nobody can be asked")
    click.confirm(question, abort=True, err=True)


def _admin(bootstrap: str, properties: dict[str, Any]) -> Admin:
    from headrace.clients.admin.blocking import Admin  # noqa: PLC0415 - not for `--help`

    check_reachable(bootstrap, properties)
    return Admin(bootstrap, client_id=CLIENT, **properties)


def _consumer(bootstrap: str, properties: dict[str, Any]) -> Any:
    from headrace.clients.consumer.blocking import Consumer  # noqa: PLC0415 - not for `--help`

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
