"""The position of a bridge in each shard: records of a compacted topic, in the transactions that copy the records.

A position is written in the transaction of the records before it: either all of them are committed or none. A process
takes a shard over in three steps. (1) It takes over the transactional id of the shard. This ends the transaction of the
previous owner and fences that owner. (2) It commits a mark behind all positions. (3) It reads committed records up to
its mark. Then the last position that it has read is the last one of the shard until it writes one itself. A mark
contains the lease by which the shard was taken over. So a fenced process learns from the next mark which process has
fenced it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from headrace.clients.admin.aio import Admin
from headrace.clients.consumer.aio import Consumer
from headrace.clients.drivers import Target
from headrace.clients.producer.aio import Producer
from headrace.core.lease.checkpoint import Checkpoint, parse_checkpoint
from headrace.core.lease.lease import Lease
from headrace.errors import ConfigError, TopicAlreadyExistsError, TransportError
from headrace.types import TopicPartition

_CONFIGS: Final = {"cleanup.policy": "compact", "segment.bytes": str(16 << 20)}
_POLL_S: Final = 0.2
_MARK: Final = "/taken-over-by"


class TakeOver(NamedTuple):
    """The state of a shard that a process finds when it takes the shard over."""

    position: Checkpoint | None
    """The committed position. None: no process has begun to copy the shard."""
    rivals: list[str]
    """The claims of other processes that have taken the shard over since this process last did, in their order."""


def claim_of(lease: Lease) -> str:
    """Return the claim of a lease to a shard. Of two claims the one of the later lease is greater."""
    return f"{lease.epoch:020d}/{lease.owner}"


class _Written(msgspec.Struct):
    position: str
    sub_sequence: int | None = None


class BridgePositions:
    """The positions of one bridge."""

    def __init__(
        self, target: Target, name: str, properties: Mapping[str, Any], timeout_s: float
    ) -> None:
        """Prepare the positions; nothing is connected yet.

        Args:
            target: The brokers.
            name: The name of the bridge.
            properties: The properties of a client.
            timeout_s: The time in seconds for which open transactions of other processes may delay reading.
        """
        self.topic = f"__bridge.{name}"
        self._target = target
        self._properties = properties
        self._timeout_s = timeout_s
        self._place = TopicPartition(self.topic, 0)
        self._consumer = Consumer(
            target,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            serde="bytes",
            key_serde="bytes",
            **properties,
        )
        self._reading = asyncio.Lock()
        self._found: dict[str, bytes] = {}
        self._marks: defaultdict[str, list[str]] = defaultdict(list)
        """The claims in marks by shard, since this process last took the shard over."""

    async def open(self) -> None:
        """Create the topic if it is missing, and read the committed positions.

        Raises:
            ConfigError: The topic exists, but is not compacted.
            TransportError: The topic cannot be read in time.
        """
        async with Admin(self._target, **self._properties) as admin:
            try:
                await admin.create_topic(self.topic, 1, configs=_CONFIGS)
            except TopicAlreadyExistsError:
                policy = (await admin.configs(self.topic))["cleanup.policy"].value
                if policy != "compact":
                    raise ConfigError(
                        f"the topic {self.topic} has cleanup.policy={policy}, which deletes the bridge's positions: "
                        "set it to compact"
                    ) from None
        await self._consumer.assign([self._place])
        await self._consumer.seek_to_beginning()
        end = (await self._consumer.end_offsets([self._place]))[self._place]
        patience = _Patience(self._timeout_s, self._consumer)
        async with self._reading:
            while (position := await self._consumer.position(self._place)) < end:
                if not await self._read() and patience.is_over:
                    raise patience.error(
                        f"{self.topic} was read up to offset {position} of {end} within {self._timeout_s:g} s, and no "
                        "further records arrive: start the bridge again when the brokers answer faster"
                    )

    async def close(self) -> None:
        """Disconnect from the brokers."""
        await self._consumer.close(commit=False)

    def known(self, stream: str) -> dict[str, Checkpoint]:
        """Return the positions that were read so far, by shard."""
        prefix = f"{stream}/"
        return {
            key.removeprefix(prefix): _parsed(value)
            for key, value in self._found.items()
            if key.startswith(prefix)
        }

    async def take_over(self, producer: Producer, stream: str, shard: str, claim: str) -> TakeOver:
        """Fence the process that has copied a shard before, and return its last position.

        Args:
            producer: A producer with the shard's transactional id.
            stream: The stream as `<name>@<creation time>`.
            shard: The id of the shard, such as `shardId-000000000001`.
            claim: The claim of this process; see `claim_of`.

        Raises:
            TransportError: Open transactions of other processes delay it for too long, or the brokers do not answer.
        """
        await producer.init_transactions()
        key, mark = f"{stream}/{shard}{_MARK}", f"{claim}/{uuid.uuid4().hex}"
        async with producer.transaction():
            _ = await producer.send(self.topic, mark.encode(), key=key.encode(), partition=0)
        patience = _Patience(self._timeout_s, self._consumer)
        marks = self._marks[key]
        while mark not in marks:
            if patience.is_over:
                raise patience.error(
                    f"{self.topic} cannot be read to its end: an open transaction of a killed bridge delays it, until "
                    "the bridge takes its shards over or transaction.timeout.ms has passed"
                )
            async with self._reading:
                if mark not in marks:
                    await self._read()
        rivals = [each.rpartition("/")[0] for each in marks[: marks.index(mark)]]
        del marks[: marks.index(mark) + 1]
        return TakeOver(self.known(stream).get(shard), rivals)

    async def write(
        self, producer: Producer, stream: str, shard: str, position: Checkpoint
    ) -> None:
        """Add a position to the open transaction of a producer."""
        value = msgspec.json.encode(_Written(position.position, position.sub_sequence))
        _ = await producer.send(self.topic, value, key=f"{stream}/{shard}".encode(), partition=0)

    async def _read(self) -> bool:
        records = await self._consumer.poll(_POLL_S)
        for record in records:
            key, value = record.key.decode(), record.value
            if key.endswith(_MARK):
                self._marks[key].append(value.decode())
            else:
                self._found[key] = value
        return bool(records)


class _Patience:
    """A time limit for the arrival of records, and the error when it has passed."""

    def __init__(self, timeout_s: float, consumer: Consumer) -> None:
        self._limit_s = asyncio.get_running_loop().time() + timeout_s
        self._engine = consumer._driver.engine  # noqa: SLF001 - only the engine knows the reasons of retries
        self._began_ms = self._engine.now_ms

    @property
    def is_over(self) -> bool:
        return asyncio.get_running_loop().time() > self._limit_s

    def error(self, text: str) -> TransportError:
        return TransportError(self._engine.trouble.explain(text, self._began_ms))


def _parsed(value: bytes) -> Checkpoint:
    written = msgspec.json.decode(value, type=_Written)
    return parse_checkpoint(written.position, written.sub_sequence)
