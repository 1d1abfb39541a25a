"""Copies a stream into a topic: processes share the shards by leases, and transactions fence them."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from headrace.clients.drivers import Target
from headrace.core.lease.actions import Why
from headrace.core.lease.checkpoint import TRIM_HORIZON, Checkpoint
from headrace.core.lease.lease import HashRange, Lease, LeaseKey
from headrace.core.lease.settings import LeaseSettings
from headrace.errors import ConfigError, ProducerFencedError
from headrace.kinesis.bridge.names import StreamPlace, check_topic
from headrace.kinesis.bridge.positions import BridgePositions
from headrace.kinesis.bridge.shard_copy import CopyProgress, Destination, ShardCopy
from headrace.kinesis.client.backoff import FIRST_CONTACT_MS
from headrace.kinesis.client.opening import open_client
from headrace.kinesis.client.settings import AwsClient
from headrace.kinesis.group.member import LeaseMember
from headrace.kinesis.group.owners import process_owner
from headrace.kinesis.leases.opening import open_store
from headrace.kinesis.reading.reader import Reader, ShardReader
from headrace.kinesis.reading.settings import ReadSettings
from headrace.kinesis.reading.shards import StreamShards

TRANSACTION_TIMEOUT_MS = 30_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IntoTopic:
    """The plan of a bridge from a stream into a topic.

    Attributes:
        source: The stream.
        target: The brokers.
        topic: The topic that receives the records.
        name: The bridge's name. Two processes with one name share the shards; bridges with different names copy all
            records each.
        start: The position at which a new bridge begins; None is LATEST.
        leases: The URL of the lease store. None: leases in memory, for one process.
        once: Whether the bridge ends when all present records are copied.
        properties: The properties of clients and producers.
        reading: The settings of reading a shard.
        lease_settings: The settings of leases.
    """

    source: StreamPlace
    target: Target
    topic: str
    name: str
    start: Checkpoint | None = TRIM_HORIZON
    leases: str | None = None
    once: bool = False
    properties: Mapping[str, Any] = field(default_factory=dict)
    client_properties: Mapping[str, Any] = field(default_factory=dict)
    reading: ReadSettings = field(default_factory=ReadSettings)
    lease_settings: LeaseSettings = field(default_factory=LeaseSettings)

    @property
    def group(self) -> str:
        """The name of the bridge's leases."""
        return f"__bridge.{self.name}"


def lease_settings(duration_ms: int) -> LeaseSettings:
    """Return settings for leases of this duration. All members of one bridge must have the same."""
    return LeaseSettings(
        duration_ms=duration_ms,
        renew_ms=duration_ms // 3,
        margin_ms=duration_ms // 10,
        call_timeout_ms=duration_ms // 6,
        scan_ms=duration_ms // 3,
        list_ms=min(60_000, 2 * duration_ms),
        stalled_ms=4 * duration_ms,
    )


