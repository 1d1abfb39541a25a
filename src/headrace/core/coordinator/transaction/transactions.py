"""What is in a transaction, and how it ends."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from headrace.core.coordinator.runtime import NOTHING, Result
from headrace.core.coordinator.transaction.producers import Producer, abort_fencing, decided
from headrace.core.coordinator.transaction.records import TransactionRecord
from headrace.core.coordinator.transaction.shard import Transaction, TransactionShard
from headrace.core.coordinator.transaction.states import PREPARED, TransactionState
from headrace.errors import ApiError, ErrorCode
from headrace.types import TopicPartition

_OUTCOMES: Final = {
    (TransactionState.COMPLETE_COMMIT, True): ErrorCode.NONE,
    (TransactionState.COMPLETE_ABORT, False): ErrorCode.NONE,
    (TransactionState.PREPARE_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (TransactionState.PREPARE_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
}
"""What EndTxn is answered when the transaction is not ongoing; INVALID_TXN_STATE where nothing stands here."""


def add_partitions(
    transaction: Transaction,
    partitions: Collection[TopicPartition],
    now_ms: int,
) -> Result[ErrorCode]:
    """Add partitions to the transaction, which begins with the first ones.

    Raises:
        ApiError: CONCURRENT_TRANSACTIONS: the one before is not over.
    """
    current = transaction.metadata
    if current.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    ongoing = current.state is TransactionState.ONGOING
    if not partitions or (ongoing and current.partitions.issuperset(partitions)):
        return Result(ErrorCode.NONE)
    added = current.to(
        TransactionState.ONGOING,
        now_ms,
        partitions=current.partitions.union(partitions) if ongoing else frozenset(partitions),
        start_ms=current.start_ms if ongoing else now_ms,
    )
    return Result(ErrorCode.NONE, [TransactionRecord(transaction.transactional_id, added)])


def end(
    shard: TransactionShard, transaction: Transaction, now_ms: int, *, committed: bool
) -> Result[ErrorCode]:
    """Commit or abort; answered when that is decided for good, while markers are still being written.

    Raises:
        ApiError: There is nothing to end, or it has ended the other way.
    """
    current = transaction.metadata
    if current.state is not TransactionState.ONGOING:
        code = _OUTCOMES.get((current.state, committed), ErrorCode.INVALID_TXN_STATE)
        if code is ErrorCode.NONE:
            return Result(ErrorCode.NONE)
        raise ApiError(code)
    state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    result = decided(shard, transaction, current.to(state, now_ms), now_ms)
    return result.with_response(ErrorCode.NONE)


def time_is_up(shard: TransactionShard, transaction: Transaction, now_ms: int) -> Result[None]:
    """Abort a transaction that takes longer than its producer has said."""
    current = transaction.metadata
    if current.state is not TransactionState.ONGOING:
        return NOTHING
    shard.journal.info(
        "transaction_timed_out",
        transactional_id=transaction.transactional_id,
        producer_id=current.producer_id,
        timeout_ms=current.timeout_ms,
    )
    return abort_fencing(shard, transaction, now_ms)


def unverified(
    shard: TransactionShard, transactional_id: str, producer: Producer, partition: TopicPartition
) -> ErrorCode:
    """Return why a batch of the transaction may not be appended to a partition, or NONE (KIP-890).

    What was added but could still be lost does not count yet: the data would outlive it, and nobody would ever mark its
    end.
    """
    try:
        transaction = shard.find(transactional_id, *producer)
    except ApiError as error:
        return error.code
    end_offset = transaction.added.get(partition)
    if end_offset is None:
        return ErrorCode.INVALID_TXN_STATE
    if end_offset > shard.runtime.high_watermark:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


def expired(shard: TransactionShard, now_ms: int) -> Iterator[TransactionRecord]:
    """Yield the tombstones of ids that nobody has used for long."""
    horizon_ms = now_ms - shard.config.transactional_id_expiration_ms
    for transactional_id, transaction in shard.transactions.items():
        metadata = transaction.metadata
        busy = metadata.state is TransactionState.ONGOING or metadata.state in PREPARED
        if not busy and metadata.last_update_ms <= horizon_ms:
            yield TransactionRecord(transactional_id, None)
