"""Commands of `headrace archive` that need only the table, neither a broker nor Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import click

from headrace.cli.arguments.options import format_option
from headrace.cli.arguments.types import DurationType, SizeType
from headrace.cli.command_group import argument, command
from headrace.cli.output.printing import guarded, print_facts, print_json, print_table, say
from headrace.cli.output.terminal import printable

FILE_BYTES: Final = "128m"


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Turn the error of a missing library into one with the command that installs it."""
    from headrace.errors import ConfigError

    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{error}: pip install 'headrace[archive]'") from None


def size_text(size: int) -> str:
    """Return a size with its unit, for people."""
    for limit, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= limit:
            return f"{size / limit:.1f} {unit}"
    return f"{size} B"


catalog_option: Final = click.option(
    "--catalog-uri",
    "catalog",
    envvar="HEADRACE_ARCHIVE_CATALOG",
    show_envvar=True,
    metavar="URI",
    help="The catalog of Iceberg tables in a store: sqlite:////PATH/catalog.db, postgresql+psycopg://USER@HOST/NAME.",
)


def _table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    return argument("table", "The table: a directory, or s3://BUCKET/NAME.", metavar="TABLE")(
        catalog_option(format_option(command))
    )


@command("files")
@_table_options
@click.option("--topic", help="Only files of this topic.")
@click.option("--partition", type=click.IntRange(min=0), help="Only files of this partition.")
@guarded
def files(
    table: str,
    catalog: str | None,
    output_format: str,
    *,
    topic: str | None,
    partition: int | None,
) -> None:
    """List the files of the table, one path per line.

    These files contain each record once, for Spark, DuckDB or pandas. Other files in the directory may have duplicates.
    """
    from headrace.spark.archive.table import find_table

    found = find_table(table, catalog)
    snapshot = found.snapshot()
    chosen = [
        file
        for file in snapshot.files
        if topic in (None, file.source.topic) and partition in (None, file.source.partition)
    ]
    if output_format == "json":
        print_json(
            [
                {
                    "path": str(found.root / file.path),
                    **file.source._asdict(),
                    "start": file.start,
                    "end": file.end,
                    "records": file.records,
                    "size": file.size,
                }
                for file in chosen
            ]
        )
        return
    for path in [file.path for file in chosen] + list(snapshot.foreign):
        click.echo(printable(str(found.root / path)))


@command("describe")
@_table_options
@guarded
def describe(table: str, catalog: str | None, output_format: str) -> None:
    """Describe a table, in a directory or at s3://BUCKET/NAME: its records, files and offsets."""
    from headrace.spark.archive.files import by_source
    from headrace.spark.archive.table import find_table

    found = find_table(table, catalog)
    snapshot = found.snapshot()
    groups, positions = by_source(snapshot.files), snapshot.positions()
    rows = [
        {
            **source._asdict(),
            "first": min((file.start for file in groups.get(source, ())), default=None),
            "next": positions[source],
            "records": sum(file.records for file in groups.get(source, ())),
            "files": len(groups.get(source, ())),
            "size": sum(file.size for file in groups.get(source, ())),
        }
        for source in sorted(positions)
    ]
    facts = {
        "name": snapshot.name,
        "format": found.kind,
        "directory": str(found.root),
        "batches": snapshot.batch,
        "columns": ", ".join(found.schema().names),
        "files": len(snapshot.files) + len(snapshot.foreign),
    }
    if output_format == "json":
        print_json({**facts, "columns": found.schema().names, "partitions": rows})
        return
    print_facts(facts, 12)
    click.echo()
    headings = ["TOPIC", "ID", "PARTITION", "FIRST", "NEXT", "RECORDS", "FILES", "SIZE"]
    print_table(headings, [[*list(row.values())[:-1], size_text(row["size"])] for row in rows])


@command("compact")
@_table_options
@click.option(
    "--file-size",
    type=SizeType(),
    default=FILE_BYTES,
    show_default=True,
    help="Merge neighbouring files up to this size.",
)
@guarded
def compact(table: str, catalog: str | None, output_format: str, file_size: int) -> None:
    """Merge small files of a table into large ones. Readers and writers can continue meanwhile.

    Replaced files stay on disk until `headrace archive clean`, because readers may still use them.
    """
    with installed():
        from headrace.spark.archive.compaction import compact as run
    from headrace.spark.archive.table import find_table

    done = list(run(find_table(table, catalog), file_size))
    result = {
        "removed": sum(each.removed for each in done),
        "added": sum(each.added for each in done),
        "size_before": sum(each.size_before for each in done),
        "size_after": sum(each.size_after for each in done),
    }
    if output_format == "json":
        print_json(result)
    elif done:
        before, after = size_text(result["size_before"]), size_text(result["size_after"])
        say(f"{result['removed']} files, {before}, became {result['added']}, {after}")
    else:
        say("nothing to compact")


@command("clean")
@_table_options
@click.option(
    "--older-than",
    type=DurationType(),
    default="7d",
    show_default=True,
    help="Delete files that left the table longer ago than this.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be deleted; delete nothing.")
@guarded
def clean(
    table: str, catalog: str | None, output_format: str, older_than: int, *, dry_run: bool
) -> None:
    """Delete files that do not belong to the table: left by killed tasks, or replaced by compaction.

    Choose --older-than longer than writing a batch takes, and longer than readers use a list of files.
    """
    from headrace.spark.archive.table import find_table

    deleted = find_table(table, catalog).delete_orphans(older_than, dry_run=dry_run)
    if output_format == "json":
        print_json({"deleted": deleted, "dry_run": dry_run})
        return
    for path in deleted:
        click.echo(printable(path))
    say(f"{len(deleted)} files {'would be' if dry_run else 'were'} deleted")


COMMANDS: Final = (files, describe, compact, clean)
