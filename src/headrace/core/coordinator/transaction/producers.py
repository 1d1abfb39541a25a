"""InitProducerId with a transactional id: the sender becomes its producer, and the previous producer is fenced."""

from __future__ import annotations

from typing import NamedTuple

from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.transaction.markers import complete
from headrace.core.coordinator.transaction.records import (
    LAST_EPOCH,
    NO_EPOCH,
    TransactionMetadata,
    TransactionRecord,
)
from headrace.core.coordinator.transaction.shard import CoordinatedTransaction, TransactionShard
from headrace.core.coordinator.transaction.states import PREPARED, TransactionState
from headrace.errors import ApiError, ErrorCode
from headrace.types import NO_PRODUCER_ID


class ProducerIdAndEpoch(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int
    producer_epoch: int

    @classmethod
    def of(cls, metadata: TransactionMetadata) -> ProducerIdAndEpoch:
        """Return the current producer of a transactional id."""
        return cls(metadata.producer_id, metadata.producer_epoch)


NO_PRODUCER = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_EPOCH)
"""No producer: the sender of InitProducerId has no producer id yet."""


def init_producer_id(
    shard: TransactionShard,
    transactional_id: str,
    timeout_ms: int,
    expected: ProducerIdAndEpoch,
    now_ms: int,
) -> Result[ProducerIdAndEpoch | ErrorCode]:
    """Make the sender the producer of a transactional id, and fence the previous producer.

    Args:
        shard: The shard of the id.
        transactional_id: The id.
        timeout_ms: The transaction timeout of the sender.
        expected: The producer id and epoch of a sender that continues after an error (KIP-360), else `NO_PRODUCER`.
        now_ms: The time.

    Returns:
        The new producer, or CONCURRENT_TRANSACTIONS: the previous producer's transaction is being aborted, and the
        sender has to retry.

    Raises:
        ApiError: The request is refused.
    """
    transaction = shard.transactions.get(transactional_id)
    if transaction is None:
        full = len(shard.transactions) >= shard.config.max_transactional_ids
        if full or not shard.usage.has_space(transactional_id):
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        metadata = TransactionMetadata(
            shard.allocate_producer_id(), 0, timeout_ms, TransactionState.EMPTY, now_ms
        )
        return _accepted(transactional_id, metadata)
    current = transaction.metadata
    if expected != NO_PRODUCER and not _may_be(expected, current):
        raise ApiError(ErrorCode.PRODUCER_FENCED)
    present = ProducerIdAndEpoch.of(current)
    if current.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if current.state is TransactionState.ONGOING:
        last_epoch = NO_EPOCH if expected == NO_PRODUCER else current.producer_epoch
        result = abort_fencing(shard, transaction, now_ms, last_epoch)
        return result.with_response(ErrorCode.CONCURRENT_TRANSACTIONS)
    if expected not in {NO_PRODUCER, present} and current.producer_epoch < LAST_EPOCH:
        following = current  # a retry: the first request has already raised the epoch
    else:
        following = _next(shard, current, expected)
    following = following._replace(partitions=frozenset(), start_ms=-1, timeout_ms=timeout_ms)
    return _accepted(transactional_id, following.to(TransactionState.EMPTY, now_ms))


def abort_fencing(
    shard: TransactionShard,
    transaction: CoordinatedTransaction,
    now_ms: int,
    last_epoch: int = NO_EPOCH,
) -> Result[None]:
    """Abort an ongoing transaction under a higher epoch, which fences its producer.

    For a producer of transaction version 2 the epoch rises by two, as in Kafka: an epoch higher by one means that the
    producer itself has ended its transaction. `last_epoch` is the epoch with which a producer that requested the abort
    itself may repeat its request; `NO_EPOCH` if another producer or a timeout caused the abort.
    """
    current = transaction.metadata
    epoch = min(current.producer_epoch + (2 if current.bumps else 1), LAST_EPOCH)
    aborted = current.to(
        TransactionState.PREPARE_ABORT,
        now_ms,
        producer_epoch=epoch,
        last_epoch=last_epoch,
    )
    return decided(shard, transaction, aborted, now_ms)


def decided(
    shard: TransactionShard,
    transaction: CoordinatedTransaction,
    metadata: TransactionMetadata,
    now_ms: int,
) -> Result[None]:
    """Return a result that appends the decision of a transaction, and then begins to write its markers."""

    def written(error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            complete(shard, transaction, now_ms)

    return Result(None, [TransactionRecord(transaction.transactional_id, metadata)], written)


def _may_be(expected: ProducerIdAndEpoch, current: TransactionMetadata) -> bool:
    """Return whether `expected` is the current producer, or the previous one whose request may be a retry."""
    producer_id, epoch = expected
    if producer_id == current.producer_id:
        return epoch == current.producer_epoch or epoch == current.last_epoch != NO_EPOCH
    return (
        producer_id == current.previous_producer_id != NO_PRODUCER_ID
        and current.producer_epoch == 0
        and epoch == current.last_epoch != NO_EPOCH
    )


def _next(
    shard: TransactionShard, current: TransactionMetadata, expected: ProducerIdAndEpoch
) -> TransactionMetadata:
    last_epoch = NO_EPOCH if expected == NO_PRODUCER else expected.producer_epoch
    if current.producer_epoch < LAST_EPOCH - 1:
        return current._replace(producer_epoch=current.producer_epoch + 1, last_epoch=last_epoch)
    return current._replace(
        producer_id=shard.allocate_producer_id(),
        producer_epoch=0,
        previous_producer_id=current.producer_id,
        last_epoch=last_epoch,
    )


def _accepted(
    transactional_id: str, metadata: TransactionMetadata
) -> Result[ProducerIdAndEpoch | ErrorCode]:
    return Result(ProducerIdAndEpoch.of(metadata), [TransactionRecord(transactional_id, metadata)])
