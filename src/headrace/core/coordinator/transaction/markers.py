"""The completion of a transaction: its markers, and the record that says that they are all there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Final

from headrace.core.coordinator.runtime import NOTHING, Result
from headrace.core.coordinator.transaction.records import TransactionMetadata, TransactionRecord
from headrace.core.coordinator.transaction.shard import (
    MARKERS,
    RETRY,
    CoordinatedTransaction,
    TransactionOutcome,
    TransactionShard,
)
from headrace.core.coordinator.transaction.states import TransactionState
from headrace.errors import ErrorCode
from headrace.types import NO_PRODUCER_ID, TopicPartition

MARKERS_AT_ONCE: Final = 32
"""Markers that are written in one step: each may be the first batch of a partition, for which files are made."""
_ATTEMPTS_UNTIL_TOLD: Final = 4
_NAMED: Final = 5
"""How many partitions a line names."""


def complete(shard: TransactionShard, transaction: CoordinatedTransaction, now_ms: int) -> None:
    """Write the markers of a prepared transaction, as soon as its decision cannot be lost any more.

    A marker that was there before its decision is durable could contradict what is decided after a crash.
    """
    metadata = transaction.metadata

    def durable(error: ErrorCode) -> None:
        if not shard.is_current(transaction, metadata):
            return
        if error is ErrorCode.NONE:
            transaction.unmarked = set(metadata.partitions)
            _write(shard, transaction, transaction.unmarked, now_ms)
        elif error is not ErrorCode.NOT_COORDINATOR:
            _retry(shard, transaction, now_ms)

    shard.when_durable(durable, now_ms)


def retry(shard: TransactionShard, transaction: CoordinatedTransaction, now_ms: int) -> None:
    """Go on with what could not be done before."""
    if transaction.unmarked is None:
        complete(shard, transaction, now_ms)
        return
    failed, transaction.failed = transaction.failed, {}
    transaction.attempts += 1
    if transaction.attempts == _ATTEMPTS_UNTIL_TOLD:
        _tell(shard, transaction, failed)
    _write(shard, transaction, failed, now_ms)


def _tell(
    shard: TransactionShard,
    transaction: CoordinatedTransaction,
    failed: Mapping[TopicPartition, ErrorCode],
) -> None:
    """Say once that this takes long, and what can be done about it."""
    shard.journal.error(
        "transaction_markers_refused",
        transactional_id=transaction.transactional_id,
        producer_id=transaction.metadata.producer_id,
        state=transaction.metadata.state.value,
        refused=", ".join(f"{at}: {error.name}" for at, error in sorted(failed.items())[:_NAMED]),
        meaning="it is decided, but its partitions have no marker yet: its producer and read_committed consumers wait",
        remedy="make the partitions writable, or end it there with `kafka-transactions abort`, or delete the topic",
    )


def _write(
    shard: TransactionShard,
    transaction: CoordinatedTransaction,
    partitions: Collection[TopicPartition],
    now_ms: int,
) -> None:
    """Have markers written, besides those that have yet to be written: some at once, the others in further steps."""
    transaction.unwritten = sorted({*transaction.unwritten, *partitions}, reverse=True)
    go_on(shard, transaction, now_ms)


def go_on(shard: TransactionShard, transaction: CoordinatedTransaction, now_ms: int) -> None:
    """Write the next markers."""
    metadata, unwritten = transaction.metadata, transaction.unwritten
    outcome = TransactionOutcome(
        metadata.producer_id,
        metadata.producer_epoch,
        metadata.state is TransactionState.PREPARE_COMMIT,
        metadata.client_transaction_version,
    )
    for _ in range(min(MARKERS_AT_ONCE, len(unwritten))):
        partition = unwritten.pop()
        done = partial(_marked, shard, transaction, metadata, partition=partition, now_ms=now_ms)
        shard.writer.write(shard.partition, outcome, partition, done, now_ms)
        if not shard.is_current(transaction, metadata):
            return
    if unwritten:
        shard.timers.set(shard.timer(MARKERS, transaction.transactional_id), now_ms + 1)
    elif not transaction.unmarked:
        _finish(shard, transaction, now_ms)


def _marked(
    shard: TransactionShard,
    transaction: CoordinatedTransaction,
    metadata: TransactionMetadata,
    error: ErrorCode,
    *,
    partition: TopicPartition,
    now_ms: int,
) -> None:
    if not shard.is_current(transaction, metadata) or transaction.unmarked is None:
        return
    if error is not ErrorCode.NONE:
        transaction.failed[partition] = error
        _retry(shard, transaction, now_ms)
        return
    transaction.unmarked.discard(partition)
    if not transaction.unmarked:
        _finish(shard, transaction, now_ms)


def _finish(shard: TransactionShard, transaction: CoordinatedTransaction, now_ms: int) -> None:
    metadata = transaction.metadata
    committed = metadata.state is TransactionState.PREPARE_COMMIT
    state = TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT

    def operation() -> Result[None]:
        if not shard.is_current(transaction, metadata):
            return NOTHING
        completed = metadata.to(state, now_ms, partitions=frozenset())
        if metadata.next_producer_id != NO_PRODUCER_ID:
            completed = completed._replace(
                producer_id=metadata.next_producer_id,
                producer_epoch=0,
                previous_producer_id=metadata.producer_id,
                next_producer_id=NO_PRODUCER_ID,
            )
        return Result(
            None,
            [TransactionRecord(transaction.transactional_id, completed)],
            lambda error: None if error is ErrorCode.NONE else again(),
        )

    def again() -> None:
        _retry(shard, transaction, now_ms)

    shard.runtime.execute(operation, lambda _: None, now_ms)


def _retry(shard: TransactionShard, transaction: CoordinatedTransaction, now_ms: int) -> None:
    config = shard.config
    at_ms = now_ms + min(
        config.marker_retry_ms << min(transaction.attempts, 16), config.marker_retry_max_ms
    )
    shard.timers.set(shard.timer(RETRY, transaction.transactional_id), at_ms)
