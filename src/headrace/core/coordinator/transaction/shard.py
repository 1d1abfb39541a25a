"""The transactions of one partition of `__transaction_state`: replayed state, timers, and markers that are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from headrace.core.coordinator.pace import MILLISECOND, Pace
from headrace.core.coordinator.runtime import (
    NOTHING,
    CoordinatorLog,
    Result,
    ShardRuntime,
    ShardState,
    TimerKey,
    Timers,
)
from headrace.core.coordinator.transaction.config import TransactionConfig
from headrace.core.coordinator.transaction.records import (
    TransactionMetadata,
    TransactionRecord,
    decode_records,
    encode_records,
)
from headrace.core.coordinator.transaction.states import PREPARED, TransactionState
from headrace.core.coordinator.transaction.usage import Usage
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.ports import Journal
from headrace.types import Buffer, TopicPartition

TIMEOUT: Final = "timeout"
"""The kind of timer that aborts a transaction after its timeout."""
MARKERS: Final = "markers"
"""The kind of timer that writes further markers of a transaction."""
RETRY: Final = "retry"
"""The kind of timer that repeats markers that could not be written."""
WAITING: Final = "waiting"
"""The kind of timer that ends the wait of requests for the completion of a transaction."""
RECORD_US: Final = 12
"""The time to decode and replay a record without partitions, in microseconds."""
PARTITION_US: Final = 1
"""The time to decode and replay a partition of a record, in microseconds."""
TIMEOUT_US: Final = 5
"""The time to start the timeout of a loaded transaction, in microseconds."""


class TransactionOutcome(NamedTuple):
    """The outcome of a transaction, as markers have it."""

    producer_id: int
    producer_epoch: int
    committed: bool
    transaction_version: int = 0
    start_ms: int = -1
    """The time at which the transaction has begun. Transactions of one epoch differ in this time; -1 if unknown."""


class MarkerWriter(Protocol):
    """Writes markers into the partitions of the cluster; the broker implements it."""

    def write(
        self,
        coordinator_partition: int,
        outcome: TransactionOutcome,
        partition: TopicPartition,
        done: Callable[[ErrorCode, int], None],
        now_ms: int,
    ) -> None:
        """Write one marker.

        Args:
            coordinator_partition: The partition of `__transaction_state` that has the decision.
            outcome: The content of the marker.
            partition: The partition to which the marker is appended.
            done: Called once, possibly before `write` returns. The first argument is NONE when the marker is below the
                high watermark, or when no marker is needed: the partition was deleted, or a newer epoch has written to
                it. Otherwise it is the error for which the marker has to be written again. The second argument is the
                time of the call.
            now_ms: The time.
        """


class CompletionWaiter(NamedTuple):
    """A request that waits for the completion of a prepared transaction."""

    deadline_ms: int
    """The time at which the wait ends with an error."""
    notify: Callable[[ErrorCode, int], None]
    """Called with NONE and the time when the transaction has completed, or with an error when the wait has ended."""


class CoordinatedTransaction:
    """The state of one transactional id and its transaction.

    Attributes:
        transactional_id: The id.
        metadata: The stored state, which only replay replaces. Its record may not be durable yet.
        added: The partitions of an open transaction, each with the end offset of the record that added it.
        unmarked: The partitions whose markers are not durable yet; None while no markers are being written.
        failed: The unmarked partitions whose markers have to be written again, with the errors.
        attempts: The number of retries.
        unwritten: The unmarked partitions whose markers have not been written yet, the next one last.
        waiting: The requests that wait for the completion, in the order of arrival.
    """

    __slots__ = (
        "added",
        "attempts",
        "failed",
        "metadata",
        "transactional_id",
        "unmarked",
        "unwritten",
        "waiting",
    )

    def __init__(self, transactional_id: str, metadata: TransactionMetadata) -> None:
        self.transactional_id = transactional_id
        self.metadata = metadata
        self.added: dict[TopicPartition, int] = {}
        self.unmarked: set[TopicPartition] | None = None
        self.failed: dict[TopicPartition, ErrorCode] = {}
        self.attempts = 0
        self.unwritten: list[TopicPartition] = []
        self.waiting: list[CompletionWaiter] = []


class TransactionShard:
    """State and helpers that the operations on transactions share.

    Attributes:
        runtime: Appends and replays records, and holds responses back.
        writer: Writes markers.
        transactions: The state of every transactional id of this partition.
    """

    def __init__(
        self,
        partition: int,
        log: CoordinatorLog,
        config: TransactionConfig,
        *,
        allocate_producer_id: Callable[[], int],
        writer: MarkerWriter,
        complete: Callable[[TransactionShard, CoordinatedTransaction, int], None],
        timers: Timers,
        journal: Journal,
        usage: Usage,
    ) -> None:
        """Begin empty.

        Args:
            partition: The number of the partition.
            log: The internal topic.
            config: The settings of the coordinator.
            allocate_producer_id: Returns a producer id that was never used.
            writer: Writes markers.
            complete: Begins to write the markers of a transaction that is prepared when the shard is loaded.
            timers: The coordinator's timers.
            journal: Logs events.
            usage: Counts the memory of the ids of all shards.
        """
        self.partition = partition
        self.usage = usage
        self.config = config
        self.allocate_producer_id = allocate_producer_id
        self.writer = writer
        self.timers = timers
        self.journal = journal
        self.transactions: dict[str, CoordinatedTransaction] = {}
        self._complete = complete
        self.runtime: ShardRuntime[TransactionRecord] = ShardRuntime(
            partition,
            log,
            self,
            timers=timers,
            commit_timeout_ms=config.offsets_commit_timeout_ms,
            journal=journal,
        )

    # --- durable state ---

    def replay(self, record: TransactionRecord) -> None:
        """Apply one record. The stored state of a transaction changes only here."""
        transactional_id, metadata = record
        transaction = self.transactions.get(transactional_id)
        before = None if transaction is None else transaction.metadata
        self.usage.change(transactional_id, before, metadata)
        if metadata is None:
            if transaction is not None:
                del self.transactions[transactional_id]
                self._cancel_timers(transaction)
            return
        if transaction is None:
            transaction = CoordinatedTransaction(transactional_id, metadata)
            self.transactions[transactional_id] = transaction
        transaction.metadata = metadata
        transaction.unmarked = None
        transaction.failed, transaction.attempts = {}, 0
        transaction.unwritten = []
        self._follow(transaction)
        if transaction.waiting and metadata.state not in PREPARED:
            self.notify_waiting(transaction, ErrorCode.NONE, metadata.last_update_ms)

    def _follow(self, transaction: CoordinatedTransaction) -> None:
        metadata = transaction.metadata
        self._cancel_timers(transaction)
        if metadata.state is TransactionState.ONGOING:
            end_offset = self.runtime.end_offset
            added = transaction.added
            transaction.added = {each: added.get(each, end_offset) for each in metadata.partitions}
            if self.runtime.state is ShardState.ACTIVE:
                self._await_timeout(transaction)
        else:
            transaction.added = {}

    def _await_timeout(self, transaction: CoordinatedTransaction) -> None:
        metadata = transaction.metadata
        at_ms = metadata.start_ms + metadata.timeout_ms
        self.timers.set(self.timer(TIMEOUT, transaction.transactional_id), at_ms)

    def encode(self, records: Sequence[TransactionRecord], now_ms: int) -> bytes:
        """Return the records as one batch."""
        return encode_records(records, now_ms)

    def decode(self, batches: Buffer) -> Iterator[tuple[int, TransactionRecord | None] | None]:
        """Yield the records of batches."""
        pace = Pace()
        for offset, record in decode_records(batches):
            yield offset, record
            pace.done_us += RECORD_US
            if record is not None and record.metadata is not None:
                pace.done_us += len(record.metadata.partitions) * PARTITION_US
            if pace.done_us >= MILLISECOND:
                yield from pace.pauses()

    def loaded(self, now_ms: int) -> Iterator[Callable[[], Result[None]] | None]:
        """Begin the timeouts of open transactions, and the markers of prepared ones, also of those that have them."""
        pace = Pace()
        for transaction in self.transactions.values():
            state = transaction.metadata.state
            if state is TransactionState.ONGOING:
                self._await_timeout(transaction)
            elif state in PREPARED:
                yield partial(self._complete_loaded, transaction, transaction.metadata, now_ms)
            pace.done_us += TIMEOUT_US
            if pace.done_us >= MILLISECOND:
                yield from pace.pauses()

    def _complete_loaded(
        self, transaction: CoordinatedTransaction, metadata: TransactionMetadata, now_ms: int
    ) -> Result[None]:
        if self.is_current(transaction, metadata):
            self._complete(self, transaction, now_ms)
        return NOTHING

    def unloaded(self, error: ErrorCode) -> Iterator[None]:
        """Drop all state. Results of markers that are in flight are ignored. The rest of the work frees the state."""
        transactions, self.transactions = self.transactions, {}
        return self._free(transactions, error)

    def _free(
        self, transactions: dict[str, CoordinatedTransaction], error: ErrorCode
    ) -> Iterator[None]:
        pace = Pace()
        while transactions:
            transaction = transactions.popitem()[1]
            self.usage.change(transaction.transactional_id, transaction.metadata, None)
            self._cancel_timers(transaction)
            if transaction.waiting:
                self.notify_waiting(transaction, error, transaction.metadata.last_update_ms)
            pace.done_us += TIMEOUT_US + len(transaction.metadata.partitions) * PARTITION_US
            if pace.done_us >= MILLISECOND:
                yield from pace.pauses()

    # --- timers ---

    def timer(self, kind: str, transactional_id: str) -> TimerKey:
        """Return the key of one of a transaction's timers."""
        return TimerKey(kind, self.partition, transactional_id)

    def _cancel_timers(self, transaction: CoordinatedTransaction) -> None:
        for kind in (TIMEOUT, MARKERS, RETRY):
            self.timers.cancel(self.timer(kind, transaction.transactional_id))

    # --- what operations share ---

    def find(
        self, transactional_id: str, producer_id: int, producer_epoch: int
    ) -> CoordinatedTransaction:
        """Return the transaction of a transactional id, if the producer is the current one.

        Raises:
            ApiError: INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED. CONCURRENT_TRANSACTIONS if the producer will be
                the current one when the prepared transaction has completed.
        """
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        current = transaction.metadata
        if (current.producer_id, current.producer_epoch) == (producer_id, producer_epoch):
            return transaction
        if current.state in PREPARED and (producer_id, producer_epoch) == (
            current.next_producer_id,
            0,
        ):
            raise ApiError(ErrorCode.CONCURRENT_TRANSACTIONS)
        known = current.producer_id == producer_id
        raise ApiError(
            ErrorCode.PRODUCER_FENCED if known else ErrorCode.INVALID_PRODUCER_ID_MAPPING
        )

    def wait(self, transaction: CoordinatedTransaction, waiter: CompletionWaiter) -> None:
        """Add a request that waits for the completion of a prepared transaction."""
        transaction.waiting.append(waiter)
        timer = self.timer(WAITING, transaction.transactional_id)
        self.timers.set(timer, transaction.waiting[0].deadline_ms)

    def notify_waiting(
        self, transaction: CoordinatedTransaction, error: ErrorCode, now_ms: int
    ) -> None:
        """Notify all waiting requests, in the order of arrival."""
        self.timers.cancel(self.timer(WAITING, transaction.transactional_id))
        waiting, transaction.waiting = transaction.waiting, []
        for waiter in waiting:
            waiter.notify(error, now_ms)

    def is_current(
        self, transaction: CoordinatedTransaction, metadata: TransactionMetadata
    ) -> bool:
        """Return whether the stored state of a transaction is still `metadata`."""
        known = self.transactions.get(transaction.transactional_id)
        return known is transaction and transaction.metadata is metadata

    def when_durable(self, then: Callable[[ErrorCode], None], now_ms: int) -> None:
        """Call `then` with NONE when everything appended so far is below the high watermark, or with an error."""
        reply = self.runtime.execute(_nothing, _same, now_ms)
        if isinstance(reply, Deferred):
            reply.on_done(then)
        else:
            then(reply)


def _nothing() -> Result[ErrorCode]:
    return Result(ErrorCode.NONE)


def _same(error: ErrorCode) -> ErrorCode:
    return error
