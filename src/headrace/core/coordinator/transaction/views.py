"""Views of transactions for DescribeTransactions and ListTransactions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, TypeAlias

from headrace.core.coordinator.runtime import Result
from headrace.core.coordinator.transaction.records import TransactionMetadata
from headrace.core.coordinator.transaction.shard import TransactionShard
from headrace.core.coordinator.transaction.states import TransactionState
from headrace.errors import ApiError, ErrorCode
from headrace.protocol.messages import describe_transactions, list_transactions

Known: TypeAlias = tuple[str, TransactionMetadata]
"""A transactional id and its stored state."""
STATE_NAMES: Final = {state.value: state for state in TransactionState}


class Filter(NamedTuple):
    """The filter of ListTransactions."""

    states: Collection[TransactionState] = ()
    """The states to list; empty for all."""
    producer_ids: Collection[int] = ()
    """The producer ids to list; empty for all."""
    longer_than_ms: int = -1
    """The least duration of a transaction to list, in ms; -1 for all."""


def described(
    transactional_id: str, metadata: TransactionMetadata
) -> describe_transactions.TransactionState:
    """Return the description of one id, without the partitions."""
    return describe_transactions.TransactionState(
        transactional_id=transactional_id,
        transaction_state=metadata.state.value,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.start_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
    )


def find(shard: TransactionShard, transactional_id: str) -> Result[TransactionMetadata | ErrorCode]:
    """Return the stored state of one id.

    Raises:
        ApiError: The id is unknown.
    """
    transaction = shard.transactions.get(transactional_id)
    if transaction is None:
        raise ApiError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return Result(transaction.metadata)


def all_of(shard: TransactionShard) -> Result[Sequence[Known] | ErrorCode]:
    """Return all ids of a shard with their stored states."""
    return Result([(name, each.metadata) for name, each in shard.transactions.items()])


def listed(
    transactional_id: str, metadata: TransactionMetadata
) -> list_transactions.TransactionState:
    """Return the entry of one id in a ListTransactions response."""
    return list_transactions.TransactionState(
        transactional_id=transactional_id,
        producer_id=metadata.producer_id,
        transaction_state=metadata.state.value,
    )


def passes(metadata: TransactionMetadata, wanted: Filter, now_ms: int) -> bool:
    """Return whether the filter lists a transaction."""
    if wanted.states and metadata.state not in wanted.states:
        return False
    if wanted.producer_ids and metadata.producer_id not in wanted.producer_ids:
        return False
    # The start is -1 if there was no transaction: such an id is listed, as in Kafka.
    return wanted.longer_than_ms < 0 or now_ms - metadata.start_ms > wanted.longer_than_ms
