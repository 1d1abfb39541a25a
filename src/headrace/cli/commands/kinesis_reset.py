"""`headrace kinesis reset`: set the checkpoints of a group without members."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.arguments.options import preformatted
from headrace.cli.command_group import argument, command
from headrace.cli.commands.kinesis_shared import (
    KinesisAccess,
    check_answerable,
    check_no_active_members,
    confirmed,
    finished,
    group_streams,
    is_stream_of_leases,
    kinesis_options,
    name_of,
    now_ms,
    position_text,
    stream_option,
    wait_option,
)
from headrace.cli.output.printing import fail, print_json, print_table

if TYPE_CHECKING:
    from headrace.core.lease.checkpoint import Checkpoint
    from headrace.core.lease.lease import Lease
    from headrace.kinesis.leases.administration import Move

_PLACES = preformatted(
    """
TRIM_HORIZON   the oldest record in the stream
LATEST         the end, so that only new records are read
@TIME          the first record at or after a time: 2013-01-31, 2013-01-31T15:00:00Z,
               milliseconds or seconds since 1970, or -15m before now
NUMBER         after the record with this sequence number; with one --shard
"""
)


@command("reset", epilog=f"Values of --to:\n\n{_PLACES}")
@argument("group", "The name of the group.", metavar="GROUP")
@click.option("--to", required=True, metavar="POSITION", help="The new position; see below.")
@stream_option
@click.option(
    "--shard",
    "shards",
    multiple=True,
    metavar="SHARD",
    help="Only this shard; repeatable.  [default: all shards]",
)
@wait_option
@click.option("--dry-run", is_flag=True, help="Show what would be written; write nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@kinesis_options
def reset(access: KinesisAccess, *, as_json: bool, **options: Any) -> None:
    """Set the checkpoints of a group without members.

    Shows the old and new checkpoint of each shard and asks for confirmation; without a terminal, --yes or --dry-run is
    required. First the owners are watched for a while: if one renews a lease, nothing is written and the exit code is
    1.
    """
    checkpoint = _checkpoint(options["to"], options["shards"])
    check_answerable(yes=options["yes"], dry_run=options["dry_run"])
    finished(_reset(access, checkpoint, options, as_json=as_json))


def _checkpoint(text: str, shards: Sequence[str]) -> Checkpoint:
    from headrace.cli.arguments.offsets import OffsetSpecError, parse_time
    from headrace.core.lease.checkpoint import TRIM_HORIZON, at_timestamp, parse_checkpoint

    if text.upper() == "TRIM_HORIZON":
        return TRIM_HORIZON
    if text.upper() == "LATEST":
        return at_timestamp(now_ms())
    if text.startswith("@"):
        try:
            return at_timestamp(parse_time(text[1:], now_ms()))
        except OffsetSpecError as error:
            raise click.UsageError(str(error)) from None
    if not text.isascii() or not text.isdecimal():
        raise click.UsageError(
            f"--to expects TRIM_HORIZON, LATEST, @TIME or a sequence number, not {text!r}"
        )
    if len(shards) != 1:
        raise click.UsageError("a sequence number belongs to one shard: name it with --shard")
    return parse_checkpoint(text)


async def _reset(
    access: KinesisAccess, to: Checkpoint, options: dict[str, Any], *, as_json: bool
) -> None:
    from headrace.kinesis.leases.administration import apply, watched

    group, dry_run = options["group"], options["dry_run"]
    wait_ms = 0 if dry_run else round(options["wait_s"] * 1000)
    async with access.store() as store:
        streams = await group_streams(store, group, options["stream"])
        if len(streams) > 1:
            fail(
                f"group {group!r} reads {', '.join(map(name_of, streams))}: name one with --stream"
            )
        (stream,) = streams
        watch = await watched(store, group, stream, wait_ms=wait_ms, until_one=True)
        check_no_active_members(group, watch, "reset it")
        moves = await _moves(access, stream, watch.leases, to, options)
        rows = [
            {
                "shard": move.key.shard,
                "position": position_text(move.seen.checkpoint if move.seen else None),
                "new_position": position_text(to),
            }
            for move in moves
        ]
        if not as_json:
            print_table(("SHARD", "POSITION", "NEW"), [list(row.values()) for row in rows])
        if not dry_run:
            confirmed(f"Set the checkpoints of {group}?", yes=options["yes"])
            failed = await apply(store, moves)
            if failed:
                names = ", ".join(move.key.shard for move in failed)
                fail(
                    f"nothing was reset, because members started meanwhile: {names}. Stop them and repeat"
                )
    if as_json:
        print_json(rows)


async def _moves(
    access: KinesisAccess,
    stream: str,
    leases: Sequence[Lease],
    to: Checkpoint,
    options: dict[str, Any],
) -> list[Move]:
    from headrace.kinesis.leases.administration import moves
    from headrace.kinesis.reading.shards import StreamShards

    name = name_of(stream)
    async with access.client() as client:
        shards = StreamShards(client, name)
        if not await is_stream_of_leases(shards, stream):
            fail(
                f"the stream {name} was deleted and created again after {stream}: members begin there without a reset"
            )
        listed = await shards.list_shards()
    wanted = set(options["shards"])
    if unknown := wanted - {info.shard for info in listed}:
        fail(f"the stream {name} has no shard {', '.join(sorted(unknown))}")
    # LATEST has no meaning for shards that have ended: they get no new records.
    latest = options["to"].upper() == "LATEST"
    found = moves(options["group"], stream, leases, listed, to, keep_ended=latest)
    return [move for move in found if not wanted or move.key.shard in wanted]
