"""The entry point of the transaction coordinator. A method finds the shard of an id, and runs an operation there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from headrace.core.coordinator.partitioning import can_be_stored
from headrace.core.coordinator.runtime import CoordinatorLog, Reply, Result, ShardState, TimerKey
from headrace.core.coordinator.sharded import EXPIRY, TOMBSTONES_PER_BATCH, ShardedCoordinator
from headrace.core.coordinator.transaction import markers, producers, transactions, views
from headrace.core.coordinator.transaction.config import TransactionConfig
from headrace.core.coordinator.transaction.producers import ProducerIdAndEpoch
from headrace.core.coordinator.transaction.records import TransactionMetadata, TransactionRecord
from headrace.core.coordinator.transaction.shard import (
    MARKERS,
    RETRY,
    TIMEOUT,
    WAITING,
    CoordinatedTransaction,
    MarkerWriter,
    TransactionShard,
)
from headrace.core.coordinator.transaction.states import TransactionState
from headrace.core.coordinator.transaction.transactions import EntryRetry
from headrace.core.coordinator.transaction.usage import Usage
from headrace.errors import ErrorCode
from headrace.ports import Journal
from headrace.types import TopicPartition

T = TypeVar("T")
_PAUSE_MS: Final = 100
"""The pause between two steps that delete expired ids, in milliseconds."""
_VISITED_A_MILLISECOND: Final = 3_000
"""The number of transactions whose producers are compared in about a millisecond."""
_REPLAYED: Final = frozenset({ShardState.REPLAYED, ShardState.ACTIVE})


class TransactionCoordinator(ShardedCoordinator[TransactionShard]):
    """Handles the requests on transactions whose partitions of `__transaction_state` are loaded.

    All methods are synchronous. A method returns its response, or a Deferred if the response has to wait. In place of
    a value a method may return an error code.
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
        super().__init__(log, config.transaction_remove_expired_transaction_cleanup_interval_ms)
        self.config = config
        self._allocate_producer_id = allocate_producer_id
        self._writer = writer
        self._journal = journal
        self._usage = Usage()

    def _new_shard(self, partition: int) -> TransactionShard:
        return TransactionShard(
            partition,
            self._log,
            self.config,
            allocate_producer_id=self._allocate_producer_id,
            writer=self._writer,
            complete=markers.complete,
            timers=self._timers,
            journal=self._journal,
            usage=self._usage,
        )

    def _run_timer(self, shard: TransactionShard, timer: TimerKey, now_ms: int) -> None:
        transaction = shard.transactions.get(timer.group_id)
        if transaction is None:
            return
        if timer.kind == WAITING:
            shard.notify_waiting(transaction, ErrorCode.CONCURRENT_TRANSACTIONS, now_ms)
        elif timer.kind == MARKERS and transaction.unwritten:
            markers.write_next(shard, transaction, now_ms)
        elif timer.kind == RETRY:
            markers.retry(shard, transaction, now_ms)
        elif timer.kind == TIMEOUT:
            self._abort(shard, transaction, timer, now_ms)

    def _abort(
        self,
        shard: TransactionShard,
        transaction: CoordinatedTransaction,
        timer: TimerKey,
        now_ms: int,
    ) -> None:
        def failed(_error: ErrorCode) -> None:
            # The decision could not be appended. The transaction must not stay open for ever, so the timer runs again.
            if shard.transactions.get(timer.group_id) is transaction:
                self._timers.set(timer, now_ms + self.config.offsets_commit_timeout_ms)

        shard.runtime.execute(
            lambda: transactions.timed_out(shard, transaction, now_ms), failed, now_ms
        )

    def _expired(
        self, shard: TransactionShard, now_ms: int
    ) -> Iterable[Sequence[TransactionRecord]]:
        records = list(islice(transactions.expired(shard, now_ms), TOMBSTONES_PER_BATCH))
        if len(records) == TOMBSTONES_PER_BATCH:
            self._timers.set(
                TimerKey(EXPIRY, shard.partition), now_ms + _PAUSE_MS
            )  # more ids may have expired
        return [records]

    # --- producers ---

    def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdAndEpoch, now_ms: int
    ) -> Reply[ProducerIdAndEpoch | ErrorCode]:
        """Handle an InitProducerId request with a transactional id."""
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
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        now_ms: int,
    ) -> Reply[ErrorCode]:
        """Handle AddPartitionsToTxn, or AddOffsetsToTxn with the group's partition of `__consumer_offsets`."""

        def operation(shard: TransactionShard) -> Result[ErrorCode]:
            transaction = shard.find(transactional_id, *producer)
            return transactions.add_partitions(shard, transaction, partitions, now_ms)

        return self._run(transactional_id, operation, _same, now_ms)

    def enter(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        now_ms: int,
    ) -> Reply[ErrorCode]:
        """Add the partitions that a request of transaction version 2 is about to write to.

        The reply waits while the previous transaction is being completed: its producer already has the response to
        EndTxn, and may begin the next transaction.
        """
        until_ms = now_ms + self.config.concurrent_transactions_wait_ms
        return self._enter(transactional_id, producer, partitions, until_ms, now_ms)

    def _enter(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        until_ms: int,
        now_ms: int,
    ) -> Reply[ErrorCode]:
        again = partial(self._enter, transactional_id, producer, partitions, until_ms)
        return self._run(
            transactional_id,
            lambda shard: transactions.enter(
                shard,
                transactional_id,
                producer,
                partitions,
                now_ms=now_ms,
                retry=EntryRetry(until_ms, again),
            ),
            _same,
            now_ms,
        )

    def end_bumping(
        self, transactional_id: str, producer: ProducerIdAndEpoch, now_ms: int, *, committed: bool
    ) -> Reply[ProducerIdAndEpoch | ErrorCode]:
        """Handle EndTxn of transaction version 2. The reply has the producer id and epoch of the next transaction."""
        return self._run(
            transactional_id,
            lambda shard: transactions.end_bumping(
                shard, transactional_id, producer, now_ms, committed=committed
            ),
            _failed,
            now_ms,
        )

    def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, now_ms: int, *, committed: bool
    ) -> Reply[ErrorCode]:
        """Handle an EndTxn request."""

        def operation(shard: TransactionShard) -> Result[ErrorCode]:
            transaction = shard.find(transactional_id, *producer)
            return transactions.end(shard, transaction, now_ms, committed=committed)

        return self._run(transactional_id, operation, _same, now_ms)

    def verify(
        self, transactional_id: str, producer: ProducerIdAndEpoch, partition: TopicPartition
    ) -> ErrorCode:
        """Return NONE if a transactional batch may be appended to a partition now, otherwise the error (KIP-890).

        The caller appends the batch before it handles another request, which could end the transaction.
        """
        if not transactional_id:
            return ErrorCode.INVALID_REQUEST
        shard = self._shard_of(transactional_id)
        if shard is None:
            return ErrorCode.NOT_COORDINATOR
        error = shard.runtime.unavailable
        if error is not ErrorCode.NONE:
            return error
        return transactions.unverified(shard, transactional_id, producer, partition)

    def is_suspect(self, transactional_id: str) -> bool:
        """Return whether another broker may coordinate a transactional id by now, so that `verify` may be wrong."""
        partition = self.partition_for(transactional_id)
        return partition is not None and self._log.is_suspect(partition)

    def start_ms_of(self, transactional_id: str) -> int:
        """Return the time at which the open transaction of a transactional id has begun; -1 if none is open."""
        shard = self._shard_of(transactional_id)
        transaction = None if shard is None else shard.transactions.get(transactional_id)
        is_open = transaction is not None and transaction.metadata.state is TransactionState.ONGOING
        return transaction.metadata.start_ms if transaction is not None and is_open else -1

    # --- views ---

    def describe(
        self, transactional_id: str, now_ms: int
    ) -> Reply[TransactionMetadata | ErrorCode]:
        """Return the stored state of a transactional id."""
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

    def each_shard(self, now_ms: int) -> Iterator[Reply[Sequence[views.Known] | ErrorCode]]:
        """Yield the ids of one shard after the other with their stored states, or an error in place of them.

        A shard is read when the caller takes the next item.
        """
        for shard in list(self._shards.values()):
            yield shard.runtime.execute(partial(views.all_of, shard), _same_error, now_ms)

    def writers(
        self, producer_ids: Container[int]
    ) -> Generator[None, None, set[tuple[int, TopicPartition]] | None]:
        """Find the partitions of all transactions of some producers that are open or miss markers.

        Yields:
            Nothing, after about each millisecond of work.

        Returns:
            Pairs of a producer id and a partition. None if a partition of `__transaction_state` is not replayed.
        """
        found: set[tuple[int, TopicPartition]] = set()
        for number in range(self._log.partitions_count):
            shard = self._shards.get(number)
            if shard is None or shard.runtime.state not in _REPLAYED:
                return None
            for count, transaction in enumerate(list(shard.transactions.values()), 1):
                metadata = transaction.metadata
                for producer_id in (metadata.producer_id, metadata.previous_producer_id):
                    if producer_id in producer_ids:
                        found.update((producer_id, each) for each in metadata.partitions)
                if count % _VISITED_A_MILLISECOND == 0:
                    yield
            yield
        return found

    # --- routing ---

    def _run(
        self,
        transactional_id: str,
        operation: Callable[[TransactionShard], Result[T]],
        failed: Callable[[ErrorCode], T],
        now_ms: int,
    ) -> Reply[T]:
        if not transactional_id:
            return failed(ErrorCode.INVALID_REQUEST)
        return super()._run(transactional_id, operation, failed, now_ms)


def _same_error(error: ErrorCode) -> Sequence[views.Known] | ErrorCode:
    return error


def _failed(error: ErrorCode) -> ProducerIdAndEpoch | ErrorCode:
    return error


def _same(error: ErrorCode) -> ErrorCode:
    return error
