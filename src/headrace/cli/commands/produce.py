"""`headrace produce`: write records from standard input."""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from headrace.cli.arguments.completion import complete_topics
from headrace.cli.arguments.connection import check_reachable
from headrace.cli.arguments.options import LINES_OR_JSON, client_options, preformatted
from headrace.cli.arguments.types import AcksType
from headrace.cli.command_group import argument, command
from headrace.cli.commands.produce_partitioner import chosen_partitioner
from headrace.cli.output.printing import fail, is_terminal, say
from headrace.cli.output.progress import Progress

if TYPE_CHECKING:
    from headrace.cli.formats.reader import ScannedRecord
    from headrace.clients.producer.blocking import Producer
    from headrace.clients.producer.blocking_delivery import DeliveryFuture
    from headrace.clients.producer.delivery import RecordMetadata
    from headrace.records.builder import Headers

CHUNK_BYTES: Final = 256 << 10


HELP_ON_TEMPLATES: Final = preformatted(
    r"""Templates:  %v value   %k key   %t topic   %p partition   %d timestamp in ms
            %V %K sizes before their text   %H number, then %h{...} headers
            modifiers {hex} {base64} {json}; for numbers {big32} {hex} ...
            escapes \n \t \xNN %%

Examples:   echo '{"id":1}' | headrace produce orders -k alice
            headrace produce orders -f '%k\t%v\n' < orders.tsv
            headrace produce events -f '%v{json}\n' < events.jsonl
            echo 'call Bob' | headrace produce reminders --delay 15m
            headrace consume orders -e --format json | headrace produce copy --from-json
"""
)


@command(epilog=HELP_ON_TEMPLATES)
@argument(
    "topic",
    "The topic to write to.  [default: the topic of each record in the input]",
    required=False,
    shell_complete=complete_topics,
)
@click.option(
    "-f",
    "--template",
    default="%v\\n",
    show_default=True,
    help="The format of records in the input. By default each line is a value. See below.",
)
@click.option(
    "--from-json",
    is_flag=True,
    help="Read the JSON lines of `consume --format json`, with key, value, headers, timestamp and partition.",
)
@click.option(
    "--repartition",
    is_flag=True,
    help="With --from-json: choose new partitions instead of those in the input.",
)
@click.option("-k", "--key", help="The key of every record without a key in the input.")
@click.option(
    "-H",
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="A header of every record; repeatable.",
)
@click.option(
    "--tag",
    "tags",
    multiple=True,
    help="A tag of every record; `consume --tag` selects by it. Repeatable.",
)
@click.option(
    "--ttl",
    metavar="DURATION",
    help="How long after its timestamp each record expires, e.g. 90s or 2h30m, on topics with headrace.ttl.enable.",
)
@click.option(
    "--delay",
    metavar="DURATION",
    help="How long after its arrival each record is delivered, on topics with headrace.delay.enable.",
)
@click.option(
    "--deliver-at",
    metavar="TIME",
    help="When each record is delivered, on topics with headrace.delay.enable: 2031-01-31T15:00:00Z, a day, seconds or "
    "milliseconds since 1970. --delay takes a duration from now.",
)
@click.option(
    "-p", "--partition", type=click.IntRange(min=0), help="Write every record to this partition."
)
@click.option(
    "--partitioner",
    metavar="NAME|MODULE:CLASS",
    help="The partitioner: key_hash, round_robin, sticky, random, a name from an installed package, or a class of "
    "yours.  [default: that of the topic (headrace.partitioner)]",
)
@click.option(
    "--partitioner-parameters",
    metavar="JSON",
    help="The keyword arguments of that partitioner, e.g. '{\"modulus\": 3}'.",
)
@click.option(
    "-z",
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    help="The compression of the batches.  [default: none]",
)
@click.option(
    "--acks",
    type=AcksType(),
    metavar="all|NUMBER",
    help="The replicas that must acknowledge a record: all in-sync replicas, or a number of them. Numbers above 1 are "
    "for topics of Headrace.  [default: all]",
)
@click.option(
    "-Z",
    "--tombstone",
    is_flag=True,
    help="Write empty values as null. On a compacted topic null deletes the key.",
)
@click.option(
    "-q",
    "--quiet",
    is_flag=True,
    help="Do not print the offset of each record, nor progress.",
)
@partial(client_options, role="producer", formats=LINES_OR_JSON)
def produce(
    topic: str | None, bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any
) -> None:
    """Write the records on standard input to TOPIC, on Headrace or any Kafka.

    Keys and values are written as raw bytes, whatever serde the topic has. Without TOPIC each record goes to the topic
    that the input names. With --from-json, TOPIC overrides the topic in the input.

    Prints TOPIC[PARTITION]@OFFSET for each record, in the order of acknowledgement. Ends at the end of the input. If
    input and output are files or pipes, a line on the terminal shows progress.

    Exit codes: 0 all written, 1 a record could not be written, 2 wrong usage, 130 interrupted.
    """
    from headrace.cli.formats.reader import InputError

    read = _reader(topic, options)
    headers = [*_headers(options["headers"]), *_directives(options)]
    partitioner = chosen_partitioner(options["partitioner"], options["partitioner_parameters"])
    defaults = _Defaults(topic, options["key"], headers, options["partition"])
    check_reachable(bootstrap, properties)
    from headrace.clients.producer.blocking import Producer

    report = _Report(as_json=as_json, quiet=options["quiet"])
    named = {"acks": options["acks"], "compression.type": options["compression"]}
    properties |= {name: value for name, value in named.items() if value is not None}
    producer = Producer(
        properties.pop("bootstrap.servers", bootstrap),
        partitioner=partitioner,
        serde="bytes",
        key_serde="bytes",
        **properties,
    )
    with report.progress, producer:
        try:
            for record in read(_standard_input(producer, report)):
                defaults.send(producer, record, report, tombstone=options["tombstone"])
        except InputError as error:
            producer.flush()
            fail(str(error))
    report.finish()


