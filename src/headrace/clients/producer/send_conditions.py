"""Leaders of partitions, and the producer's id and epoch: both must be known before batches can be sent."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from headrace.clients.config import ProducerConfig
from headrace.clients.engine import Engine, Task
from headrace.clients.flows import metadata
from headrace.clients.flows.cluster import NO_LEADER, ClusterMetadata
from headrace.clients.flows.produce import ProducerIdentity, init_producer_id
from headrace.clients.flows.routing import partition_error
from headrace.clients.producer.batches import PartitionQueue
from headrace.errors import ErrorCode, HeadraceError

LAST_EPOCH: Final = 0x7FFE
"""The last epoch to which a producer raises its own epoch; after it the producer asks for a new id."""
REFRESH_TIMEOUT_MS: Final = 2_000
"""Milliseconds that one request for metadata may take."""


class SendConditions:
    """Finds leaders, and the identity of a producer without transactions, in the background."""

    def __init__(
        self,
        engine: Engine,
        config: ProducerConfig,
        active: Mapping[PartitionQueue, None],
        *,
        take_identity: Callable[[ProducerIdentity], object],
        give_up: Callable[[HeadraceError], object],
        work: Callable[[], object],
        on_topics: Callable[[Collection[str]], object],
    ) -> None:
        """Prepare the conditions of a producer.

        Args:
            engine: The client's engine.
            config: The producer's configuration.
            active: The queues that hold records.
            take_identity: Called with a new id and epoch; `identity` must be that one when it returns.
            give_up: Called with the error if the producer gets no id: every record fails with it.
            work: Called when batches may have become sendable.
            on_topics: Called with the topics whose metadata was requested again.
        """
        self.identity = ProducerIdentity()
        """The producer's id and epoch; the sender sets it."""
        self.identity_lost = False
        """Whether the next batch needs another epoch or id."""
        self.id_taken = False
        """Whether another client has written under the producer's id, so that a new epoch may not be enough."""
        self._engine = engine
        self._config = config
        self._active = active
        self._take_identity = take_identity
        self._give_up = give_up
        self._work = work
        self._on_topics = on_topics
        self._needs_identity = config.enable_idempotence and config.transactional_id is None
        """Whether this object requests a producer id. The transaction manager does so for a transactional producer."""
        self._identifying = False
        """Whether a request for an id is in flight."""
        self._refreshing: set[str] = set()
        """The topics for which a request for metadata is in flight."""
        self._metadata_at_ms = engine.now_ms
        """The time of the last request for metadata because of its age or of lost connections."""
        self._lost_connections = engine.transport.lost_connections
        """The number of connections that had ended at that time."""

    def prepared(self, queues: list[PartitionQueue], now_ms: int) -> list[PartitionQueue]:
        """Return the queues whose leader is known, if the producer has an id. Request what is unknown."""
        if not queues:
            return []
        state = self._engine.state
        topics = {queue.topic_partition.topic for queue in queues}
        # With acks=0 a broker that is no longer the leader closes the connection.
        lost = self._engine.transport.lost_connections
        closed = self._config.acks == 0 and lost != self._lost_connections
        if closed or now_ms - self._metadata_at_ms > self._config.metadata_max_age_ms:
            self._lost_connections = lost
            self._metadata_at_ms = now_ms
            state.stale_topics.update(topics)
        self._refresh(topics & state.stale_topics - self._refreshing)
        if self._needs_identity and not self._identified():
            return []
        ready = []
        for queue in queues:
            where = queue.topic_partition
            if where.topic in state.stale_topics:
                continue
            if state.metadata.leader(where) != NO_LEADER:
                ready.append(queue)
                continue
            topic = state.metadata.topics.get(where.topic)
            code = topic.error if topic is not None and topic.error else None
            error = partition_error(where, code or ErrorCode.LEADER_NOT_AVAILABLE)
            if topic is not None and not code and where.partition not in topic.partitions:
                text = f"the topic has only {len(topic.partitions)} partitions now"
                error = partition_error(where, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
            self._engine.trouble.note(error, now_ms)
            state.stale_topics.add(where.topic)
            queue.muted_until_ms = now_ms + self._config.retry_backoff_ms
        return ready

    def _refresh(self, stale: set[str]) -> None:
        """Request metadata of topics in the background."""
        if not stale:
            return
        self._refreshing |= stale

        def done(task: Task[ClusterMetadata]) -> None:
            self._refreshing -= stale
            if isinstance(task.outcome, HeadraceError):
                self._engine.trouble.note(task.outcome, self._engine.now_ms)
                self._mute(stale, self._config.retry_backoff_max_ms)
            elif stale & self._engine.state.stale_topics:
                self._mute(stale & self._engine.state.stale_topics, self._config.retry_backoff_ms)
            self._on_topics(stale)
            self._work()
            self._engine.notify()

        # As in Java's producer: a deleted topic is created again if the broker creates topics automatically.
        create = self._config.recreate_topics
        flow = metadata.refresh(self._engine.state, stale, auto_create=create)
        self._engine.spawn(flow, timeout_ms=REFRESH_TIMEOUT_MS, on_done=done)

    def _mute(self, topics: Iterable[str], pause_ms: int) -> None:
        names = set(topics)
        for queue in self._active:
            if queue.topic_partition.topic in names:
                queue.muted_until_ms = self._engine.now_ms + pause_ms

    def _identified(self) -> bool:
        """Return whether the producer has an id and epoch. If not, request them when nothing is in flight."""
        if self.identity.producer_id >= 0 and not self.identity_lost:
            return True
        if self._identifying or any(queue.in_flight for queue in self._active):
            return False
        producer_id, epoch = self.identity.producer_id, self.identity.producer_epoch
        if self.identity_lost and epoch < LAST_EPOCH and not self.id_taken:
            # The next epoch of the same id fences batches that are still in flight with this epoch.
            self._become(ProducerIdentity(producer_id, epoch + 1))
            return True
        self._identifying = True
        self._engine.spawn(init_producer_id(self._engine.state), on_done=self._identify_done)
        return False

    def _become(self, identity: ProducerIdentity) -> None:
        self.identity_lost = self.id_taken = False
        self._take_identity(identity)

    def _identify_done(self, task: Task[ProducerIdentity]) -> None:
        self._identifying = False
        if isinstance(task.outcome, ProducerIdentity):
            self._become(task.outcome)
        elif isinstance(task.outcome, HeadraceError):
            self._give_up(task.outcome)
        self._work()
        self._engine.notify()

    def lose_identity(self, queue: PartitionQueue) -> None:
        """Make the producer use a new epoch, unless the queue has not taken over the newest epoch yet."""
        if queue.identity == self.identity:
            self.identity_lost = True

    def begins_anew(self, topic: str) -> None:
        """Look up a topic whose offsets went back: it was deleted and created again."""
        self._engine.state.stale_topics.add(topic)
        self._refresh({topic} - self._refreshing)
