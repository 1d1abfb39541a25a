"""`headrace kinesis`: list and describe groups that read streams. Commands that change groups are in `kinesis_*`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.command_group import CommandGroup, argument
from headrace.cli.commands import kinesis_import, kinesis_reset
from headrace.cli.commands.kinesis_shared import (
    KinesisAccess,
    finished,
    group_streams,
    is_stream_of_leases,
    kinesis_options,
    name_of,
    now_ms,
    position_text,
    stream_option,
)
from headrace.cli.output.printing import print_facts, print_json, print_table, say

if TYPE_CHECKING:
    from headrace.core.lease.lease import Lease

_AT_ONCE: Final = 8


@click.group(cls=CommandGroup)
def kinesis() -> None:
    """List, describe and reset groups that read Kinesis streams; take over from the Kinesis Client Library."""


kinesis.add_command(kinesis_reset.reset)
kinesis.add_command(kinesis_import.import_kcl)


@kinesis.command("groups")
@kinesis_options
def groups(access: KinesisAccess, *, as_json: bool) -> None:
    """List groups, their streams, and how many shards have an owner."""
    rows = finished(_groups(access))
    if as_json:
        print_json(rows)
        return
    columns = ("GROUP", "STREAM", "OWNERS", "SHARDS", "OWNED", "ENDED")
    print_table(columns, [list(row.values()) for row in rows])


async def _groups(access: KinesisAccess) -> list[dict[str, Any]]:
    rows = []
    async with access.store() as store:
        for group, stream in await store.streams():
            leases = await store.leases(group, stream)
            owners = [lease.owner for lease in leases if lease.owner is not None]
            rows.append(
                {
                    "group": group,
                    "stream": stream,
                    "owners": len(set(owners)),
                    "shards": len(leases),
                    "owned": len(owners),
                    "ended": sum(lease.checkpoint.is_end for lease in leases),
                }
            )
    return rows


@kinesis.command("describe")
@argument("group", "The name of the group.", metavar="GROUP")
@stream_option
@click.option("--no-lag", is_flag=True, help="Send no request to Kinesis; the lag is not shown.")
@click.option(
    "--watch",
    "watch_s",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Watch for this time which owners renew their leases; the others are reported as silent.",
)
@kinesis_options
def describe(access: KinesisAccess, *, as_json: bool, group: str, **options: Any) -> None:
    """Describe a group: for each shard its owner, its checkpoint, and the age of its oldest unread record.

    The lag needs one of the five reads per second that a shard allows. An owner is shown by its name, or by its
    whole member id if several owners have one name. Exit code 1 if there is no such group.

    States: owned; silent (with --watch: the owner does not renew its lease); free (no owner); waits (its parent shards
    are not read to their ends yet); ended (read to its end).
    """
    documents = finished(_describe(access, group, options))
    if as_json:
        print_json(documents)
        return
    for number, document in enumerate(documents):
        if number:
            click.echo()
        _print_document(document)


async def _describe(
    access: KinesisAccess, group: str, options: dict[str, Any]
) -> list[dict[str, Any]]:
    from headrace.core.lease.names import shown
    from headrace.kinesis.leases.administration import watched

    wait_ms = round(options["watch_s"] * 1000)
    documents = []
    async with access.store() as store:
        for stream in await group_streams(store, group, options["stream"]):
            watch = await watched(store, group, stream, wait_ms=wait_ms)
            lags: list[int | None] = [None] * len(watch.leases)
            if not options["no_lag"]:
                lags = await _lags(access, stream, watch.leases)
            ended = {lease.key.shard for lease in watch.leases if lease.checkpoint.is_end}
            there = {lease.key.shard for lease in watch.leases}
            members = {lease.owner for lease in watch.leases} | {
                lease.next_owner for lease in watch.leases
            }
            names = shown(member for member in members if member is not None)
            silent = {lease.owner for lease in watch.leases} - watch.alive if wait_ms else set()
            documents.append(
                {
                    "group": group,
                    "stream": stream,
                    "owners": sorted(
                        {names[lease.owner] for lease in watch.leases if lease.owner is not None}
                    ),
                    "lag_ms": max((lag for lag in lags if lag is not None), default=None),
                    "shards": [
                        _row(lease, _state(lease, silent, there - ended), lag, names)
                        for lease, lag in zip(watch.leases, lags, strict=True)
                    ],
                }
            )
    return documents


def _state(lease: Lease, silent: set[str | None], unfinished: set[str]) -> str:
    if lease.checkpoint.is_end:
        return "ended"
    if lease.owner is not None:
        return "silent" if lease.owner in silent else "owned"
    return "waits" if lease.parents & unfinished else "free"


def _row(lease: Lease, state: str, lag_ms: int | None, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "shard": lease.key.shard,
        "state": state,
        "owner": None if lease.owner is None else names[lease.owner],
        "member_id": lease.owner,
        "epoch": lease.epoch,
        "position": position_text(lease.checkpoint),
        "lag_ms": lag_ms,
        "bytes_per_s": round(lease.bytes_per_s),
        "next_owner": None if lease.next_owner is None else names[lease.next_owner],
        "parents": sorted(lease.parents),
    }


async def _lags(access: KinesisAccess, stream: str, leases: Sequence[Lease]) -> list[int | None]:
    from headrace.errors import StreamNotFoundError
    from headrace.kinesis.reading.lag import lag_ms
    from headrace.kinesis.reading.shards import StreamShards

    name, few = name_of(stream), asyncio.Semaphore(_AT_ONCE)
    async with access.client() as client:
        try:
            current = await is_stream_of_leases(StreamShards(client, name), stream)
        except StreamNotFoundError as error:
            say(f"No lag: {error}")
            return [None] * len(leases)
        if not current:
            say(
                f"No lag: the stream {name} was deleted and created again; the leases belong to the earlier stream"
            )
            return [None] * len(leases)

        async def lag(lease: Lease) -> int | None:
            async with few:
                return await lag_ms(client, name, lease.key.shard, lease.checkpoint, now_ms())

        return await asyncio.gather(*map(lag, leases))


def _print_document(document: dict[str, Any]) -> None:
    lag = document["lag_ms"]
    facts = {
        "group": document["group"],
        "stream": document["stream"],
        "owners": len(document["owners"]),
        "lag ms": "-" if lag is None else lag,
    }
    print_facts(facts, 9)
    click.echo()
    keys = ("shard", "state", "owner", "epoch", "position", "lag_ms")
    columns = ("SHARD", "STATE", "OWNER", "EPOCH", "POSITION", "LAG MS")
    print_table(columns, [[row[key] for key in keys] for row in document["shards"]])
