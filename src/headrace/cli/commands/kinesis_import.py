"""`headrace kinesis import-kcl`: take over the checkpoints of an application of the Kinesis Client Library."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.command_group import argument, command
from headrace.cli.commands.kinesis_shared import (
    KinesisAccess,
    check_answerable,
    check_no_active_members,
    confirmed,
    described,
    finished,
    kinesis_options,
    now_ms,
    position_text,
    wait_option,
)
from headrace.cli.output.printing import fail, print_json, print_table

if TYPE_CHECKING:
    from headrace.core.lease.lease import Lease
    from headrace.kinesis.leases.administration import Move, Watched
    from headrace.kinesis.leases.kcl import KclLease
    from headrace.kinesis.leases.store import LeaseStore
    from headrace.kinesis.reading.shards import ShardInfo, StreamDescription

_LOOK_S: Final = 1.0
_TIMEOUT_MS: Final = 30_000


@command("import-kcl")
@argument(
    "table",
    "The lease table of the application; dynamodb://TABLE?region=... for a table in another region.",
    metavar="TABLE",
)
@argument("group", "The name of the group that continues.", metavar="GROUP")
@click.option(
    "-s", "--stream", required=True, metavar="STREAM", help="The name or ARN of the stream."
)
@click.option(
    "--at-timestamp",
    metavar="TIME",
    help="The application's AT_TIMESTAMP, for shards that it has not read; e.g. 2013-01-31T15:00:00Z.",
)
@click.option("--overwrite", is_flag=True, help="Overwrite existing leases of the group.")
@wait_option
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@kinesis_options
def import_kcl(access: KinesisAccess, *, as_json: bool, **options: Any) -> None:
    """Let a group continue where an application of the Kinesis Client Library (1 to 3) stopped.

    TABLE is the lease table of the application, which has the application's name; dynamodb://TABLE?region=.. if it is
    elsewhere. The table is only read. If the application or a member of the group is still running, nothing is written
    and the exit code is 1. Shows the new checkpoint of each shard and asks for confirmation.
    """
    check_answerable(yes=options["yes"], dry_run=options["dry_run"])
    at_ms = _time(options["at_timestamp"])
    finished(_import(access, at_ms, options, as_json=as_json))


def _time(text: str | None) -> int | None:
    from headrace.cli.arguments.offsets import OffsetSpecError, parse_time

    try:
        return None if text is None else parse_time(text.removeprefix("@"), now_ms())
    except OffsetSpecError as error:
        raise click.UsageError(f"--at-timestamp: {error}") from None


async def _import(
    access: KinesisAccess, at_ms: int | None, options: dict[str, Any], *, as_json: bool
) -> None:
    from headrace.kinesis.leases.administration import apply
    from headrace.kinesis.leases.kcl import converted

    group, dry_run = options["group"], options["dry_run"]
    description, listed = await _stream(access, options["stream"])
    of_kcl = await _stopped(access, description, options)
    leases = converted(
        group, description.stream, of_kcl, listed, now_ms=now_ms(), at_timestamp_ms=at_ms
    )
    rows = _rows(leases, of_kcl)
    if not as_json:
        print_table(("SHARD", "CHECKPOINT", "POSITION"), [list(row.values()) for row in rows])
    if not dry_run:
        async with access.store(create=True) as store:
            watch = await _untouched(store, description.stream, options)
            confirmed(f"Set the checkpoints of {group}?", yes=options["yes"])
            failed = await apply(store, _moves(leases, watch))
            if failed:
                names = ", ".join(move.key.shard for move in failed)
                fail(
                    f"nothing was written, because members started: {names}. Stop them and repeat with --overwrite"
                )
    if as_json:
        print_json(rows)


async def _stream(access: KinesisAccess, stream: str) -> tuple[StreamDescription, list[ShardInfo]]:
    from headrace.kinesis.reading.shards import StreamShards

    async with access.client() as client:
        shards = StreamShards(client, stream)
        return await described(shards), await shards.list_shards()


async def _stopped(
    access: KinesisAccess, description: StreamDescription, options: dict[str, Any]
) -> list[KclLease]:
    """Return the library's leases of the stream, after checking that its application has stopped."""
    from headrace.kinesis.client.opening import open_client
    from headrace.kinesis.leases.dynamodb_calls import DynamoCalls
    from headrace.kinesis.leases.kcl import of_stream, read_table, renewed
    from headrace.kinesis.leases.opening import table_place

    table, aws, _ = table_place(options["table"], access.aws)
    async with open_client(aws, "dynamodb") as client:
        calls = DynamoCalls(client, table, timeout_ms=_TIMEOUT_MS)
        first = leases = await read_table(calls)
        if not leases:
            fail(f"the table {table} has no leases")
        # Raises an error if the table belongs to another application.
        of_stream(leases, description.name, _created_s(description))
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + options["wait_s"]
        while not options["dry_run"] and any(lease.owner for lease in leases):
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                break
            await asyncio.sleep(min(_LOOK_S, left_s))
            leases = await read_table(calls)
            if owners := renewed(first, leases):
                fail(f"the application of {table} still runs ({', '.join(owners)}): stop it first")
        return of_stream(leases, description.name, _created_s(description))


def _created_s(description: StreamDescription) -> int:
    return int(description.stream.rpartition("@")[2])


async def _untouched(store: LeaseStore, stream: str, options: dict[str, Any]) -> Watched:
    from headrace.kinesis.leases.administration import watched

    group = options["group"]
    if await store.leases(group, stream) and not options["overwrite"]:
        fail(
            f"group {group!r} has leases of the stream {stream} already: --overwrite replaces them"
        )
    wait_ms = round(options["wait_s"] * 1000)
    watch = await watched(store, group, stream, wait_ms=wait_ms, until_one=True)
    check_no_active_members(group, watch, "import")
    return watch


def _moves(leases: list[Lease], watch: Watched) -> list[Move]:
    from headrace.kinesis.leases.administration import Move

    seen = {lease.key: lease for lease in watch.leases}
    return [Move(lease.key, seen.get(lease.key), lease) for lease in leases]


def _rows(leases: list[Lease], of_kcl: list[KclLease]) -> list[dict[str, Any]]:
    known = {lease.shard: lease for lease in of_kcl}
    rows = []
    for lease in leases:
        before = known.get(lease.key.shard)
        rows.append(
            {
                "shard": lease.key.shard,
                "kcl_checkpoint": before.checkpoint if before else None,
                "position": position_text(lease.checkpoint),
            }
        )
    return rows
