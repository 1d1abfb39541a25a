"""Transactional producers for the programs: Headrace's own with both transaction versions, and a raw one."""

from __future__ import annotations

import random
from functools import partial
from typing import Any, Protocol

from headrace.clients.config import ClientConfig, ProducerConfig
from headrace.clients.consumer.group_metadata import GroupMetadata
from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.producer.core import ProducerCore
from headrace.clients.producer.delivery import Delivery
from headrace.clients.producer.transaction_offsets import member_of
from headrace.errors import (
    AbortableTransactionError,
    ApiError,
    CommitInDoubtError,
    ErrorCode,
    FatalTransactionError,
    HeadraceError,
    TransportError,
)
from headrace.types import TopicPartition
from tests.simulation.clients import Client, Process, Program
from tests.simulation.knobs import CALL_LIMIT_MS
from tests.simulation.raw import RawProducer

LONG_MS = 1 << 40
CALL_MS = CALL_LIMIT_MS // 2
BATCH = 10
"""The number of records in a batch. The batch fits into a small segment."""
FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})


class FencedError(Exception):
    """The producer is fenced: another producer has its id, or its transaction timed out. The process ends."""


class FailedError(Exception):
    """The transaction has failed, or its outcome is unknown. The program begins another transaction."""


class Producer(Protocol):
    """The transactional producer that a program calls."""

    def begin(self) -> Program: ...

    def write(self, name: TopicPartition, values: list[bytes]) -> Program: ...

    def send_offsets(self, offsets: dict[TopicPartition, int], group: GroupMetadata) -> Program: ...

    def end(self, *, committed: bool) -> Program: ...


class Raw:
    """The raw producer of transaction version 1. Each error ends its transaction, and `init` aborts it."""

    def __init__(
        self, process: Process, name: str, timeout_ms: int, options: dict[str, Any]
    ) -> None:
        config = ClientConfig(client_id=f"{process.name}-p", **options)
        self._client = Client(process, config, speaks_v2=False)
        self._raw = RawProducer(self._client.state, name, timeout_ms)
        self._known = False

    def begin(self) -> Program:
        if not self._known:
            yield from self._run(self._raw.init(), LONG_MS)
            self._known = True

    def write(self, name: TopicPartition, values: list[bytes]) -> Program:
        for start in range(0, len(values), BATCH):
            batch = values[start : start + BATCH]
            yield from self._run(self._raw.send(name, batch, self._client.engine.now_ms), CALL_MS)

    def send_offsets(self, offsets: dict[TopicPartition, int], group: GroupMetadata) -> Program:
        yield from self._run(self._raw.send_offsets(offsets, group), CALL_MS)

    def end(self, *, committed: bool) -> Program:
        yield from self._run(self._raw.end(committed=committed), LONG_MS)

    def _run(self, flow: Any, timeout_ms: int) -> Program:
        try:
            yield self._client, flow, timeout_ms
        except HeadraceError as error:
            self._known = False
            if isinstance(error, ApiError) and error.code in FENCED:
                raise FencedError(str(error)) from error
            raise FailedError(str(error)) from error


class Ours:
    """The producer of the library, as `headrace.Producer` runs it."""

    def __init__(
        self,
        process: Process,
        name: str,
        timeout_ms: int,
        options: dict[str, Any],
        *,
        speaks_v2: bool,
        chance: random.Random,
    ) -> None:
        config = ProducerConfig(
            client_id=f"{process.name}-p",
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            linger_ms=chance.choice([0, 5]),
            batch_size=600,
            delivery_timeout_ms=1500,
            max_block_ms=CALL_LIMIT_MS,
            **options,
        )
        self._client = Client(process, config, speaks_v2=speaks_v2)
        self._core: ProducerCore[Delivery] = ProducerCore(
            self._client.engine, config, delivery=partial(Delivery, None), choose=chance.randrange
        )

    def begin(self) -> Program:
        yield from self._run(self._core.transaction().begin())

    def write(self, name: TopicPartition, values: list[bytes]) -> Program:
        for value in values:
            try:
                while not self._send(name, value):
                    yield from self._run(self._core.prepare(name.topic, name.partition))
            except HeadraceError as error:
                yield from self._failed(error)
        self._client.follow()

    def _send(self, name: TopicPartition, value: bytes) -> bool:
        sent = self._core.send(
            name.topic,
            value,
            key=None,
            headers=(),
            timestamp_ms=None,
            partition=name.partition,
            on_delivery=None,
        )
        return sent is not None

    def send_offsets(self, offsets: dict[TopicPartition, int], group: GroupMetadata) -> Program:
        positions = {name: OffsetAndMetadata(offset) for name, offset in offsets.items()}
        member = member_of(group)
        flow = self._core.transaction().send_offsets(positions, member, check=lambda: None)
        yield from self._run(flow)

    def end(self, *, committed: bool) -> Program:
        if not committed:
            yield from self._abort()
            return
        while True:
            try:
                yield self._client, self._core.transaction().commit(CALL_MS), CALL_LIMIT_MS
            except CommitInDoubtError:
                yield 10
            except HeadraceError as error:
                yield from self._failed(error)
            else:
                return

    def _run(self, flow: Any) -> Program:
        try:
            yield self._client, flow, CALL_LIMIT_MS
        except HeadraceError as error:
            yield from self._failed(error)

    def _failed(self, error: HeadraceError) -> Program:
        if isinstance(error, FatalTransactionError):
            raise FencedError(str(error)) from error
        if self._core.transaction().under_way:
            yield from self._abort()
        raise FailedError(str(error)) from error

    def _abort(self) -> Program:
        while self._core.transaction().under_way:
            try:
                yield self._client, self._core.transaction().abort(CALL_MS), CALL_LIMIT_MS
            except FatalTransactionError as error:
                raise FencedError(str(error)) from error
            except (TransportError, AbortableTransactionError):
                yield 10


__all__ = ["FailedError", "FencedError", "Ours", "Producer", "Raw"]
