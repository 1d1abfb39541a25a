"""The transaction coordinator: finds the shard of a transactional id, and runs the operation there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from headrace.core.coordinator.partitioning import can_be_stored, partition_for_key
from headrace.core.coordinator.runtime import (
    PARKED,
    CoordinatorLog,
    Reply,
    Result,
    ShardState,
    Timer,
    Timers,
    gather,
)
from headrace.core.coordinator.transaction import markers, producers, transactions, views
from headrace.core.coordinator.transaction.config import TransactionConfig
from headrace.core.coordinator.transaction.producers import Producer
from headrace.core.coordinator.transaction.records import TransactionMetadata, TransactionRecord
from headrace.core.coordinator.transaction.shard import (
    RETRY,
    TIMEOUT,
    WAITING,
    MarkerWriter,
    Transaction,
    TransactionShard,
)
from headrace.core.coordinator.transaction.transactions import Retry
from headrace.core.deadlines import Deadlines
from headrace.core.deferred import Deferred
from headrace.errors import ErrorCode
from headrace.ports import Journal
from headrace.protocol.messages import list_transactions
from headrace.types import TopicPartition

T = TypeVar("T")

EXPIRY = "expiry"
TOMBSTONES_PER_BATCH = 1_000


class TransactionCoordinator:
    """Coordinates the transactions whose partitions of `__transaction_state` it has loaded.

    All methods are synchronous. A response comes back as it is when nothing has to be waited for, else as a Deferred.
    Where a method's value says nothing besides, errors are error codes in its place.
    """

    def __init__(
        self,
        config: TransactionConfig,
        log: CoordinatorLog,
        *,
        allocate_producer_id: Callable[[], int],
        writer: MarkerWriter,
        journal: Journal,
    ) -> None:
        self.config = config
        self._log = log
        self._allocate_producer_id = allocate_producer_id
        self._writer = writer
        self._journal = journal
        self._timers: Timers = Deadlines()
        self._shards: dict[int, TransactionShard] = {}

    # --- partitions ---

    def load(self, partition: int, now_ms: int) -> None:
        """Replay a partition and begin to coordinate its transactions; those that are prepared are completed.

        Raises:
            StorageError: A record in it cannot be read.
        """
        shard = self._shards.get(partition)
        if shard is None:
            shard = self._shards[partition] = TransactionShard(
                partition,
                self._log,
                self.config,
                allocate_producer_id=self._allocate_producer_id,
                writer=self._writer,
                complete=markers.complete,
                timers=self._timers,
                journal=self._journal,
            )
        interval_ms = self.config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._timers.set(Timer(EXPIRY, partition), now_ms + interval_ms)
        shard.runtime.load(now_ms)

    def unload(self, partition: int) -> None:
        """Stop coordinating a partition's transactions: whoever waits is told NOT_COORDINATOR."""
        shard = self._shards.get(partition)
        if shard is not None:
            shard.runtime.unload()

    def high_watermark_advanced(self, partition: int, high_watermark: int) -> None:
        """Let the responses go that waited for the high watermark. May be called during an append."""
        shard = self._shards.get(partition)
        if shard is not None:
            shard.runtime.high_watermark_advanced(high_watermark)

    def partition_for(self, transactional_id: str) -> int | None:
        """Return the partition that holds an id, or None while `__transaction_state` does not exist."""
        count = self._log.partitions_count
        return partition_for_key(transactional_id, count) if count else None

    # --- time ---

    @property
    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do next, or None."""
        return self._timers.next_ms

    def expire(self, now_ms: int) -> None:
        """Run what is due. Each timer is an operation of its own, like a request."""
        for timer in self._timers.expire(now_ms):
            # Unless what an earlier one of them did has set this one anew.
            shard = self._shards.get(timer.partition)
            if shard is not None and timer not in self._timers:
                self._run_timer(shard, timer, now_ms)

    def _run_timer(self, shard: TransactionShard, timer: Timer, now_ms: int) -> None:
        if timer.kind == PARKED:
            shard.runtime.expire_parked(now_ms)
            return
        if timer.kind == EXPIRY:
            interval_ms = self.config.transaction_remove_expired_transaction_cleanup_interval_ms
            self._timers.set(timer, now_ms + interval_ms)
            self._remove_expired(shard, now_ms)
            return
        transaction = shard.transactions.get(timer.group_id)
        if transaction is None:
            return
        if timer.kind == WAITING:
            shard.tell_waiting(transaction, ErrorCode.CONCURRENT_TRANSACTIONS, now_ms)
        elif timer.kind == RETRY:
            markers.retry(shard, transaction, now_ms)
        elif timer.kind == TIMEOUT:
            self._abort(shard, transaction, timer, now_ms)

    def _abort(
        self, shard: TransactionShard, transaction: Transaction, timer: Timer, now_ms: int
    ) -> None:
        def failed(_error: ErrorCode) -> None:
            # It could not be written down. The transaction must not stay open for ever: tried again.
            if shard.transactions.get(timer.group_id) is transaction:
                self._timers.set(timer, now_ms + self.config.offsets_commit_timeout_ms)

        shard.runtime.execute(
            lambda: transactions.time_is_up(shard, transaction, now_ms), failed, now_ms
        )

    def _remove_expired(self, shard: TransactionShard, now_ms: int) -> None:
        if shard.runtime.state is not ShardState.ACTIVE:
            return
        records = list(transactions.expired(shard, now_ms))
        for start in range(0, len(records), TOMBSTONES_PER_BATCH):
            batch = records[start : start + TOMBSTONES_PER_BATCH]
            shard.runtime.execute(partial(_writing, batch), lambda _: None, now_ms)

    # --- producers ---

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: Producer, now_ms: int
    ) -> Reply[Producer | ErrorCode]:
        """Handle InitProducerId with a transactional id."""
        if not transactional_id or not can_be_stored(transactional_id):
            return ErrorCode.INVALID_REQUEST
        if not 0 < timeout_ms <= self.config.transaction_max_timeout_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT
        return self._run(
            transactional_id,
            lambda shard: producers.init_producer_id(
                shard, transactional_id, timeout_ms, expected, now_ms
            ),
            lambda error: error,
            now_ms,
        )

    def add_partitions(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        now_ms: int,
    ) -> Reply[ErrorCode]:
        """Handle AddPartitionsToTxn, and AddOffsetsToTxn with the partition that holds the group."""

        def operation(shard: TransactionShard) -> Result[ErrorCode]:
            transaction = shard.find(transactional_id, *producer)
            return transactions.add_partitions(transaction, partitions, now_ms)

        return self._run(transactional_id, operation, _same, now_ms)

    def enter(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        now_ms: int,
    ) -> Reply[ErrorCode]:
        """Add the partitions that a request of transaction version 2 is about to write to.

        While the producer's transaction before is being completed this waits: the producer was told that it has ended.
        """
        until_ms = now_ms + self.config.concurrent_transactions_wait_ms

        def attempt(at_ms: int) -> Reply[ErrorCode]:
            return self._run(
                transactional_id,
                lambda shard: transactions.enter(
                    shard,
                    transactional_id,
                    producer,
                    partitions,
                    now_ms=at_ms,
                    retry=Retry(until_ms, attempt),
                ),
                _same,
                at_ms,
            )

        return attempt(now_ms)

    def end_bumping(
        self, transactional_id: str, producer: Producer, now_ms: int, *, committed: bool
    ) -> Reply[Producer | ErrorCode]:
        """Handle EndTxn of transaction version 2: the answer is who the producer is from now on."""
        return self._run(
            transactional_id,
            lambda shard: transactions.end_bumping(
                shard, transactional_id, producer, now_ms, committed=committed
            ),
            _failed,
            now_ms,
        )

    def end(
        self, transactional_id: str, producer: Producer, now_ms: int, *, committed: bool
    ) -> Reply[ErrorCode]:
        """Handle EndTxn."""

        def operation(shard: TransactionShard) -> Result[ErrorCode]:
            transaction = shard.find(transactional_id, *producer)
            return transactions.end(shard, transaction, now_ms, committed=committed)

        return self._run(transactional_id, operation, _same, now_ms)

    def verify(
        self, transactional_id: str, producer: Producer, partition: TopicPartition
    ) -> ErrorCode:
        """Return why a batch of a transaction may not be appended to a partition now, or NONE (KIP-890).

        Appending has to follow at once: the next request may end the transaction.
        """
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        index = self.partition_for(transactional_id)
        shard = None if index is None else self._shards.get(index)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        error = shard.runtime.unavailable
        if error is not ErrorCode.NONE:
            return error
        return transactions.unverified(shard, transactional_id, producer, partition)

    # --- views ---

    def describe(
        self, transactional_id: str, now_ms: int
    ) -> Reply[TransactionMetadata | ErrorCode]:
        """Return what is known of an id."""
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        if self.partition_for(transactional_id) is None:
            return ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        return self._run(
            transactional_id,
            lambda shard: views.find(shard, transactional_id),
            lambda error: error,
            now_ms,
        )

    def list_all(
        self, wanted: views.Filter, now_ms: int
    ) -> Reply[tuple[ErrorCode, list[list_transactions.TransactionState]]]:
        """Return the transactions that pass a filter, with NONE, or the error that hides some of them."""
        failures: list[ErrorCode] = []

        def failed(error: ErrorCode) -> Sequence[list_transactions.TransactionState]:
            failures.append(error)
            return []

        def collected(
            lists: list[Sequence[list_transactions.TransactionState]],
        ) -> tuple[ErrorCode, list[list_transactions.TransactionState]]:
            if failures:
                return failures[0], []
            found = [transaction for listed in lists for transaction in listed]
            return ErrorCode.NONE, sorted(found, key=lambda each: each.transactional_id)

        gathered = gather(
            [
                shard.runtime.execute(
                    partial(views.list_all, shard, wanted, now_ms), failed, now_ms
                )
                for shard in self._shards.values()
            ]
        )
        return gathered.map(collected) if isinstance(gathered, Deferred) else collected(gathered)

    # --- ---

    def _run(
        self,
        transactional_id: str,
        operation: Callable[[TransactionShard], Result[T]],
        failed: Callable[[ErrorCode], T],
        now_ms: int,
    ) -> Reply[T]:
        if not transactional_id:
            return failed(ErrorCode.INVALID_REQUEST)
        partition = self.partition_for(transactional_id)
        if partition is None:
            return failed(ErrorCode.NOT_COORDINATOR)
        shard = self._shards.get(partition)
        if shard is None:
            return failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return shard.runtime.execute(lambda: operation(shard), failed, now_ms)


def _writing(records: list[TransactionRecord]) -> Result[None]:
    return Result(None, records)


def _failed(error: ErrorCode) -> Producer | ErrorCode:
    return error


def _same(error: ErrorCode) -> ErrorCode:
    return error