class IntoTopicBridge:
    """Copies the shards whose leases the bridge's member owns; it implements `LeaseListener`."""

    def __init__(self, plan: IntoTopic) -> None:
        """Prepare a bridge; nothing is connected yet."""
        self._plan = plan
        self.progress = CopyProgress()
        self._copies: dict[LeaseKey, tuple[ShardCopy, asyncio.Task[None]]] = {}
        self._ranges: dict[str, HashRange] = {}
        self._done: asyncio.Future[None] | None = None
        self._member: LeaseMember | None = None
        self._client: AwsClient | None = None
        self._destination: Destination | None = None

    async def run(self, stopping: asyncio.Event) -> None:
        """Copy until `stopping` is set, or, with `once`, until all present records are copied.

        Raises:
            ConfigError: The settings cannot be used.
            HeadraceError: The bridge cannot continue.
        """
        plan = self._plan
        if plan.once and plan.leases is not None:
            raise ConfigError(
                "once works in one process only, which reads all shards: leave out leases, or once"
            )
        self._done = asyncio.get_running_loop().create_future()
        async with AsyncExitStack() as stack:
            self._client = await stack.enter_async_context(open_client(plan.source.aws, "kinesis"))
            shards = StreamShards(self._client, plan.source.stream)
            stream = await shards.describe(answer_within_ms=FIRST_CONTACT_MS)
            positions = await self._open_positions(stack)
            store = open_store(plan.leases or f"memory://{uuid.uuid4().hex}", plan.source.aws)
            await store.open()
            stack.push_async_callback(store.close)
            listed = await shards.list_shards()
            known = positions.known(stream.stream)
            start = plan.start
            if known and not known.keys() & {shard.shard for shard in listed}:
                start = TRIM_HORIZON  # all shards that it has read have expired: the present ones are newer
            for shard in listed:
                self._ranges[shard.shard] = shard.hash_range
                if shard.shard in known:
                    if known[shard.shard].is_end:
                        self.progress.ended.add(shard.shard)
                    key = LeaseKey(plan.group, stream.stream, shard.shard)
                    await store.create(
                        Lease(
                            key=key,
                            checkpoint=known[shard.shard],
                            parents=shard.parents,
                            hash_range=shard.hash_range,
                        )
                    )
            settings = replace(plan.lease_settings, start=start)
            self._member = LeaseMember(
                store,
                plan.group,
                {stream.stream: shards},
                self,
                settings,
                owner=process_owner("headrace-bridge"),
            )
            stack.push_async_callback(self._end)
            await self._member.start()
            await self._wait(stopping, shards)

    async def _open_positions(self, stack: AsyncExitStack) -> BridgePositions:
        plan = self._plan
        await check_topic(plan.target, plan.topic, plan.client_properties)
        timeout_ms = int(plan.properties.get("transaction_timeout_ms", TRANSACTION_TIMEOUT_MS))
        positions = BridgePositions(
            plan.target, plan.name, plan.client_properties, 2 * timeout_ms / 1000 + 10
        )
        stack.push_async_callback(positions.close)
        await positions.open()
        self._destination = Destination(
            target=plan.target,
            topic=plan.topic,
            name=plan.name,
            properties={"transaction_timeout_ms": timeout_ms, **plan.properties},
            positions=positions,
            client_properties=plan.client_properties,
        )
        return positions

    async def _wait(self, stopping: asyncio.Event, shards: StreamShards) -> None:
        assert self._done is not None
        stop = asyncio.ensure_future(stopping.wait())
        once = asyncio.ensure_future(self._everything(shards)) if self._plan.once else None
        waiting: set[asyncio.Future[Any]] = {stop, self._done, *((once,) if once else ())}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting - {self._done}:
                each.cancel()
        if self._done.done():
            self._done.result()
        if once is not None and once.done() and not once.cancelled():
            once.result()

    async def _everything(self, shards: StreamShards) -> None:
        """Wait until each shard has ended, or is read to its newest record."""
        while True:
            progress = self.progress
            left = {
                shard.shard
                for shard in await shards.list_shards()
                if shard.shard not in progress.ended and progress.behind_ms.get(shard.shard) != 0
            }
            if not left:
                return
            await asyncio.sleep(0.2)

    async def _end(self) -> None:
        assert self._member is not None
        await self._member.close()
        tasks = [task for _, task in self._copies.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Calls of the member

    async def assigned(self, lease: Lease) -> None:
        """Start to copy a shard."""
        assert self._destination is not None
        assert self._member is not None
        member = self._member
        if lease.hash_range is not None:
            self._ranges[lease.key.shard] = lease.hash_range
        copy = ShardCopy(
            self._destination,
            lease,
            lambda start: self._reader(lease.key, start),
            self.progress,
            valid=lambda: member.valid(lease.key),
            committed=lambda position, size: self._committed(lease.key, position, size),
            chance=random.random,
        )
        self._copies[lease.key] = (copy, asyncio.create_task(self._copy(lease.key, copy)))

    def _reader(self, key: LeaseKey, start: Checkpoint) -> Reader:
        assert self._client is not None
        return ShardReader(
            self._client,
            self._plan.source.stream,
            key.shard,
            start,
            settings=self._plan.reading,
            hash_range=self._ranges.get(key.shard),
            lease_stream=key.stream,
        )

    def _committed(self, key: LeaseKey, position: Checkpoint, size: int) -> None:
        assert self._member is not None
        self._member.progressed(key, size)
        if not position.is_end:
            self._member.advance(key, position)

    async def _copy(self, key: LeaseKey, copy: ShardCopy) -> None:
        assert self._member is not None
        try:
            ended = await copy.run()
        except ProducerFencedError as error:
            if not self._member.valid(key):
                return  # the lease has expired, and its new owner has begun
            await self.failed(error)
        except Exception as error:  # noqa: BLE001 - any error: a shard that is not copied must be reported
            await self.failed(error)
        else:
            if ended:
                self._member.ended(key, list(copy.children))
                return
        self._member.drained(key, copy.position)  # needed if the shard was being drained

    async def drain(self, key: LeaseKey, why: Why, deadline_ms: int | None) -> None:  # noqa: ARG002 - of the protocol
        """Finish the open transaction of a shard."""
        if key not in self._copies:
            return
        copy, task = self._copies[key]
        copy.stop()
        if task.done() and self._member is not None:
            # The copy has failed: there is nothing to finish.
            self._member.drained(key, copy.position)

    async def restart(self, key: LeaseKey) -> None:
        """Restart the reader of a shard."""
        if key in self._copies:
            self._copies[key][0].restart()

    async def revoked(self, key: LeaseKey, why: Why) -> None:  # noqa: ARG002 - of the protocol
        """Stop copying a shard. The open transaction is aborted, and the new owner copies its records."""
        found = self._copies.pop(key, None)
        self.progress.behind_ms.pop(key.shard, None)
        if found is not None and found[1] is not asyncio.current_task():
            found[1].cancel()
            await asyncio.gather(found[1], return_exceptions=True)

    async def failed(self, error: Exception) -> None:
        """End the bridge with an error."""
        assert self._done is not None
        if not self._done.done():
            self._done.set_exception(error)
