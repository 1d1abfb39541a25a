"""The sender of a producer: it sends batches to their leaders, handles the responses, and retries.

`ProducerCore` fills the queues. The sender runs after each response and at each timer that it has set. It never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Protocol

from headrace.clients.config import ProducerConfig
from headrace.clients.engine import Engine, Outcome, Timer
from headrace.clients.flows import metadata
from headrace.clients.flows.cluster import NO_LEADER
from headrace.clients.flows.effects import ClientState
from headrace.clients.flows.produce import (
    ProducedPartition,
    ProducerIdentity,
    produce_call,
    read_produce,
)
from headrace.clients.flows.routing import partition_error
from headrace.clients.producer.batches import PartitionQueue, ProducerBatch, split
from headrace.clients.producer.delivery import Delivery, Written
from headrace.clients.producer.send_conditions import SendConditions
from headrace.errors import ApiError, ErrorCode, HeadraceError, InternalError, TransportError
from headrace.records.compression import Compression
from headrace.types import TopicPartition

WRITTEN: Final = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
LOST_IDENTITY: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }
)
"""Errors about sequence numbers or the epoch. Nothing was written; a new epoch begins a new sequence.

INVALID_PRODUCER_EPOCH means that another client uses the producer's id with a later epoch: a new id is needed.
"""
MAYBE_WRITTEN: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
"""A batch may be in the log after these errors. A broker that loses the role of a leader, or its disk, completes
waiting requests with the last three. The batch may be written by then, and committed by the next leader.
"""
TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
CONCURRENT_MS: Final = 20
"""The backoff in milliseconds while the coordinator completes the previous transaction."""

TAKEN_MS: Final = 20
"""The backoff in milliseconds before a retry with a new producer id, when other clients use the producer's id."""


class SenderTransactions(Protocol):
    """The interface between the sender and the producer's transactions."""

    @property
    def transactional_id(self) -> str:
        """The producer's name for transactions."""

    @property
    def max_produce_version(self) -> int | None:
        """The newest version of Produce that may be used; None is the newest of the client."""

    @property
    def goes_on(self) -> bool:
        """Whether a batch that failed may be sent again."""

    def admitted(self, queues: list[PartitionQueue]) -> list[PartitionQueue]:
        """Return the queues whose partition is in the transaction; add the other partitions in the background."""

    def batch_failed(self, error: HeadraceError, *, sent: bool) -> None:
        """Report that a batch was given up; `sent` if it may have been written."""


