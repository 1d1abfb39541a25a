"""The states of a transaction: what each request finds in them, and where they lead."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final


class TransactionState(Enum):
    """The states of a transaction, under the names that DescribeTransactions and ListTransactions show.

    A request of a producer that is not the present one is refused before its state is looked at:
    INVALID_PRODUCER_ID_MAPPING for another producer id, PRODUCER_FENCED for another epoch. When EndTxn raises the epoch
    (KIP-890) the present producer is the one after, and the one before may repeat its EndTxn.
    """

    EMPTY = "Empty"
    """The id has a producer, which has no transaction.

    action: AddPartitionsToTxn, AddOffsetsToTxn -> the partitions are added
            EndTxn -> INVALID_TXN_STATE; one that aborts and raises the epoch -> nothing is aborted
            InitProducerId -> the next epoch, or at the last one a new producer id
            unused for transactional.id.expiration.ms -> the id is forgotten
    transition: the first partition -> ONGOING; EndTxn that raises the epoch -> PREPARE_ABORT
    """

    ONGOING = "Ongoing"
    """Partitions have been added; the producer may write to them.

    action: AddPartitionsToTxn, AddOffsetsToTxn -> the partitions are added; those that are there already are fine
            EndTxn -> the decision is written down
            InitProducerId -> the transaction is aborted under the next epoch: CONCURRENT_TRANSACTIONS until it is over
            the transaction's time is up -> it is aborted under the next epoch
    transition: EndTxn -> PREPARE_COMMIT or PREPARE_ABORT
                a new producer, time is up -> PREPARE_ABORT
    """

    PREPARE_COMMIT = "PrepareCommit"
    """The transaction is committed; its markers are being written.

    action: EndTxn that commits -> CONCURRENT_TRANSACTIONS, one that aborts -> INVALID_TXN_STATE
            AddPartitionsToTxn, AddOffsetsToTxn, InitProducerId -> CONCURRENT_TRANSACTIONS
    transition: all markers are durable -> COMPLETE_COMMIT
    """

    PREPARE_ABORT = "PrepareAbort"
    """The transaction is aborted; its markers are being written.

    action: EndTxn that aborts -> CONCURRENT_TRANSACTIONS, one that commits -> INVALID_TXN_STATE
            AddPartitionsToTxn, AddOffsetsToTxn, InitProducerId -> CONCURRENT_TRANSACTIONS
    transition: all markers are durable -> COMPLETE_ABORT
    """

    COMPLETE_COMMIT = "CompleteCommit"
    """The last transaction was committed.

    action: EndTxn that commits -> NONE (its first answer was lost), one that aborts -> INVALID_TXN_STATE
            the rest as in EMPTY
    transition: the first partition -> ONGOING; InitProducerId -> EMPTY; EndTxn that raises the epoch -> PREPARE_ABORT
    """

    COMPLETE_ABORT = "CompleteAbort"
    """The last transaction was aborted.

    action: EndTxn that aborts -> NONE (its first answer was lost), one that commits -> INVALID_TXN_STATE
            the rest as in EMPTY
    transition: the first partition -> ONGOING; InitProducerId -> EMPTY; EndTxn that raises the epoch -> PREPARE_ABORT
    """

    DEAD = "Dead"
    """The id is not known (any more). Kafka writes this state; here it is only read."""

    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """In Kafka the moment in which a producer is fenced before its transaction is aborted; here that is one record, the
    one of PREPARE_ABORT."""


STATUS: Final[Mapping[TransactionState, int]] = MappingProxyType(
    {state: status for status, state in enumerate(TransactionState)}
)
"""The number of each state in a record; Kafka's, which are those of the order above."""

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
"""Where each state may lead; anything else is a bug of the coordinator."""

COMPLETE: Final = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})
"""The last transaction is over."""

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The outcome is decided, and not everywhere known yet."""
