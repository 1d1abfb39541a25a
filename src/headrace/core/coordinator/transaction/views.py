"""What administrators see of transactions: DescribeTransactions and ListTransactions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.transaction.records import TransactionMetadata
from headrace.core.coordinator.transaction.shard import TransactionShard
from headrace.core.coordinator.transaction.states import PREPARED, TransactionState
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages import describe_transactions, list_transactions

STATE_NAMES: Final = {state.value: state for state in TransactionState}


class Filter(NamedTuple):
    """Which transactions are to be listed; what is empty or negative leaves out none."""

    states: Collection[TransactionState] = ()
    producer_ids: Collection[int] = ()
    longer_than_ms: int = -1


def described(
    transactional_id: str, metadata: TransactionMetadata
) -> describe_transactions.TransactionState:
    """Return what is known of one id, without the partitions."""
    return describe_transactions.TransactionState(
        transactional_id=transactional_id,
        transaction_state=metadata.state.value,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
    )


def find(shard: TransactionShard, transactional_id: str) -> Result[TransactionMetadata | ErrorCode]:
    """Return what is known of one id.

    Raises:
        ApiError: Nothing is.
    """
    transaction = shard.transactions.get(transactional_id)
    if transaction is None:
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return Result(transaction.metadata)


def list_all(
    shard: TransactionShard, wanted: Filter, now_ms: int
) -> Result[Sequence[list_transactions.TransactionState]]:
    """Return the transactions of a shard that pass the filter."""
    return Result(
        [
            list_transactions.TransactionState(
                transactional_id=transactional_id,
                producer_id=transaction.metadata.producer_id,
                transaction_state=transaction.metadata.state.value,
            )
            for transactional_id, transaction in shard.transactions.items()
            if _passes(transaction.metadata, wanted, now_ms)
        ]
    )


def _passes(metadata: TransactionMetadata, wanted: Filter, now_ms: int) -> bool:
    if wanted.states and metadata.state not in wanted.states:
        return False
    if wanted.producer_ids and metadata.producer_id not in wanted.producer_ids:
        return False
    if wanted.longer_than_ms < 0:
        return True
    running = metadata.state is TransactionState.ONGOING or metadata.state in PREPARED
    return running and now_ms - metadata.start_ms > wanted.longer_than_ms
