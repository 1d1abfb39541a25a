"""The transactional batches of one Produce request: which of them are appended now, later, or not at all (KIP-890).

Until Produce 11 a partition has to be in the transaction already. From Produce 12 on the first batch adds the
partition. The broker appends that batch when the addition is durable. Otherwise a crash could leave records that the
coordinator does not know, and no marker would ever end their transaction. If another broker is the coordinator, the
first batch of a transaction waits for its confirmation in both cases (`remote`). The batches of one partition stay in
order: later batches wait for the same record of the coordinator. Waiting batches are copies, because the connection
uses its buffer again; their total size is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from headrace.broker.coordinators.remote import Confirmation, Confirmed, has_open_transaction
from headrace.broker.coordinators.transactions import Transactions, WriteErrors
from headrace.broker.replication.partition import Partition
from headrace.broker.waiting.steps import ENTRY_COST, FIRST_BATCH_COST, STEP_COST, Work
from headrace.core.coordinator.runtime import Reply
from headrace.core.coordinator.transaction.producers import ProducerIdAndEpoch
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode, OutOfOrderSequenceError
from headrace.records.batch import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    CONTROL_FLAG,
    CRC,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    batch_crc,
    unpack_header,
)
from headrace.types import Buffer, TopicPartition

WAITING_BYTES_MAX: Final = 64 << 20
"""The greatest size of all batches that wait, in bytes. A single batch may be larger."""
_ADDING_VERSION: Final = 12
_ABORTABLE_VERSION: Final = 11
_CLASSIC: Final = WriteErrors(
    ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.INVALID_TXN_STATE
)
_ABORTABLE: Final = _CLASSIC._replace(not_added=ErrorCode.TRANSACTION_ABORTABLE)
_ADDING: Final = _ABORTABLE._replace(concurrent=ErrorCode.CONCURRENT_TRANSACTIONS)
_NONE_CONFIRMED: Final[Mapping[TopicPartition, Confirmation]] = {}
_NOT_ADDED_YET: Final = frozenset({ErrorCode.INVALID_TXN_STATE, ErrorCode.CONCURRENT_TRANSACTIONS})


class Entering(NamedTuple):
    """A batch that waits until its partition is added to the transaction."""

    partition: Partition
    records: bytes
    append: Callable[[Buffer | ApiError], None]
    """Called with the batch when it may be appended, or with the error otherwise."""
    cost: int
    """The cost of appending the batch, in the unit of `Steps`."""


class TransactionalBatches:
    """The transactional batches that one Produce request contains."""

    __slots__ = (
        "_adds",
        "_confirmations",
        "_entering",
        "_errors",
        "_is_remote",
        "_producer",
        "_transactional_id",
        "_transactions",
    )

    def __init__(
        self, transactions: Transactions, transactional_id: str | None, version: int
    ) -> None:
        self._transactions = transactions
        self._transactional_id = transactional_id
        self._adds = version >= _ADDING_VERSION
        classic = _ABORTABLE if version >= _ABORTABLE_VERSION else _CLASSIC
        self._errors = _ADDING if self._adds else classic
        self._entering: list[Entering] = []
        self._producer: ProducerIdAndEpoch | None = None
        self._is_remote = False
        """Whether another broker coordinates the transactional id."""
        self._confirmations: Mapping[TopicPartition, Confirmation] = _NONE_CONFIRMED
        """The confirmations by that broker for the batches that wait."""

    def __bool__(self) -> bool:
        """Return whether some batches have to wait."""
        return bool(self._entering)

    @property
    def are_many(self) -> bool:
        """Whether one step should not append all waiting batches, including those of other requests."""
        return self._transactions.waiting_cost > STEP_COST

    def may_append(self, partition: Partition, records: Buffer) -> bool:
        """Return whether a batch may be appended at once; false if its partition has to be added first.

        Raises:
            ApiError: The batch must not be appended.
        """
        fields = unpack_header(records)
        if fields[ATTRIBUTES] & CONTROL_FLAG or fields[CRC] != batch_crc(records, 0, len(records)):
            return True  # the log refuses the batch with a precise error
        if self._transactional_id is None:
            raise ApiError(
                ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                "a transactional batch without a transactional id",
            )
        if fields[PRODUCER_ID] < 0:
            return True  # as above
        producer, place = (
            ProducerIdAndEpoch(fields[PRODUCER_ID], fields[PRODUCER_EPOCH]),
            partition.topic_partition,
        )
        transactions = self._transactions
        known = partition.log.producers.get(producer.producer_id)
        if known is not None and known.epoch > producer.producer_epoch:
            return True  # as above
        error = transactions.coordinator.verify(self._transactional_id, producer, place)
        if error is ErrorCode.NOT_COORDINATOR and transactions.remote.coordinates(
            self._transactional_id
        ):
            if not self._is_confirmed(partition, producer):
                return False
            error = ErrorCode.NONE
        if self._adds and error in _NOT_ADDED_YET and self._producer in {None, producer}:
            self._producer = producer
            return False
        if error is not ErrorCode.NONE:
            raise self._errors.refusal(error, producer, place)
        if self._adds and fields[BASE_SEQUENCE] and known is None:
            # The sequence numbers of each transaction begin at 0: an earlier batch was lost.
            raise OutOfOrderSequenceError(f"{place} has no earlier batch of producer {producer}")
        return True

    def _is_confirmed(self, partition: Partition, producer: ProducerIdAndEpoch) -> bool:
        """Return whether the coordinator, which is another broker, has confirmed the batch; false if it was not asked.

        Raises:
            ApiError: The batch must not be appended.
        """
        if has_open_transaction(partition, producer):
            return True
        confirmation = self._confirmations.get(partition.topic_partition)
        if confirmation is not None and confirmation.valid:
            return True
        if confirmation is not None or self._producer not in {None, producer}:
            concurrent = ErrorCode.CONCURRENT_TRANSACTIONS
            raise self._errors.refusal(concurrent, producer, partition.topic_partition)
        self._producer, self._is_remote = producer, True
        return False

    def enter(
        self, partition: Partition, records: Buffer, append: Callable[[Buffer | ApiError], None]
    ) -> None:
        """Keep a batch until its partition is added.

        Raises:
            ApiError: Too many batches wait. The client retries.
        """
        transactions, size = self._transactions, len(records)
        if transactions.waiting_bytes and transactions.waiting_bytes + size > WAITING_BYTES_MAX:
            raise ApiError(self._errors.concurrent, "too many batches wait for their transactions")
        is_first = partition.log.log_end_offset == 0
        cost = 2 * ENTRY_COST + size + (FIRST_BATCH_COST if is_first else 0)
        transactions.waiting_bytes += size
        transactions.waiting_cost += cost
        self._entering.append(Entering(partition, bytes(records), append, cost))

    def add(self, now_ms: int) -> Reply[ErrorCode] | Deferred[Confirmed]:
        """Add the partitions of all batches that wait, or have them confirmed.

        The result of the reply is for `append`. The reply must not be cancelled.
        """
        assert self._transactional_id is not None, "may_append has checked it"
        assert self._producer is not None, "may_append has set it"
        partitions = {entering.partition.topic_partition for entering in self._entering}
        if self._is_remote:
            remote, producer_id = self._transactions.remote, self._producer.producer_id
            self._confirmations = {
                each: remote.confirmations.begin(each, producer_id) for each in partitions
            }
            return remote.confirm(
                self._transactional_id, self._producer, partitions, adds=self._adds
            )
        return self._transactions.coordinator.enter(
            self._transactional_id, self._producer, partitions, now_ms
        )

    def append(self, outcome: ErrorCode | Confirmed) -> Work[None]:
        """Append the batches that wait. Refuse those whose partitions could not be added."""
        entering, self._entering = self._entering, []  # breaks the reference cycle
        transactions = self._transactions
        for partition, records, append, cost in entering:
            transactions.waiting_bytes -= len(records)
            transactions.waiting_cost -= cost
            error = (
                outcome if isinstance(outcome, ErrorCode) else outcome[partition.topic_partition]
            )
            try:
                self._require(partition, records, error)
            except ApiError as refusal:
                append(refusal)
            else:
                append(records)
            yield cost
        for place, confirmation in self._confirmations.items():
            assert self._producer is not None, "may_append has set it"
            producer_id = self._producer.producer_id
            transactions.remote.confirmations.end(place, producer_id, confirmation)

    def _require(self, partition: Partition, records: bytes, error: ErrorCode) -> None:
        """Check again after the wait: the partition may be deleted, and the transaction may have ended.

        Raises:
            ApiError: The batch must not be appended.
        """
        assert self._producer is not None, "may_append has set it"
        if error is not ErrorCode.NONE:
            raise self._errors.refusal(error, self._producer, partition.topic_partition)
        if partition.refusal:
            raise partition.refused()
        if not self.may_append(partition, records):
            raise self._errors.refusal(
                ErrorCode.CONCURRENT_TRANSACTIONS, self._producer, partition.topic_partition
            )
