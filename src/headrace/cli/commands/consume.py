"""`headrace consume`: print records to standard output."""

from __future__ import annotations

import functools
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from headrace.cli.arguments.completion import complete_groups, complete_topics
from headrace.cli.arguments.connection import check_reachable
from headrace.cli.arguments.options import LINES_OR_JSON, client_options, preformatted
from headrace.cli.command_group import argument, command
from headrace.cli.commands.consume_last import last_records
from headrace.cli.output.printing import (
    INTERRUPTED,
    bytes_fields,
    is_terminal,
    json_text,
    reader_is_gone,
)
from headrace.cli.output.progress import Progress
from headrace.cli.output.terminal import printable, unshielded

if TYPE_CHECKING:
    from headrace.clients.consumer.blocking import Consumer
    from headrace.clients.consumer.records import ConsumerRecord
    from headrace.types import TopicPartition

POLL_S: Final = 0.5
COMMIT_TIMEOUT_S: Final = 5.0
"""The longest time in seconds that a commit may delay printing. The next commit follows soon."""
TERMINATED: Final = 143
Writer = Callable[["ConsumerRecord", int], bytes]


HELP_ON_TEMPLATES: Final = preformatted(
    r"""Templates:  %t topic   %p partition   %o offset   %d timestamp in ms (%d{iso}, %d{strftime[%F %T]})
            %k key   %v value   %K %V their sizes   %e leader epoch
            %h{%k=%v } headers   %H their number   %i number of the record
            modifiers {hex} {base64} {json}; for numbers {big32} {hex} ...
            escapes \n \t \xNN %%
            On a terminal, control characters of records are escaped; a pipe or file gets records unchanged.

Examples:   headrace consume orders --from start -f '%t[%p]@%o %k %v\n'
            headrace consume orders -o :end --format json > orders.jsonl
            headrace consume orders --since 15m -f '%d{iso} %v\n'
            headrace consume orders --last 10 -e
            headrace consume orders -g billing --tag urgent --tag late
"""
)


@command(epilog=HELP_ON_TEMPLATES)
@argument(
    "topics",
    "The topics to read.",
    nargs=-1,
    required=True,
    metavar="TOPIC...",
    shell_complete=complete_topics,
)
@click.option(
    "-o",
    "--offset",
    "--from",
    "offset",
    help="Where to begin and end in each partition: start (default), end, N, +N, -N (the last N of each partition; "
    "--last N counts over all partitions), A:B, :end, @TIME, @T1:T2.",
)
@click.option(
    "--since",
    metavar="TIME|DURATION",
    help="Begin at a time (2031-01-31T15:00), or a duration before now (5m).",
)
@click.option(
    "--last",
    type=click.IntRange(min=1),
    metavar="N",
    help="Begin with the newest N records over all partitions, sorted by time.",
)
@click.option("-n", "--num", type=click.IntRange(min=1), help="End after this many records.")
@click.option("-e", "--exit-at-end", is_flag=True, help="End at the present end of the partitions.")
@click.option(
    "-g",
    "--group",
    shell_complete=complete_groups,
    help="Read as a member of a group, and commit the printed records.",
)
@click.option(
    "-p", "--partition", "partitions", multiple=True, help="Only these partitions, e.g. -p 0,2."
)
@click.option(
    "--tag", "tags", multiple=True, help="Only records with one of the given tags; repeatable."
)
@click.option("-f", "--template", help="The format of a record; see below.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show progress on the terminal.")
@functools.partial(client_options, role="consumer", formats=LINES_OR_JSON)
def consume(
    topics: tuple[str, ...],
    bootstrap: str,
    properties: dict[str, Any],
    *,
    as_json: bool,
    template: str | None,
    **options: Any,
) -> None:
    """Print the records of TOPICs, from Headrace or any Kafka, until interrupted.

    By default a record is a line TOPIC[PARTITION]@OFFSET KEY: VALUE. With --format json it is a JSON object per
    line with the keys topic, partition, offset, timestamp_ms, key, value, headers, leader_epoch (bytes that are
    not UTF-8 as base64, with key_encoding or value_encoding beside them); `produce --from-json` reads such lines.
    Keys and values are printed as raw bytes, whatever serde the topic has.

    Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted, 143 terminated. If the reader of the output exits, as
    in `| head`, the command ends with 0.
    """
    write = _writer(template, as_json=as_json)
    source = _Source(topics, _offset(options), options["partitions"], options["group"])
    if options["tags"]:
        from headrace.records.tags import TagFilter

        properties["tags"] = TagFilter.of(options["tags"])
    check_reachable(bootstrap, properties)
    consumer = source.open(properties.pop("bootstrap.servers", bootstrap), properties)
    signal.signal(signal.SIGTERM, _terminated)
    with consumer:
        if options["last"] is None:
            stops = source.begin(consumer, exit_at_end=options["exit_at_end"])
            _printer(consumer, write, stops, options).run()
            return
        records, ends = last_records(consumer, source.partitions(consumer), options["last"])
        consumer.assign(ends)
        stops = ends if options["exit_at_end"] else None
        _printer(consumer, write, stops, options).run(records)


