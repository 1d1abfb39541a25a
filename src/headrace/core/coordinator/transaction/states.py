"""The states of a transaction: the response to each request in a state, and the allowed transitions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class TransactionState(Enum):
    """The states of a transaction, under the names that DescribeTransactions and ListTransactions show.

    The coordinator checks the producer first, and then the state. A producer that is not the current one gets
    INVALID_PRODUCER_ID_MAPPING for another producer id, PRODUCER_FENCED for another epoch. When EndTxn raises the epoch
    (KIP-890), the producer is current with the new epoch, and may repeat that EndTxn with the old one.
    """

    EMPTY = "Empty"
    """The id has a producer, which has no transaction.

    action: AddPartitionsToTxn, AddOffsetsToTxn -> the partitions are added
            EndTxn -> INVALID_TXN_STATE; an EndTxn that aborts and raises the epoch -> an empty transaction is aborted
            InitProducerId -> the epoch rises; after the last epoch a new producer id
            unused for transactional.id.expiration.ms -> the id is deleted
    transition: the first partition -> ONGOING; EndTxn that raises the epoch -> PREPARE_ABORT
    """

    ONGOING = "Ongoing"
    """Partitions have been added; the producer may write to them.

    action: AddPartitionsToTxn, AddOffsetsToTxn -> partitions that the transaction does not have yet are added
            EndTxn -> the decision is appended
            InitProducerId -> the transaction is aborted under a higher epoch: CONCURRENT_TRANSACTIONS until it
            completes the transaction times out -> the transaction is aborted under a higher epoch
    transition: EndTxn -> PREPARE_COMMIT or PREPARE_ABORT
                InitProducerId, timeout -> PREPARE_ABORT
    """

    PREPARE_COMMIT = "PrepareCommit"
    """The transaction is committed; its markers are being written.

    action: EndTxn that commits -> CONCURRENT_TRANSACTIONS, EndTxn that aborts -> INVALID_TXN_STATE
            AddPartitionsToTxn, AddOffsetsToTxn, InitProducerId -> CONCURRENT_TRANSACTIONS
    transition: all markers are durable -> COMPLETE_COMMIT
    """

    PREPARE_ABORT = "PrepareAbort"
    """The transaction is aborted; its markers are being written.

    action: EndTxn that aborts -> CONCURRENT_TRANSACTIONS, EndTxn that commits -> INVALID_TXN_STATE
            AddPartitionsToTxn, AddOffsetsToTxn, InitProducerId -> CONCURRENT_TRANSACTIONS
    transition: all markers are durable -> COMPLETE_ABORT
    """

    COMPLETE_COMMIT = "CompleteCommit"
    """The last transaction was committed.

    action: EndTxn that commits -> NONE (a retry), EndTxn that aborts -> INVALID_TXN_STATE
            the rest as in EMPTY
    transition: the first partition -> ONGOING; InitProducerId -> EMPTY; EndTxn that raises the epoch -> PREPARE_ABORT
    """

    COMPLETE_ABORT = "CompleteAbort"
    """The last transaction was aborted.

    action: EndTxn that aborts -> NONE (a retry), EndTxn that commits -> INVALID_TXN_STATE
            the rest as in EMPTY
    transition: the first partition -> ONGOING; InitProducerId -> EMPTY; EndTxn that raises the epoch -> PREPARE_ABORT
    """

    DEAD = "Dead"
    """The id is deleted. Kafka writes this state; this coordinator only reads it."""

    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """The producer is fenced, and its transaction will be aborted. Only Kafka has this state; this coordinator fences
    and aborts with one record, whose state is PREPARE_ABORT."""


STATUS: Final[Mapping[TransactionState, int]] = MappingProxyType(
    {state: status for status, state in enumerate(TransactionState)}
)
"""The number of each state in a record, as in Kafka. The members of the enum are in this order."""

_BEGUN: Final = (TransactionState.ONGOING, TransactionState.PREPARE_ABORT)

NEXT: Final[Mapping[TransactionState, frozenset[TransactionState]]] = MappingProxyType(
    {
        state: frozenset(following)
        for state, following in {
            TransactionState.EMPTY: (TransactionState.EMPTY, *_BEGUN),
            TransactionState.ONGOING: (
                TransactionState.ONGOING,
                TransactionState.PREPARE_COMMIT,
                TransactionState.PREPARE_ABORT,
            ),
            TransactionState.PREPARE_COMMIT: (TransactionState.COMPLETE_COMMIT,),
            TransactionState.PREPARE_ABORT: (TransactionState.COMPLETE_ABORT,),
            TransactionState.COMPLETE_COMMIT: (TransactionState.EMPTY, *_BEGUN),
            TransactionState.COMPLETE_ABORT: (TransactionState.EMPTY, *_BEGUN),
            TransactionState.DEAD: (),
            TransactionState.PREPARE_EPOCH_FENCE: (),
        }.items()
    }
)
"""The states that may follow each state. Any other transition is a bug of the coordinator."""

COMPLETE: Final = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
"""The states in which the last transaction has completed."""

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The states in which the outcome is decided, and markers may be missing."""
