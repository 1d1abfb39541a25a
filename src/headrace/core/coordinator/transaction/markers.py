"""The completion of a decided transaction: its markers, and the record that follows when all markers are durable."""

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
"""The largest number of markers that one step writes. A marker may be the first batch of a partition, and create
files."""
_ATTEMPTS_UNTIL_LOGGED: Final = 4
"""The retry at which the log line about refused markers is written."""
_LISTED: Final = 5
"""The largest number of partitions in that log line."""


def complete(shard: TransactionShard, transaction: CoordinatedTransaction, now_ms: int) -> None:
    """Write the markers of a prepared transaction when its decision is durable.

    An earlier marker could contradict the transaction: (1) The coordinator writes a commit marker. (2) The broker
    crashes and loses the decision. (3) After the restart the transaction times out, and the coordinator aborts it.
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
    """Repeat the step that failed: wait for the decision, or write the failed markers again."""
    if transaction.unmarked is None:
        complete(shard, transaction, now_ms)
        return
    failed, transaction.failed = transaction.failed, {}
    transaction.attempts += 1
    if transaction.attempts == _ATTEMPTS_UNTIL_LOGGED:
        _log_refused(shard, transaction, failed)
    _write(shard, transaction, failed, now_ms)


def _log_refused(
    shard: TransactionShard,
    transaction: CoordinatedTransaction,
    failed: Mapping[TopicPartition, ErrorCode],
) -> None:
    """Log once that partitions refuse the markers, with the remedy."""
    shard.journal.error(
        "transaction_markers_refused",
        transactional_id=transaction.transactional_id,
        producer_id=transaction.metadata.producer_id,
        state=transaction.metadata.state.value,
        refused=", ".join(f"{at}: {error.name}" for at, error in sorted(failed.items())[:_LISTED]),
        meaning="it is decided, but its partitions have no marker yet: its producer and read_committed consumers wait",
        remedy="make the partitions writable, or end it there with `kafka-transactions abort`, or delete the topic",
    )


def _write(
    shard: TransactionShard,
    transaction: CoordinatedTransaction,
    partitions: Collection[TopicPartition],
    now_ms: int,
) -> None:
    """Add partitions to those that wait for their marker, and write the first markers."""
    transaction.unwritten = sorted({*transaction.unwritten, *partitions}, reverse=True)
    write_next(shard, transaction, now_ms)


def write_next(shard: TransactionShard, transaction: CoordinatedTransaction, now_ms: int) -> None:
    """Write at most `MARKERS_AT_ONCE` markers, and set a timer for the others."""
    metadata, unwritten = transaction.metadata, transaction.unwritten
    outcome = TransactionOutcome(
        metadata.producer_id,
        metadata.producer_epoch,
        metadata.state is TransactionState.PREPARE_COMMIT,
        metadata.client_transaction_version,
        metadata.start_ms,
    )
    for _ in range(min(MARKERS_AT_ONCE, len(unwritten))):
        partition = unwritten.pop()
        done = partial(_marked, shard, transaction, metadata, partition=partition)
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
    now_ms: int,
    *,
    partition: TopicPartition,
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