def _printer(
    consumer: Consumer,
    write: Writer,
    stops: dict[TopicPartition, int] | None,
    options: dict[str, Any],
) -> Printer:
    wanted = not (options["quiet"] or is_terminal(sys.stdout))
    return Printer(consumer, write, stops, options["num"], Progress("read", wanted=wanted))


def _offset(options: dict[str, Any]) -> str | None:
    """Return the begin position in the form of --offset."""
    given: str | None = options["offset"]
    since: str | None = options["since"]
    if sum(options[name] is not None for name in ("offset", "since", "last")) > 1:
        raise click.UsageError("--offset, --since and --last exclude each other")
    if options["last"] is not None and options["group"] is not None:
        raise click.UsageError(
            "--last cannot be used with --group: a group continues at its committed offsets"
        )
    return given if since is None else f"@{since}:"


def _terminated(_signal: int, _frame: object) -> NoReturn:
    raise SystemExit(TERMINATED)


class _Source:
    """The topics or partitions to read, where to begin, and the group that reads them."""

    def __init__(
        self,
        topics: tuple[str, ...],
        offset: str | None,
        partitions: tuple[str, ...],
        group: str | None,
    ) -> None:
        from headrace.cli.arguments.offsets import OffsetSpecError, parse_offset

        self._topics = topics
        self._group = group
        self._numbers = _partition_numbers(partitions)
        try:
            self._spec = parse_offset(offset or "start", round(time.time() * 1000))
        except OffsetSpecError as error:
            raise click.UsageError(f"--offset: {error}") from None
        if group is None:
            return
        if self._numbers:
            raise click.UsageError(
                "--partition cannot be used with --group: the group assigns the partitions"
            )
        if self._spec.first.kind not in {"start", "end"} or self._spec.stop is not None:
            raise click.UsageError(
                "with --group, --offset must be start or end: it applies to partitions without a committed offset"
            )

    def open(self, bootstrap: str, properties: dict[str, str]) -> Consumer:
        from headrace.clients.consumer.blocking import Consumer

        defaults: dict[str, Any] = {"max.poll.records": 2000}
        if self._group is None:
            defaults["auto.offset.reset"] = "earliest"
        else:
            # Printer commits the printed records, even if a batch is not finished.
            reset = "earliest" if self._spec.first.kind == "start" else "latest"
            defaults |= {"enable.auto.commit": "false", "auto.offset.reset": reset}
        return Consumer(
            bootstrap, group=self._group, serde="bytes", key_serde="bytes", **defaults | properties
        )

    def partitions(self, consumer: Consumer) -> list[TopicPartition]:
        """Return the partitions to read: all of the topics, or the named ones."""
        every = [where for topic in self._topics for where in consumer.partitions_for(topic)]
        missing = self._numbers - {where.partition for where in every}
        if missing:
            raise click.UsageError(f"there is no partition {min(missing)}")
        return [where for where in every if not self._numbers or where.partition in self._numbers]

    def begin(self, consumer: Consumer, *, exit_at_end: bool) -> dict[TopicPartition, int] | None:
        """Start reading; return the end offset of each partition that has one."""
        from headrace.cli.arguments.offsets import LATEST, resolve

        wanted = self.partitions(consumer)
        if self._group is not None:
            consumer.subscribe(self._topics)
            return consumer.end_offsets(wanted) if exit_at_end else None

        def listing(target: int) -> Mapping[TopicPartition, int]:
            found = consumer.offsets_for_times(dict.fromkeys(wanted, target))
            return {where: listed.offset for where, listed in found.items()}

        begin, stops = resolve(self._spec, listing)
        if exit_at_end and stops is None:
            stops = dict(listing(LATEST))
        consumer.assign(begin)
        return stops