Scan = Callable[[Callable[[], bytes]], Iterator["ScannedRecord"]]


def _reader(topic: str | None, options: dict[str, Any]) -> Scan:
    """Return a function that reads records from the input."""
    if not options["from_json"]:
        if options["repartition"]:
            raise click.UsageError("--repartition needs --from-json")
        return _compile(options["template"], topic)
    source = click.get_current_context().get_parameter_source("template")
    if source is not ParameterSource.DEFAULT:
        raise click.UsageError("--template and --from-json exclude each other")
    if options["tombstone"]:
        raise click.UsageError(
            "--tombstone cannot be used with --from-json, whose lines can have null as value"
        )
    from headrace.cli.formats.json_reader import scan_json

    keep_partition = not options["repartition"] and options["partition"] is None

    def scan(read: Callable[[], bytes]) -> Iterator[ScannedRecord]:
        for record in scan_json(read, keep_partition=keep_partition):
            record.topic = topic or record.topic
            if record.topic is None:
                fail("the input names no topic: give a TOPIC")
            yield record

    return scan


def _compile(template: str, topic: str | None) -> Scan:
    from headrace.cli.formats.reader import Source, compile_reader, scan_records
    from headrace.cli.formats.template import TemplateError, Token, parse_template

    try:
        pieces = parse_template(template)
        reader = compile_reader(pieces)
    except TemplateError as error:
        raise click.UsageError(f"--template: {error}") from None
    if topic is None and all(piece.token is not Token.TOPIC for piece in pieces):
        raise click.UsageError("give a TOPIC, or a template that reads the topic with %t")
    return lambda read: scan_records(reader, Source(read))


def _standard_input(producer: Producer, report: _Report) -> Callable[[], bytes]:
    """Return a reader that delivers and reports all records before it waits for more input."""
    descriptor = sys.stdin.fileno()

    def read() -> bytes:
        ready, _, _ = select.select([descriptor], [], [], 0)
        if not ready:
            producer.flush()
            report.flush()
        data = os.read(descriptor, CHUNK_BYTES)
        report.progress.add(0, len(data))
        return data

    return read