class Sender:
    """Sends the batches of one producer."""

    def __init__(
        self,
        engine: Engine,
        config: ProducerConfig,
        *,
        on_batch_closed: Callable[[TopicPartition], object],
        on_topics: Callable[[Collection[str]], object],
    ) -> None:
        """Prepare a sender.

        Args:
            engine: The client's engine.
            config: The producer's configuration.
            on_batch_closed: Called with the partition of each batch that accepts no more records.
            on_topics: Called with the topics whose metadata was requested again.
        """
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.active: dict[PartitionQueue, None] = {}
        """The queues that hold records; those that were sent longest ago come first."""
        self.buffered = 0
        """The bytes of closed batches that are pending."""
        self.delivered = 0
        self.failed = 0
        self.failures: list[Delivery] = []
        """The first record that failed since `flush` emptied this list; at most one entry."""
        self.transactions: SenderTransactions | None = None
        """The producer's transactions, which provide the id and epoch of batches; None without transactions."""
        self._engine = engine
        self._config = config
        self._on_batch_closed = on_batch_closed
        self._compression = Compression[config.compression_type.upper()]
        self._node_requests: dict[int, int] = {}
        """The number of Produce requests in flight, by node id."""
        self._identity = ProducerIdentity()
        self._conditions = SendConditions(
            engine,
            config,
            self.active,
            take_identity=self.take_identity,
            give_up=self.give_up,
            work=self.work,
            on_topics=on_topics,
        )
        self._prepared = self._conditions.prepared
        self._timer: Timer | None = None
        self._working = False
        self._work_again = False

    # What the core does

    def open_batch(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        """Let a new batch collect records until it is full or has lingered."""
        queue.open = batch
        self.active[queue] = None
        self._wake_at(batch.created_ms + self._config.linger_ms)

    def close_open(self, queue: PartitionQueue) -> None:
        """Close a queue's open batch, so that `work` sends it as soon as possible."""
        if queue.open is not None:
            self.buffered += queue.open.size
            queue.close_open()
            self._on_batch_closed(queue.topic_partition)

    def work(self) -> None:
        """Close batches after `linger.ms`, fail late ones, send those that may be sent, and set the next timer."""
        if self._working:  # a response arrived while a request was being submitted
            self._work_again = True
            return
        self._working = True
        try:
            while True:
                self._work_again = False
                self._round()
                if not self._work_again:
                    return
        finally:
            self._working = False

    @property
    def outstanding(self) -> int:
        """The number of records that are pending."""
        return sum(
            batch.count
            for queue in list(self.queues.values())
            for batch in [*queue.ready, *queue.in_flight, *([queue.open] if queue.open else [])]
        )

    def give_up(self, error: HeadraceError) -> None:
        """Fail all pending records."""
        for queue in list(self.active):
            self.close_open(queue)
            for batch in [*queue.in_flight, *queue.ready]:
                self._abandon(queue, batch, error)
            self.retire(queue)

    def drop_unsent(self, error: HeadraceError) -> None:
        """Fail all pending records that are not in flight."""
        for queue in list(self.active):
            self.close_open(queue)
            for batch in list(queue.ready):
                self._abandon(queue, batch, error)

    def take_identity(self, identity: ProducerIdentity) -> None:
        """Use another producer id or epoch from now on."""
        self._identity = self._conditions.identity = identity
        for queue in self.queues.values():
            queue.adopt(identity)

    def retire(self, queue: PartitionQueue) -> None:
        """Remove a queue from the active ones if it is empty."""
        if queue.empty:
            self.active.pop(queue, None)

    # Rounds

    def _round(self) -> None:
        now_ms = self._engine.now_ms
        for queue in list(self.active):
            if queue.open is not None and queue.open.created_ms + self._config.linger_ms <= now_ms:
                self.close_open(queue)
        self._give_up_late(now_ms)
        self._send_ready(now_ms)
        self._set_timer(now_ms)

    def _set_timer(self, now_ms: int) -> None:
        moments = [
            queue.open.created_ms + self._config.linger_ms for queue in self.active if queue.open
        ]
        waiting = [queue for queue in self.active if queue.ready and not queue.in_flight]
        moments += [queue.muted_until_ms for queue in waiting if queue.muted_until_ms > now_ms]
        moments += [
            queue.ready[0].created_ms + self._config.delivery_timeout_ms + 1 for queue in waiting
        ]
        if moments:
            self._wake_at(min(moments))

    def _wake_at(self, when_ms: int) -> None:
        timer = self._timer
        if timer is not None and timer.pending:
            if timer.when_ms <= when_ms:
                return
            timer.cancel()
        self._timer = self._engine.at(when_ms, self.work)

    def _send_ready(self, now_ms: int) -> None:
        queues = self._prepared(self._sendable(self.active, now_ms), now_ms)
        if queues and self.transactions is not None:
            queues = self.transactions.admitted(queues)
        limit = self._config.max_in_flight_requests_per_connection
        while queues:
            by_node: dict[int, list[PartitionQueue]] = {}
            for queue in queues:
                node = self._engine.state.metadata.leader(queue.topic_partition)
                if node != NO_LEADER and self._node_requests.get(node, 0) < limit:
                    by_node.setdefault(node, []).append(queue)
            for node, part in by_node.items():
                self._send_request(node, part)
            served = [queue for part in by_node.values() for queue in part]
            queues = self._sendable(served, now_ms)

    def _sendable(self, queues: Iterable[PartitionQueue], now_ms: int) -> list[PartitionQueue]:
        pipelined = self._config.enable_idempotence
        return [
            queue
            for queue in queues
            if queue.sendable(now_ms, pipelined=pipelined)
            and (queue.adopt(self._identity) or not queue.in_flight)
        ]

    def _send_request(self, node: int, queues: list[PartitionQueue]) -> None:
        """Send one batch of each queue, as many as fit into a request."""
        batches: dict[TopicPartition, ProducerBatch] = {}
        size = 0
        for queue in queues:
            if batches and size + queue.ready[0].size > self._config.max_request_size:
                continue
            before = queue.ready[0].size
            try:
                batch = queue.take()
            except Exception as error:  # noqa: BLE001 - the batch's records get it; the other batches go out
                what = f"{queue.topic_partition}: a batch cannot be built"
                self._abandon(queue, queue.ready[0], InternalError.of(error, what))
                continue
            # A queue that was served moves to the end, so that no partition is always last.
            self.active.pop(queue, None)
            self.active[queue] = None
            self.buffered += batch.size - before
            batches[queue.topic_partition] = batch
            size += batch.size
        if not batches:
            return
        self._node_requests[node] = self._node_requests.get(node, 0) + 1

        def answered(outcome: Outcome) -> None:
            self._node_requests[node] -= 1
            try:
                self._take_answer(batches, outcome, names, node)
            except Exception as error:
                failure = InternalError.of(error, "the answer to a produce cannot be taken in")
                for name, batch in batches.items():
                    if batch in self.queues[name].in_flight:
                        self._abandon(self.queues[name], batch, failure)
                if failure is not error:
                    raise  # and so reported: a fault of the client's
            finally:
                self.work()
            self._engine.notify()

        transactions = self.transactions
        call, names = produce_call(
            self._engine.state.metadata,
            node,
            {name: batch.data for name, batch in batches.items()},
            acks=self._config.acks,
            timeout_ms=self._config.request_timeout_ms,
            transactional_id=None if transactions is None else transactions.transactional_id,
            max_version=None if transactions is None else transactions.max_produce_version,
        )
        self._engine.submit(call, answered)

    # Answers

    def _take_answer(
        self,
        batches: dict[TopicPartition, ProducerBatch],
        outcome: Outcome,
        names: Mapping[bytes, str],
        node: int,
    ) -> None:
        state = self._engine.state
        try:
            answers = {} if outcome is None else dict(_read(state, outcome, names, node))
        except HeadraceError as error:
            for name, batch in batches.items():
                self._handle_failure(self.queues[name], batch, error)
            return
        missing = ProducedPartition(
            error=ErrorCode.NETWORK_EXCEPTION, message="it was not answered"
        )
        for name, batch in batches.items():
            queue = self.queues[name]
            if batch not in queue.in_flight:
                continue  # given up meanwhile
            answer = ProducedPartition() if outcome is None else answers.get(name, missing)
            if answer.error in WRITTEN:
                self._complete(queue, batch, answer)
            else:
                refusal = partition_error(name, answer.error, answer.message)
                self._handle_failure(queue, batch, refusal, names_leader=answer.names_leader)

    def _handle_failure(
        self,
        queue: PartitionQueue,
        batch: ProducerBatch,
        error: HeadraceError,
        *,
        names_leader: bool = False,
    ) -> None:
        """Retry a batch, or give it up.

        Args:
            queue: The queue of the batch.
            batch: The batch that was not written.
            error: The reason.
            names_leader: Whether the response named the new leader, to which the batch can go at once.
        """
        if batch not in queue.in_flight:
            return
        code = _code_of(error)
        if not names_leader:
            metadata.forget_leader(self._engine.state, batch.topic_partition.topic, code)
        if code in TOO_LARGE and batch.count > 1:
            self._split(queue, batch)
            return
        passing = (
            isinstance(error, TransportError) or code.retriable or _is_echo(queue, batch, code)
        )
        batch.doubtful = batch.doubtful or code in MAYBE_WRITTEN
        if self.transactions is not None:
            passing = passing and self.transactions.goes_on
        elif self._config.enable_idempotence and code in LOST_IDENTITY:
            passing = True
            if queue.is_first_outstanding(batch):
                # No earlier batch caused this error: the broker has lost the state of this producer.
                batch.doubtful = False
                self._conditions.lose_identity(queue)
                # The later epoch cannot be the producer's own, which it uses only when no batch is pending.
                conditions = self._conditions
                if code == ErrorCode.INVALID_PRODUCER_EPOCH and conditions.identity_lost:
                    conditions.id_taken = True
        if not passing or batch.attempts > self._config.retries:
            self._abandon(queue, batch, error)
            return
        pause_ms = 0 if names_leader else self._pause_ms(batch, code)
        queue.put_back(batch, self._engine.now_ms + pause_ms)
        self._engine.trouble.note(error, self._engine.now_ms)

    def _pause_ms(self, batch: ProducerBatch, code: ErrorCode) -> int:
        pause_ms = min(
            self._config.retry_backoff_ms << min(batch.attempts - 1, 16),
            self._config.retry_backoff_max_ms,
        )
        if code == ErrorCode.CONCURRENT_TRANSACTIONS:
            return min(pause_ms, CONCURRENT_MS)
        if self._conditions.id_taken and code == ErrorCode.INVALID_PRODUCER_EPOCH:
            return min(pause_ms, TAKEN_MS)
        return pause_ms

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        transactional = self.transactions is not None
        halves = split(batch, self._compression, queue.identity, transactional=transactional)
        self.buffered += sum(half.size for half in halves) - batch.size
        queue.put_back(batch, 0)
        position = queue.ready.index(batch)
        del queue.ready[position]
        for index, half in enumerate(halves):
            queue.ready.insert(position + index, half)

    def _complete(
        self, queue: PartitionQueue, batch: ProducerBatch, produced: ProducedPartition
    ) -> None:
        self._let_go(queue, batch)
        self.delivered += batch.count
        queue.confirmed = True
        if produced.base_offset >= 0:
            if produced.base_offset < queue.end_offset:
                self._conditions.begins_anew(queue.topic_partition.topic)
            queue.end_offset = produced.base_offset + batch.count
        written = Written(produced.base_offset, produced.log_append_time_ms)
        self._engine.callbacks.extend(batch.fate.settle(written))

    def _abandon(self, queue: PartitionQueue, batch: ProducerBatch, error: HeadraceError) -> None:
        self._let_go(queue, batch)
        self.failed += batch.count
        # The failed batch leaves a gap in the sequence numbers: a new epoch begins a new sequence.
        if batch.base_sequence >= 0 and self.transactions is None:
            self._conditions.lose_identity(queue)
        for delivery in batch.deliveries or (Delivery(None, batch.fate, 0, -1),):
            if not self.failures and not delivery.observed:
                self.failures.append(delivery)
        self._engine.callbacks.extend(batch.fate.settle(error))
        if self.transactions is not None:
            self.transactions.batch_failed(error, sent=batch.base_sequence >= 0)

    def _let_go(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        elif batch in queue.ready:
            queue.ready.remove(batch)
        self.buffered -= batch.size
        self.retire(queue)

    def _give_up_late(self, now_ms: int) -> None:
        """Fail batches that could not be delivered within `delivery.timeout.ms`."""
        oldest_ms = now_ms - self._config.delivery_timeout_ms
        for queue in list(self.active):
            while queue.ready and not queue.in_flight and queue.ready[0].created_ms < oldest_ms:
                batch = queue.ready[0]
                text = f"{queue.topic_partition}: not delivered within delivery.timeout.ms"
                text = self._engine.trouble.explain(text, batch.created_ms)
                self._abandon(queue, batch, TransportError(text))
                self._engine.notify()


def _code_of(error: HeadraceError) -> ErrorCode:
    """Return the code of an error; one that is not retriable for an error of the client itself."""
    if isinstance(error, ApiError):
        return error.code
    transport = isinstance(error, TransportError)
    return ErrorCode.NETWORK_EXCEPTION if transport else ErrorCode.UNKNOWN_SERVER_ERROR


def _is_echo(queue: PartitionQueue, batch: ProducerBatch, code: ErrorCode) -> bool:
    """Whether a batch is refused only because an earlier batch is being retried."""
    out_of_order = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    return out_of_order and not queue.is_first_outstanding(batch)


def _read(
    state: ClientState, outcome: Outcome, names: Mapping[bytes, str], node: int
) -> Iterable[tuple[TopicPartition, ProducedPartition]]:
    if isinstance(outcome, HeadraceError):
        raise outcome
    assert outcome is not None, "a produce without an answer has nothing to read"
    return read_produce(state, outcome, names, node)
