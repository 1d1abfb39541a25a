"""Operations on transactions: adding partitions and ending the transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from headrace.core.coordinator.runtime import NOTHING, Reply, Result
from headrace.core.coordinator.transaction.producers import (
    ProducerIdAndEpoch,
    abort_fencing,
    decided,
)
from headrace.core.coordinator.transaction.records import (
    EPOCH_BUMP,
    LAST_EPOCH,
    NO_EPOCH,
    TransactionMetadata,
    TransactionRecord,
)
from headrace.core.coordinator.transaction.shard import (
    CompletionWaiter,
    CoordinatedTransaction,
    TransactionShard,
)
from headrace.core.coordinator.transaction.states import COMPLETE, PREPARED, TransactionState
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.types import NO_PRODUCER_ID, TopicPartition

_OUTCOMES: Final = {
    (TransactionState.COMPLETE_COMMIT, True): ErrorCode.NONE,
    (TransactionState.COMPLETE_ABORT, False): ErrorCode.NONE,
    (TransactionState.PREPARE_COMMIT, True): ErrorCode.CONCURRENT_TRANSACTIONS,
    (TransactionState.PREPARE_ABORT, False): ErrorCode.CONCURRENT_TRANSACTIONS,
}
"""The response to EndTxn by the state and by whether EndTxn commits; INVALID_TXN_STATE for other combinations.

