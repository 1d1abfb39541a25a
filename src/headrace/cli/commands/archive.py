"""`headrace archive`: topics as tables. Commands that need only the table are in `archive_tables.py`."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.arguments.completion import complete_topics
from headrace.cli.arguments.connection import assignments, check_reachable
from headrace.cli.arguments.options import client_options
from headrace.cli.arguments.types import DurationType, SizeType
from headrace.cli.command_group import CommandGroup, argument
from headrace.cli.commands import archive_tables
from headrace.cli.commands.archive_tables import FILE_BYTES, catalog_option, installed, size_text
from headrace.cli.output.printing import print_json, say

if TYPE_CHECKING:
    from headrace.spark.archive.batches import BatchResult
    from headrace.spark.archive.running import ArchiveSettings


@click.group(cls=CommandGroup)
def archive() -> None:
    """Copy topics to Delta Lake or Iceberg tables, exactly once, and maintain these tables."""


for command in archive_tables.COMMANDS:
    archive.add_command(command)


_RUN: Final = (
    argument(
        "topics",
        "The topics to archive. Use either topics or --pattern.",
        nargs=-1,
        metavar="[TOPIC]...",
        shell_complete=complete_topics,
    ),
    click.option(
        "--pattern",
        metavar="REGEX",
        help="All topics with matching names, including topics created later.",
    ),
    click.option(
        "--table",
        required=True,
        metavar="TABLE",
        help="A directory, or s3://BUCKET/NAME; created if it does not exist.",
    ),
    click.option(
        "--table-format",
        type=click.Choice(["delta", "iceberg"]),
        default="delta",
        show_default=True,
        help="The table format. Iceberg keeps its catalog in SQLite beside the data, unless --catalog-uri is given.",
    ),
    catalog_option,
    click.option(
        "--name",
        help="The name of the archive.  [default: archive-, the last part of its path, and six characters]",
    ),
    click.option(
        "--group",
        help="The group in which the archive commits its position, for `group lag`.  [default: the name]",
    ),
    click.option("--once", is_flag=True, help="End at the present end of the topics."),
    click.option(
        "--interval",
        type=DurationType(),
        default="60s",
        show_default=True,
        help="The time between batches while few records wait.",
    ),
    click.option(
        "--batch-records",
        type=click.IntRange(min=1),
        default=5_000_000,
        show_default=True,
        help="The most records of one batch.",
    ),
    click.option(
        "--file-size",
        type=SizeType(),
        default=FILE_BYTES,
        show_default=True,
        help="The target size of files.",
    ),
    click.option(
        "--values",
        type=click.Choice(["json", "avro", "protobuf"]),
        help="Decode the values into columns.",
    ),
    click.option(
        "--schema",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The schema of the values; required with --values.",
    ),
    click.option(
        "--on-error",
        metavar="fail|null|dlq:TOPIC",
        help="What to do with a value that cannot be decoded.  [default: fail]",
    ),
    click.option(
        "--recreated",
        type=click.Choice(["fail", "archive"]),
        default="fail",
        show_default=True,
        help="What to do when a topic was deleted and created again: fail, or archive the new topic, too.",
    ),
    click.option(
        "--skip-lost",
        is_flag=True,
        help="Continue if records were removed before they were archived.",
    ),
    click.option(
        "--master",
        default="local[*,4]",
        show_default=True,
        help="The Spark master. The default uses all cores of this machine, and four attempts for each task.",
    ),
    click.option("--conf", multiple=True, metavar="KEY=VALUE", help="A Spark setting; repeatable."),
    click.option(
        "--spark-log",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="The file for the output of Spark's processes.  [default: standard error]",
    ),
    click.option("-q", "--quiet", is_flag=True, help="Do not report each batch."),
)


def _run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_RUN):
        command = option(command)
    return command


def _consumer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return client_options(command, "consumer")


@archive.command("run")
@_run_options
@_consumer_options
def run(bootstrap: str, properties: dict[str, Any], *, as_json: bool, **options: Any) -> None:
    """Archive topics as zstd Parquet files of a table, every record exactly once.

    A run begins where the table ends, however the previous run ended. Aborted transactions are left out, unless
    -X isolation.level=read_uncommitted. SIGTERM and Ctrl-C end the run after the current batch.
    """
    with installed():
        from headrace.spark.archive.running import archiver, check, run
        from headrace.spark.session import local_session, stop_session

    settings = _settings(bootstrap, properties, options)
    check_reachable(bootstrap, properties)

    table = check(settings)
    conf = assignments(options["conf"], "--conf")
    spark = local_session(
        "headrace archive", conf, master=options["master"], log_path=options["spark_log"]
    )
    records = 0
    try:
        with _stopped_by_signals() as stopped:
            for result in run(archiver(settings, spark), settings, stopped):
                records += result.records
                if as_json or not options["quiet"]:
                    _show(result, as_json=as_json)
    finally:
        stop_session(spark)
    if not as_json:
        say(f"{table.root} has {records:,} more records")


def _settings(
    bootstrap: str, properties: dict[str, Any], options: dict[str, Any]
) -> ArchiveSettings:
    from headrace.spark.archive.planning import BatchLimits
    from headrace.spark.archive.running import ArchiveSettings

    if bool(options["topics"]) == bool(options["pattern"]):
        raise click.UsageError("give either topics or --pattern")
    of_read = {f"kafka.{name.replace('_', '.')}": str(each) for name, each in properties.items()}
    of_read.setdefault("kafka.bootstrap.servers", bootstrap)
    if options["pattern"]:
        of_read["subscribePattern"] = options["pattern"]
    else:
        of_read["subscribe"] = ",".join(options["topics"])
    if options["values"]:
        of_read["format"] = options["values"]
    if options["schema"]:
        of_read["schema"] = options["schema"].read_text(encoding="utf-8-sig")
    if options["on_error"]:
        of_read["onError"] = options["on_error"]
    return ArchiveSettings(
        options=of_read,
        table=options["table"],
        kind=options["table_format"],
        catalog=options["catalog"],
        name=options["name"],
        group=options["group"],
        limits=BatchLimits(options["batch_records"], options["file_size"]),
        interval_s=options["interval"] / 1000,
        once=options["once"],
        recreated=options["recreated"],
        skip_lost=options["skip_lost"],
    )


def _show(result: BatchResult, *, as_json: bool) -> None:
    if as_json:
        print_json(vars(result))
        sys.stdout.flush()
    else:
        say(
            f"batch {result.batch}: {result.records:,} records in {result.files} files, "
            f"{size_text(result.size)}; {result.behind:,} behind"
        )


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[threading.Event]:
    """Yield an event that the first signal sets. A second Ctrl-C ends at once. Spark's handler would stop the batch."""
    stopped = threading.Event()

    def stop(number: int, _frame: object) -> None:
        if stopped.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
