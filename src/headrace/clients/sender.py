"""What carries a producer's batches to their leaders: requests in flight, answers, repeats, the producer's identity.

`BlockingProducer` fills the queues; `Sender.work` moves them along.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from headrace.clients.accumulator import Batch, PartitionQueue, split
from headrace.clients.config import ProducerConfig
from headrace.clients.drivers.polling import PollingDriver, Reply
from headrace.clients.flows import metadata
from headrace.clients.flows.cluster import NO_LEADER
from headrace.clients.flows.effects import Call, ClientState
from headrace.clients.flows.produce import (
    ProducedPartition,
    ProducerIdentity,
    init_producer_id,
    produce_request,
    read_produce,
)
from headrace.clients.flows.routing import partition_error
from headrace.errors import ApiError, ErrorCode, HeadraceError, TransportError
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
"""The broker's and our idea of the sequence differ: nothing was written, a new epoch begins a new sequence."""
TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
REFRESH_TIMEOUT_MS: Final = 2_000


class Sender:
    """Moves batches from their queues to the brokers; one owner, one thread."""

    def __init__(
        self,
        state: ClientState,
        driver: PollingDriver,
        config: ProducerConfig,
        *,
        on_batch_closed: Callable[[TopicPartition], None],
        on_metadata: Callable[[Collection[str]], None],
    ) -> None:
        """Prepare a sender.

        Args:
            state: The client's state.
            driver: What sends the requests.
            config: The producer's configuration.
            on_batch_closed: Told the partition of each batch that takes no more records.
            on_metadata: Told the topics whose metadata was asked for again.
        """
        self.config = config
        self.queues: dict[TopicPartition, PartitionQueue] = {}
        self.active: set[PartitionQueue] = set()
        """Queues that hold records."""
        self.buffered = 0
        """Bytes in closed batches that are not delivered yet."""
        self.next_check = 0.0
        """When a lingering batch is due, by the monotonic clock."""
        self.failure: HeadraceError | None = None
        """The first failed delivery that no callback was told of."""
        self.delivered = 0
        self.failed = 0
        self._state = state
        self._driver = driver
        self._on_batch_closed = on_batch_closed
        self._on_metadata = on_metadata
        self._compression = Compression[config.compression_type.upper()]
        self._random = random.Random()  # noqa: S311 - orders requests, guards nothing
        self._node_requests: dict[int, int] = {}
        """Node id to the number of requests in flight."""
        self._finished: deque[tuple[Batch, ProducedPartition | HeadraceError]] = deque()
        self._identity = ProducerIdentity()
        self._identity_lost = False
        self._linger = config.linger_ms / 1000
        self._metadata_at = time.monotonic()
        self._lost_connections = 0
        self._last_error: HeadraceError | None = None

    def open_batch(self, queue: PartitionQueue, batch: Batch) -> None:
        """Let a new batch collect records until it is full or has lingered."""
        queue.open = batch
        self.active.add(queue)
        self.next_check = min(self.next_check, batch.created + self._linger)

    def close_open(self, queue: PartitionQueue) -> None:
        """Let a queue's open batch take no more records; it is sent as soon as may be."""
        if queue.open is not None:
            self.buffered += queue.open.size
            queue.close_open()
            self._on_batch_closed(queue.topic_partition)

    def work(self, timeout: float) -> None:
        """One round: take in answers, close what has lingered, send what may go, wait for an answer."""
        if self._node_requests:
            self._driver.poll(0.0)
        self._settle()
        now = time.monotonic()
        self._close_lingering(now)
        self._send_ready(now)
        if timeout > 0 and self.active:
            if any(self._node_requests.values()):
                self._driver.poll(timeout)
            else:
                self._driver.poll(min(timeout, self._until_next(now)))
            self._settle()
            self._send_ready(time.monotonic())

    def _until_next(self, now: float) -> float:
        """Return the seconds until a muted queue or a lingering batch wants attention."""
        moments = [queue.muted_until for queue in self.active if queue.ready]
        moments += [queue.open.created + self._linger for queue in self.active if queue.open]
        return max(0.001, min(moments, default=now + 1.0) - now)

    def _close_lingering(self, now: float) -> None:
        check = now + 1.0
        for queue in self.active:
            batch = queue.open
            if batch is None:
                continue
            due = batch.created + self._linger
            if due <= now:
                self.close_open(queue)
            else:
                check = min(check, due)
        self.next_check = check

    def _send_ready(self, now: float) -> None:
        self._give_up_late(now)
        queues = [queue for queue in self.active if queue.sendable(now, pipelined=self._pipelined)]
        if not queues or not self._prepared(queues, now):
            return
        self._random.shuffle(queues)  # no partition is always last
        limit = self.config.max_in_flight_requests_per_connection
        while queues:
            by_node: dict[int, list[PartitionQueue]] = {}
            for queue in queues:
                node = self._state.metadata.leader(queue.topic_partition)
                if node != NO_LEADER and self._node_requests.get(node, 0) < limit:
                    by_node.setdefault(node, []).append(queue)
            for node, part in by_node.items():
                self._send_request(node, part)
            self._settle()
            queues = [
                queue
                for part in by_node.values()
                for queue in part
                if queue.sendable(now, pipelined=self._pipelined)
            ]

    @property
    def _pipelined(self) -> bool:
        return self.config.enable_idempotence

    def _send_request(self, node: int, queues: list[PartitionQueue]) -> None:
        """Send one batch of each queue, as many as a request may hold."""
        batches: dict[TopicPartition, Batch] = {}
        size = 0
        for queue in queues:
            if batches and size + queue.ready[0].size > self.config.max_request_size:
                continue
            before = queue.ready[0].size
            batch = queue.take(self._identity)
            self.buffered += batch.size - before
            batches[queue.topic_partition] = batch
            size += batch.size
        self._node_requests[node] = self._node_requests.get(node, 0) + 1

        def answered(reply: Reply) -> None:
            self._node_requests[node] -= 1
            self._take_answer(batches, reply)

        timeout_ms = self.config.request_timeout_ms
        request = produce_request(
            {name: batch.data for name, batch in batches.items()}, self.config.acks, timeout_ms
        )
        call = Call(request=request, node=node, answered=self.config.acks != 0)
        self._driver.submit(call, on_done=answered)

    def _take_answer(self, batches: dict[TopicPartition, Batch], reply: Reply) -> None:
        """Note what an answer says; it is acted on in `_settle`, when no other call is under way."""
        outcome = reply.outcome
        if isinstance(outcome, HeadraceError):
            self._finished += ((batch, outcome) for batch in batches.values())
        elif outcome is None:
            self._finished += ((batch, ProducedPartition()) for batch in batches.values())
        else:
            answers = dict(read_produce(outcome))
            missing = TransportError("the broker left a partition out of its answer")
            for name, batch in batches.items():
                self._finished.append((batch, answers.get(name, missing)))

    def _settle(self) -> None:
        while self._finished:
            batch, outcome = self._finished.popleft()
            queue = self.queues[batch.topic_partition]
            if isinstance(outcome, ProducedPartition):
                if outcome.error in WRITTEN:
                    self._complete(queue, batch, outcome)
                    continue
                error: HeadraceError = partition_error(
                    batch.topic_partition, outcome.error, outcome.message
                )
            else:
                error = outcome
            self._handle_failure(queue, batch, error)

    def _handle_failure(self, queue: PartitionQueue, batch: Batch, error: HeadraceError) -> None:
        topic = batch.topic_partition.topic
        code = error.code if isinstance(error, ApiError) else ErrorCode.NETWORK_EXCEPTION
        metadata.forget_leader(self._state, topic, code)
        if code in TOO_LARGE and batch.count > 1:
            self._split(queue, batch)
            return
        passing = isinstance(error, TransportError) or code.retriable
        if self.config.enable_idempotence and code in LOST_IDENTITY:
            passing = True
            if queue.is_first_outstanding(batch):
                # Not the echo of an earlier batch's failure: the broker has lost track of this producer.
                self._identity_lost = True
        if not passing or batch.attempts > self.config.retries:
            self._complete(queue, batch, ProducedPartition(), error)
            return
        backoff_ms = min(
            self.config.retry_backoff_ms << min(batch.attempts - 1, 16),
            self.config.retry_backoff_max_ms,
        )
        pause = backoff_ms / 1000 * self._random.uniform(0.8, 1.2)
        queue.put_back(batch, time.monotonic() + pause)
        self._last_error = error

    def _split(self, queue: PartitionQueue, batch: Batch) -> None:
        halves = split(batch, self._compression, self._identity)
        self.buffered += sum(half.size for half in halves) - batch.size
        queue.put_back(batch, 0.0)
        position = queue.ready.index(batch)
        del queue.ready[position]
        for index, half in enumerate(halves):
            queue.ready.insert(position + index, half)

    def _complete(
        self,
        queue: PartitionQueue,
        batch: Batch,
        produced: ProducedPartition,
        error: HeadraceError | None = None,
    ) -> None:
        if batch in queue.in_flight:
            queue.in_flight.remove(batch)
        self.buffered -= batch.size
        count = batch.count
        if error is None:
            self.delivered += count
            queue.confirmed = True
        else:
            self.failed += count
            # The records after it have a gap before them: a new epoch begins their sequence anew.
            self._identity_lost = self._identity_lost or batch.base_sequence >= 0
            if len(batch.callbacks) < count and self.failure is None:
                self.failure = error
        self.retire(queue)
        for callback, delivery in batch.deliveries(
            produced.base_offset, produced.log_append_time_ms, error
        ):
            callback(delivery)

    def retire(self, queue: PartitionQueue) -> None:
        """Forget a queue that holds nothing any more."""
        if queue.empty:
            self.active.discard(queue)

    def _give_up_late(self, now: float) -> None:
        """Fail batches that could not be delivered within `delivery.timeout.ms`."""
        oldest = now - self.config.delivery_timeout_ms / 1000
        late = [
            (queue, batch)
            for queue in self.active
            for batch in list(queue.ready)
            if batch.created < oldest and not queue.in_flight
        ]
        for queue, batch in late:
            queue.ready.remove(batch)
            cause = self._last_error
            text = f"{batch.topic_partition}: not delivered within delivery.timeout.ms"
            error = TransportError(f"{text}; last error: {cause}" if cause else text)
            self._complete(queue, batch, ProducedPartition(), error)

    def _prepared(self, queues: list[PartitionQueue], now: float) -> bool:
        """Make sure of leaders and of the producer's identity; false when sending has to wait."""
        topics = {queue.topic_partition.topic for queue in queues}
        # With acks=0 a broker tells by closing the connection that it does not lead the partition any more.
        lost = self._driver.lost_connections != self._lost_connections and self.config.acks == 0
        if lost or now - self._metadata_at > self.config.metadata_max_age_ms / 1000:
            self._lost_connections = self._driver.lost_connections
            self._state.stale_topics.update(topics)
        stale = topics & self._state.stale_topics
        try:
            if stale:
                flow = metadata.refresh(self._state, stale)
                self._driver.run(flow, REFRESH_TIMEOUT_MS)
                self._metadata_at = now
                self._on_metadata(stale)
            if self.config.enable_idempotence and not self._identify():
                return False
        except TransportError as error:
            self._last_error = error
            for queue in queues:
                queue.muted_until = now + self.config.retry_backoff_max_ms / 1000
            return False
        for queue in queues:
            where = queue.topic_partition
            if self._state.metadata.leader(where) == NO_LEADER:
                topic = self._state.metadata.topics.get(where.topic)
                code = topic.error if topic is not None and topic.error else None
                self._last_error = partition_error(where, code or ErrorCode.LEADER_NOT_AVAILABLE)
                self._state.stale_topics.add(where.topic)
                queue.muted_until = now + self.config.retry_backoff_ms / 1000
        return True

    def _identify(self) -> bool:
        """Obtain the producer id, or the next epoch once nothing is in flight under the old one."""
        if self._identity.producer_id >= 0 and not self._identity_lost:
            return True
        if any(queue.in_flight for queue in self.active):
            return False
        previous = self._identity if self._identity_lost else None
        try:
            self._identity = self._driver.run(init_producer_id(self._state, previous))
        except ApiError:
            if previous is None:
                raise
            self._identity = self._driver.run(init_producer_id(self._state))  # forgotten: a new one
        self._identity_lost = False
        for queue in self.queues.values():
            queue.renumber(self._identity)
        return True