A transaction that is ongoing is not looked up here."""


def add_partitions(
    shard: TransactionShard,
    transaction: CoordinatedTransaction,
    partitions: Collection[TopicPartition],
    now_ms: int,
    client_version: int = 0,
) -> Result[ErrorCode]:
    """Add partitions to the transaction. The first partitions begin the transaction.

    Args:
        shard: The shard of the transaction.
        transaction: The transaction.
        partitions: The partitions to add.
        now_ms: The time.
        client_version: The transaction version of the producer.

    Raises:
        ApiError: CONCURRENT_TRANSACTIONS: the previous transaction has not completed, or the memory for partitions is
            used up.
    """
    current = transaction.metadata
    if current.state in PREPARED:
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    ongoing = current.state is TransactionState.ONGOING
    if not partitions or (ongoing and current.partitions.issuperset(partitions)):
        return Result(ErrorCode.NONE)
    if not shard.usage.has_space(partitions=len(partitions)):
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    added = current.to(
        TransactionState.ONGOING,
        now_ms,
        partitions=current.partitions.union(partitions) if ongoing else frozenset(partitions),
        start_ms=current.start_ms if ongoing else now_ms,
        client_transaction_version=client_version,
        last_epoch=NO_EPOCH,
    )
    return Result(ErrorCode.NONE, [TransactionRecord(transaction.transactional_id, added)])


class EntryRetry(NamedTuple):
    """The retry of a request after the completion of a transaction."""

    until_ms: int
    """The time from which on the request is not retried."""
    attempt: Callable[[int], Reply[ErrorCode]]
    """Repeats the request. The argument is the time."""


def enter(
    shard: TransactionShard,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partitions: Collection[TopicPartition],
    *,
    now_ms: int,
    retry: EntryRetry,
) -> Result[ErrorCode]:
    """Add partitions for a producer of transaction version 2, now or when its previous transaction has completed.

    Raises:
        ApiError: The partitions cannot be added.
    """
    transaction = shard.transactions.get(transactional_id)
    try:
        transaction = shard.find(transactional_id, *producer)
        return add_partitions(shard, transaction, partitions, now_ms, EPOCH_BUMP)
    except ApiError as error:
        if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS or now_ms >= retry.until_ms:
            raise
    assert transaction is not None, "an unknown transactional id has no transaction"
    entered: Deferred[ErrorCode] = Deferred()

    def completed(error: ErrorCode, at_ms: int) -> None:
        if error is not ErrorCode.NONE:
            entered.resolve(error)
            return
        reply = retry.attempt(at_ms)
        if isinstance(reply, Deferred):
            entered.follow(reply)
        else:
            entered.resolve(reply)

    shard.wait(transaction, CompletionWaiter(retry.until_ms, completed))
    return Result(entered)


def end(
    shard: TransactionShard, transaction: CoordinatedTransaction, now_ms: int, *, committed: bool
) -> Result[ErrorCode]:
    """Commit or abort a transaction. The response leaves when the decision is durable, before all markers are written.

    Raises:
        ApiError: The producer has no transaction, or the transaction has ended the other way.
    """
    current = transaction.metadata
    if current.state is not TransactionState.ONGOING:
        code = _OUTCOMES.get((current.state, committed), ErrorCode.INVALID_TXN_STATE)
        if code is ErrorCode.NONE:
            return Result(ErrorCode.NONE)
        raise ApiError(code)
    state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    ended = current.to(state, now_ms, client_transaction_version=0)
    return decided(shard, transaction, ended, now_ms).with_response(ErrorCode.NONE)


def end_bumping(
    shard: TransactionShard,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    now_ms: int,
    *,
    committed: bool,
) -> Result[ProducerIdAndEpoch | ErrorCode]:
    """Commit or abort a transaction, and return the epoch of the producer's next transaction (KIP-890).

    A late request with the previous epoch cannot change the next transaction. A producer that repeats EndTxn gets the
    same response. A producer may abort although no partition was added, because its records may still be in flight.

    Raises:
        ApiError: The producer has no transaction, the transaction has ended the other way, or the producer is fenced.
    """
    transaction = shard.transactions.get(transactional_id)
    if transaction is not None and _has_ended(transaction.metadata, producer):
        code = _OUTCOMES.get((transaction.metadata.state, committed), ErrorCode.INVALID_TXN_STATE)
        if code is not ErrorCode.NONE:
            raise ApiError(code)
        return Result(ProducerIdAndEpoch.of(transaction.metadata))
    transaction = shard.find(transactional_id, *producer)
    current = transaction.metadata
    if (
        current.state in PREPARED
    ):  # this is the previous transaction; of the next one nothing has arrived yet
        raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
    ongoing = current.state is TransactionState.ONGOING
    if committed and not ongoing:
        raise ApiError(ErrorCode.INVALID_TXN_STATE)
    exhausted = current.producer_epoch >= LAST_EPOCH - 1
    ended = current.to(
        TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
        now_ms,
        producer_epoch=current.producer_epoch + 1,
        last_epoch=current.producer_epoch,
        next_producer_id=shard.allocate_producer_id() if exhausted else NO_PRODUCER_ID,
        partitions=current.partitions if ongoing else frozenset(),
        start_ms=current.start_ms if ongoing else now_ms,
        client_transaction_version=EPOCH_BUMP,
    )
    following = (
        ProducerIdAndEpoch(ended.next_producer_id, 0) if exhausted else ProducerIdAndEpoch.of(ended)
    )
    return decided(shard, transaction, ended, now_ms).with_response(following)


def _has_ended(current: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """Return whether this producer's EndTxn has ended the last transaction, so that the request is a retry."""
    ended = current.state in PREPARED or current.state in COMPLETE
    if not (ended and current.bumps) or producer.producer_epoch != current.last_epoch:
        return False
    if producer.producer_id == current.producer_id:
        fenced = current.producer_epoch == LAST_EPOCH and current.next_producer_id < 0
        return current.producer_epoch == producer.producer_epoch + 1 and not fenced
    return producer.producer_id == current.previous_producer_id and current.producer_epoch == 0


def timed_out(
    shard: TransactionShard, transaction: CoordinatedTransaction, now_ms: int
) -> Result[None]:
    """Abort a transaction that is older than the transaction timeout of its producer."""
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
    shard: TransactionShard,
    transactional_id: str,
    producer: ProducerIdAndEpoch,
    partition: TopicPartition,
) -> ErrorCode:
    """Return NONE if a batch of the transaction may be appended to a partition, otherwise the error (KIP-890).

    A partition counts only when the record that added it is durable. Otherwise: (1) The producer appends a batch. (2) A
    crash loses the record, but not the batch. (3) No marker is ever written into the partition.
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
    """Yield the tombstones of ids that were not used for `transactional.id.expiration.ms`."""
    horizon_ms = now_ms - shard.config.transactional_id_expiration_ms
    for transactional_id, transaction in shard.transactions.items():
        metadata = transaction.metadata
        busy = metadata.state is TransactionState.ONGOING or metadata.state in PREPARED
        if not busy and metadata.last_update_ms <= horizon_ms:
            yield TransactionRecord(transactional_id, None)