def _headers(given: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    for header in given:
        name, separator, value = header.partition("=")
        if not separator:
            raise click.UsageError(f"--header expects NAME=VALUE, not {header!r}")
        yield name, os.fsencode(value)


def _directives(options: dict[str, Any]) -> Headers:
    """Return the headers that ask the broker to expire, delay or tag the records."""
    from headrace.cli.arguments.offsets import OffsetSpecError, parse_duration
    from headrace.records.directives import directives

    if options["delay"] and options["deliver_at"]:
        raise click.UsageError("--delay and --deliver-at exclude each other")
    readers: dict[str, Callable[[str], int]] = {
        "ttl": parse_duration,
        "deliver_at": _time_of_day,
        "delay": parse_duration,
    }
    times: list[int | None] = []
    for name, read in readers.items():
        try:
            times.append(None if options[name] is None else read(options[name]))
        except OffsetSpecError as error:
            raise click.UsageError(f"--{name.replace('_', '-')}: {error}") from None
    return directives((), options["tags"], *times)


def _time_of_day(text: str) -> int:
    """Read --deliver-at. A duration is refused, because it would mean a time in the past."""
    from headrace.cli.arguments.offsets import OffsetSpecError, parse_time
    from headrace.config.units import is_duration

    if is_duration(text.removeprefix("-")):
        raise OffsetSpecError(f"{text!r} is a duration, not a time: use --delay {text.strip('-')}")
    return parse_time(text, time.time_ns() // 1_000_000)


class _Defaults:
    """Values of the command line, for records whose input has none."""

    def __init__(
        self, topic: str | None, key: str | None, headers: Headers, partition: int | None
    ) -> None:
        self._topic = topic
        self._key = None if key is None else os.fsencode(key)
        self._partition = partition
        self._headers = headers

    def send(
        self, producer: Producer, record: ScannedRecord, report: _Report, *, tombstone: bool
    ) -> None:
        """Send one record from the input."""
        value = record.value if record.value or not tombstone else None
        producer.send(
            record.topic or self._topic or "",
            value,
            key=self._key if record.key is None else record.key,
            headers=[*self._headers, *record.headers] if self._headers or record.headers else (),
            timestamp_ms=record.timestamp_ms,
            partition=self._partition if record.partition is None else record.partition,
            on_delivery=report.delivered,
        )


def _size_of_input() -> int | None:
    """Return the size of standard input in bytes; None if it is not a file."""
    try:
        found = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


class _Report:
    """Prints the offset or the error of each record."""

    def __init__(self, *, as_json: bool, quiet: bool) -> None:
        self._as_json = as_json
        self._quiet = quiet
        # The lines with offsets and the progress line would disturb each other on one terminal.
        wanted = not (quiet or is_terminal(sys.stdout) or is_terminal(sys.stdin))
        self.progress = Progress("written", wanted=wanted, total_bytes=_size_of_input())
        self._failed = 0
        self._first_error = ""
        self._lines: list[str] = []

    def delivered(self, delivery: DeliveryFuture) -> None:
        """Note the offset or the error of one record."""
        error = delivery.exception()
        self.progress.add(error is None, 0)
        if error is not None:
            self._failed += 1
            self._first_error = self._first_error or str(error)
        elif not self._quiet:
            self._lines.append(self._line(delivery.metadata()))
            if len(self._lines) >= 1000:
                self.flush()

    def _line(self, where: RecordMetadata) -> str:
        topic, partition, offset, timestamp_ms = where
        if not self._as_json:
            return f"{topic}[{partition}]@{offset if offset >= 0 else '?'}\n"
        place = "null" if offset < 0 else str(offset)
        return (
            f'{{"topic": "{topic}", "partition": {partition}, "offset": {place}, '
            f'"timestamp_ms": {timestamp_ms}}}\n'
        )

    def flush(self) -> None:
        """Write the noted lines to standard output."""
        lines, self._lines = self._lines, []
        sys.stdout.write("".join(lines))
        sys.stdout.flush()

    def finish(self) -> None:
        """Write the remaining lines; end with an error if a record failed."""
        self.flush()
        if self._failed:
            say(f"Error: {self._failed} records were not written; the first: {self._first_error}")
            raise SystemExit(1)
