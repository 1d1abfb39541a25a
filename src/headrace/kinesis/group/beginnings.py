"""The parts with which a member begins: the open lease store, and its settings with the group's start position."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.core.lease.settings import LeaseSettings
from headrace.errors import ConfigError
from headrace.kinesis.client.backoff import RealTiming, repeated
from headrace.kinesis.client.errors import error_code
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.client.streams import stream_arguments
from headrace.kinesis.leases.opening import open_store
from headrace.kinesis.reading.positions import iterator_arguments
from headrace.kinesis.reading.shards import StreamShards

if TYPE_CHECKING:
    from headrace.kinesis.group.settings import StreamGroupSettings
    from headrace.kinesis.leases.store import LeaseStore


@asynccontextmanager
async def opened_store(streams: StreamGroupSettings) -> AsyncIterator[LeaseStore]:
    """Open the lease store. A store that the program passed is not closed at the end.

    Raises:
        ConfigError: The store cannot be used with these settings.
        LeaseStoreError: The store does not answer.
    """
    given = streams.leases
    store = open_store(given, streams.aws) if isinstance(given, str) else given
    try:
        await store.open()
        yield store
    finally:
        if isinstance(given, str):
            await store.close()


async def lease_settings(
    streams: StreamGroupSettings,
    client: AwsClient,
    store: LeaseStore,
    group: str,
    shards: Mapping[str, StreamShards],
) -> LeaseSettings:
    """Return the settings of a member.

    Args:
        streams: The streams and the settings of reading and of leases.
        client: The client of Kinesis.
        store: The lease store.
        group: The group's name.
        shards: The shard listers, by the name that lease keys use for the stream.

    Raises:
        ConfigError: The group is to begin behind a sequence number that belongs to no shard.
    """
    settings = replace(streams.lease, start=streams.start, stalled_ms=streams.reading.stall_ms)
    if streams.start is None or not streams.start.is_sequence_number:
        return settings
    starts = {}
    if not any([await store.leases(group, stream) for stream in shards]):
        starts = {await _shard_of(streams, client, shards, streams.start): streams.start}
    return replace(settings, start=TRIM_HORIZON, starts=starts)


async def _shard_of(
    streams: StreamGroupSettings,
    client: AwsClient,
    shards: Mapping[str, StreamShards],
    number: Checkpoint,
) -> str:
    """Return the shard of a sequence number. Kinesis refuses the number for every other shard."""
    for name, lister in zip(streams.names, shards.values(), strict=True):
        for shard in await lister.list_shards():
            try:
                place = {**stream_arguments(name), "ShardId": shard.shard}
                await repeated(
                    partial(client.get_shard_iterator, **place, **iterator_arguments(number)),
                    f"looking for a sequence number in {shard.shard} of stream {name}",
                    client,
                    RealTiming(),
                )
            except Exception as error:
                if error_code(error.__cause__ or error) != "InvalidArgumentException":
                    raise
            else:
                return shard.shard
    raise ConfigError(
        f"start=AFTER:{number.position}: no shard of {', '.join(streams.names)} has this sequence number"
    )
