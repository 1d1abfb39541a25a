"""Produce requests that wait until their batches are durable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headrace.broker.waiting.purgatory import Purgatory
from headrace.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.protocol.messages.produce import PartitionProduceResponse, ProduceResponse


class AwaitedPartition(Protocol):
    """A partition that reports when enough replicas have its records."""

    def wait(self, acks: int, end_offset: int, waiter: Callable[[ErrorCode], None], /) -> object:
        """Call `waiter` with NONE when records up to `end_offset` are acknowledged, or with the error."""


class DelayedProduce:
    """A produce response that is sent when each of its batches is acknowledged, or has failed."""

    __slots__ = ("_done", "_pending", "_purgatory", "_response", "_waits", "deferred")

    def __init__(self, response: ProduceResponse, purgatory: Purgatory) -> None:
        self.deferred: Deferred[ProduceResponse] = Deferred(self._cancel)
        self._response: ProduceResponse | None = response
        self._purgatory = purgatory
        self._pending: dict[int, PartitionProduceResponse] = {}
        self._waits = 0
        self._done = False

    def wait_for(
        self,
        partition: AwaitedPartition,
        acks: int,
        end_offset: int,
        part: PartitionProduceResponse,
    ) -> None:
        """Delay the response until as many replicas as `acks` says have the records up to `end_offset`."""
        number = self._waits
        self._waits += 1
        self._pending[number] = part
        partition.wait(acks, end_offset, lambda error: self._partition_completed(number, error))

    def _partition_completed(self, number: int, error: ErrorCode) -> None:
        part = None if self._done else self._pending.pop(number, None)
        if part is None:
            return
        if error is not ErrorCode.NONE:
            _fail(part, error)
        if not self._pending:
            self._complete()

    def expire(self) -> None:
        """Answer REQUEST_TIMED_OUT for the batches that are not durable. They may become durable later."""
        for part in self._pending.values():
            _fail(part, ErrorCode.REQUEST_TIMED_OUT)
        self._complete()

    def _complete(self) -> None:
        self._done = True
        response = self._response
        if response is not None:
            self._purgatory.complete(self, lambda: self.deferred.resolve(response))

    def _cancel(self) -> None:
        """Release everything. The records become durable nevertheless."""
        self._done = True
        self._response = None
        self._pending.clear()
        self._purgatory.forget(self)


def _fail(part: PartitionProduceResponse, error: ErrorCode) -> None:
    part.error_code = error
    part.base_offset = -1
    part.log_append_time_ms = -1
