"""How far a bridge has come in each shard: records of a compacted topic, written together with what was copied.

A position is written in the transaction of the records before it, so either all of them are there or none. Who takes a
shard over (1) takes its transactional id over, which ends whatever the owner before had begun and shuts that one out;
(2) commits a mark of its own behind all positions; (3) reads committed records up to its mark. What it has seen then is
the last position of the shard, and there will be no other than its own. A mark says by which lease a shard was taken
over, so whoever is shut out learns from the next mark by whom.
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
    """What is found at a take-over."""

    position: Checkpoint | None
    """What was committed; None: nobody has begun."""
    rivals: list[str]
    """The claims of those who have taken the shard over since this process did before, as far as they came."""


def claim_of(lease: Lease) -> str:
    """Return by what right a shard is taken over; of two claims the later lease's is greater."""
    return f"{lease.epoch:020d}/{lease.owner}"


class _Written(msgspec.Struct):
    position: str
    sub_sequence: int | None = None


class BridgePositions:
    """The positions of one bridge."""

    def __init__(
        self, target: Target, name: str, properties: Mapping[str, Any], timeout_s: float
    ) -> None:
        """Take where the topic is; nothing is connected yet.

        Args:
            target: The brokers.
            name: The name of the bridge.
            properties: The properties of a client.
            timeout_s: How long open transactions of others may hold up reading.
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
        """By shard, from the last take-over of this process on."""

    async def open(self) -> None:
        """Create the topic if it is missing, and read what is committed: a bridge that has positions is no new one.

        Raises:
            ConfigError: There is a topic of this name that would forget positions.
            TransportError: It cannot be read.
        """
        async with Admin(self._target, **self._properties) as admin:
            try:
                await admin.create_topic(self.topic, 1, configs=_CONFIGS)
            except TopicAlreadyExistsError:
                policy = (await admin.configs(self.topic))["cleanup.policy"].value
                if policy != "compact":
                    raise ConfigError(
                        f"the topic {self.topic} has cleanup.policy={policy}, and would forget how far the bridge "
                        "is: set it to compact"
                    ) from None
        await self._consumer.assign([self._place])
        await self._consumer.seek_to_beginning()
        end = (await self._consumer.end_offsets([self._place]))[self._place]
        patience = _Patience(self._timeout_s, self._consumer)
        async with self._reading:
            while (position := await self._consumer.position(self._place)) < end:
                if not await self._read() and patience.is_over:
                    raise patience.error(
                        f"{self.topic} was read up to offset {position} of {end} within {self._timeout_s:g} s, and "
                        "nothing more comes: start the bridge again when the brokers answer faster"
                    )

    async def close(self) -> None:
        """Disconnect."""
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
        """Shut out who has copied a shard before, and return where that one came to.

        Args:
            producer: One with the shard's transactional id.
            stream: `<name>@<creation time>`.
            shard: As `shardId-000000000001`.
            claim: By what right.

        Raises:
            TransportError: Transactions of others hold it up for too long, or nobody answers.
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
                    f"{self.topic} cannot be read to its end: a transaction of a bridge that was killed holds it up, "
                    "until the bridge takes its shards over or transaction.timeout.ms is over"
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
        """Add a position to the transaction that is open."""
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
    """How long is waited for records, and the error when they have not come."""

    def __init__(self, timeout_s: float, consumer: Consumer) -> None:
        self._limit_s = asyncio.get_running_loop().time() + timeout_s
        self._engine = consumer._driver.engine  # noqa: SLF001 - what was tried again is known only there
        self._began_ms = self._engine.now_ms

    @property
    def is_over(self) -> bool:
        return asyncio.get_running_loop().time() > self._limit_s

    def error(self, text: str) -> TransportError:
        return TransportError(self._engine.trouble.explain(text, self._began_ms))


def _parsed(value: bytes) -> Checkpoint:
    written = msgspec.json.decode(value, type=_Written)
    return parse_checkpoint(written.position, written.sub_sequence)