def _partition_numbers(partitions: tuple[str, ...]) -> set[int]:
    numbers = [text.strip() for entry in partitions for text in entry.split(",")]
    for text in numbers:
        if not text.isdecimal():
            raise click.UsageError(f"--partition expects numbers, not {text!r}")
    return set(map(int, numbers))


def _writer(template: str | None, *, as_json: bool) -> Writer:
    if template is None:
        return _json_line if as_json else _readable_line
    from headrace.cli.formats.template import TemplateError, parse_template
    from headrace.cli.formats.writer import compile_writer

    if as_json:
        raise click.UsageError("--template and --format json exclude each other")
    try:
        return compile_writer(parse_template(template), escaped=sys.stdout.isatty())
    except TemplateError as error:
        raise click.UsageError(f"--template: {error}") from None


def _readable_line(record: ConsumerRecord, _number: int) -> bytes:
    key = "" if record.key is None else f"{_text(record.key)}: "
    value = "(null)" if record.value is None else _text(record.value)
    return f"{record.topic}[{record.partition}]@{record.offset} {key}{value}\n".encode()


def _text(data: bytes) -> str:
    return printable(data.decode("utf-8", "backslashreplace"))


def _json_line(record: ConsumerRecord, _number: int) -> bytes:
    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        **bytes_fields("key", record.key),
        **bytes_fields("value", record.value),
        "headers": [
            {"key": name, **bytes_fields("value", value)} for name, value in record.headers
        ],
        "leader_epoch": record.leader_epoch,
    }
    return json_text(document).encode() + b"\n"


class Printer:
    """Prints the records of a consumer, up to a number of records or to the end of every partition."""

    def __init__(
        self,
        consumer: Consumer,
        write: Writer,
        stops: dict[TopicPartition, int] | None,
        limit: int | None,
        progress: Progress,
    ) -> None:
        self._consumer = consumer
        self._write = write
        self._stops = stops
        self._limit = limit
        self._progress = progress
        self._printed = 0
        self._positions: dict[TopicPartition, int] = {}
        """One past the last printed record of each partition."""

    def run(self, first: Iterable[ConsumerRecord] = ()) -> None:
        """Print until the end. In a group, commit the printed records, also when interrupted.

        Args:
            first: Records to print before those of the consumer.
        """
        try:
            with self._progress:
                self._print(list(first))
                while not self._done():
                    self._print(self._consumer.poll(POLL_S))
                    if self._consumer.stopped:
                        return  # an administrator stopped the member; printed records were committed before
                    self._commit()
                    if reader_is_gone():
                        return
        except KeyboardInterrupt:
            self._commit()
            raise SystemExit(INTERRUPTED) from None

    def _print(self, records: list[ConsumerRecord]) -> None:
        from headrace.types import TopicPartition

        lines = []
        printed = {}
        for record in records:
            where = TopicPartition(record.topic, record.partition)
            if self._stops is not None and record.offset >= self._stops.get(where, 0):
                continue
            if self._limit is not None and self._printed >= self._limit:
                break
            self._printed += 1
            lines.append(self._write(record, self._printed))
            printed[where] = record.offset + 1
        if lines:
            out = unshielded(sys.stdout).buffer  # control sequences are escaped already
            text = b"".join(lines)
            out.write(text)
            out.flush()
            self._progress.add(len(lines), len(text))
            self._positions |= printed

    def _done(self) -> bool:
        if self._limit is not None and self._printed >= self._limit:
            return True
        if self._stops is None:
            return False
        positions = self._consumer.positions()
        at_end = all(
            at is not None and at >= self._stops.get(where, 0) for where, at in positions.items()
        )
        # A member without partitions has nothing to wait for, once it has joined.
        return at_end and (self._consumer.config.group_id is None or self._consumer.joined)

    def _commit(self) -> None:
        if self._consumer.config.group_id is None or not self._positions:
            return
        from headrace.errors import HeadraceError

        owned = self._consumer.positions()
        finished = {where: at for where, at in self._positions.items() if where in owned}
        try:
            self._consumer.commit(finished, timeout_s=COMMIT_TIMEOUT_S)
        except HeadraceError:
            return  # a rebalance, or no response: the next commit includes the partitions that the member still owns
        self._positions = {}
