"""Exceptions of consumers, of transactional producers and of the Kinesis clients."""

from __future__ import annotations

from headrace.errors.base import HeadraceError


class ConsumerError(HeadraceError):
    """The state or the configuration of the consumer does not allow the call."""


class NoSubscriptionError(ConsumerError):
    """The consumer has nothing to read: neither `subscribe` nor `assign` was called."""


class MemberStoppedError(ConsumerError):
    """An administrator stopped this member of the group. The member has left the group and reads nothing."""


class ConflictingSubscriptionError(ConsumerError):
    """A consumer reads topics, a pattern, the attachments of its group, or assigned partitions: only one of these."""


class NoOffsetError(ConsumerError):
    """A partition has no committed offset, and `auto.offset.reset` is `none`."""


class NotAssignedError(ConsumerError):
    """The partition is not assigned to this consumer, or no longer is."""


class InvalidCommittedOffsetError(ConsumerError):
    """A committed offset was read or written for a partition that does not exist."""


class UnknownAssignorError(ConsumerError):
    """No assignor with the given name is registered."""


class ConcurrentPollError(ConsumerError):
    """Two threads or tasks poll one consumer at the same time, or a rebalance listener polls its own consumer."""


class LogTruncatedError(ConsumerError):
    """A change of leaders removed records that the consumer has read, and `auto.offset.reset` is `none`."""


class TransactionError(HeadraceError):
    """Base of all exceptions about transactions."""


class TransactionStateError(TransactionError):
    """The state of the producer's transaction does not allow the call. Nothing has changed."""


class AbortableTransactionError(TransactionError):
    """The transaction has failed and cannot be committed. Abort it (leaving `with` does that) and repeat it."""


class CommitInDoubtError(TransactionError):
    """No broker confirmed the commit in time, so it is unknown whether the transaction is committed.

    Call `commit_transaction` again to find out. Or open a new producer with the same transactional id: the coordinator
    then completes or aborts the transaction, and the committed offsets of the group show which.
    """


class FatalTransactionError(TransactionError):
    """The producer cannot be used any more. Close it; a new producer can continue from the committed offsets."""


class ProducerFencedError(FatalTransactionError):
    """Another producer uses the same transactional id, or the transaction exceeded its timeout.

    Attributes:
        timed_out: Whether the transaction was open for so long that the coordinator may have aborted it. If false,
            another producer uses the transactional id.
    """

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class KinesisError(HeadraceError):
    """Amazon Kinesis refused a request, or a stream is not in the expected state."""


class StreamNotFoundError(KinesisError):
    """The account has no such stream or shard in this region."""


class LeaseLostError(KinesisError):
    """Another worker owns the shard's lease. Records finished after the last checkpoint are processed again there."""


class LeaseStoreError(KinesisError):
    """A lease store failed or did not answer. Whether it stored the change is unknown."""
