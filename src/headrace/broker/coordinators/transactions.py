"""Transactions on this broker: their coordinator, its topic, and its markers in partitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.broker.context import LatestTime
from headrace.broker.coordinators.internal_log import InternalLog
from headrace.broker.coordinators.loading import Loading
from headrace.broker.coordinators.lost_markers import LostMarkers
from headrace.broker.coordinators.markers import Markers
from headrace.broker.coordinators.remote import RemoteTransactions
from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.topics import Topics
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic_names import TRANSACTIONS_TOPIC
from headrace.broker.waiting.steps import Steps, Work
from headrace.config.broker import BrokerConfig
from headrace.core.coordinator.group_coordinator import GroupCoordinator
from headrace.core.coordinator.transaction.config import TransactionConfig
from headrace.core.coordinator.transaction.coordinator import TransactionCoordinator
from headrace.core.coordinator.transaction.producers import ProducerIdAndEpoch
from headrace.errors import ApiError, ErrorCode
from headrace.ports import Journal, Peers
from headrace.types import TopicPartition

_PASSING: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""The errors for which a client retries: a batch cannot be appended now, but perhaps later."""


class WriteErrors(NamedTuple):
    """The error codes for a refused transactional write; they depend on the version of the request."""

    passing: ErrorCode
    """The code for an error that the client retries."""
    concurrent: ErrorCode
    """The code while the previous transaction of the producer is not complete; the client retries."""
    not_added: ErrorCode
    """The code if the partition is not in the transaction."""

    def refusal(
        self, error: ErrorCode, producer: ProducerIdAndEpoch, partition: TopicPartition
    ) -> ApiError:
        """Return the error to raise for an error code of the coordinator."""
        if error in _PASSING:
            concurrent = error is ErrorCode.CONCURRENT_TRANSACTIONS
            return ApiError(
                self.concurrent if concurrent else self.passing,
                f"the transaction cannot be verified yet: {error.name}",
            )
        if error is ErrorCode.PRODUCER_FENCED:
            error = ErrorCode.INVALID_PRODUCER_EPOCH
        elif error is ErrorCode.INVALID_TXN_STATE:
            error = self.not_added
        return ApiError(
            error, f"{partition} is not in an open transaction of producer {producer.producer_id}"
        )


class Transactions:
    """The transaction coordinator and what it works with."""

    __slots__ = (
        "_journal",
        "_lost_markers",
        "_partitions",
        "_topics",
        "coordinator",
        "loading",
        "markers",
        "remote",
        "waiting_bytes",
        "waiting_cost",
    )

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        partitions: LocalPartitions,
        *,
        replicas: Replicas,
        groups: GroupCoordinator,
        allocate_producer_id: Callable[[], int],
        peers: Peers,
        steps: Steps,
        time: LatestTime,
        journal: Journal,
    ) -> None:
        self._topics = topics
        self._partitions = partitions
        self._journal = journal
        self.waiting_bytes = 0
        """The size in bytes of the batches whose partitions are being added to their transactions."""
        self.waiting_cost = 0
        """The cost of appending these batches, in the unit of `Steps`."""
        self.remote = RemoteTransactions(partitions.broker_id, topics, peers, time)
        """The transactions of which other brokers have a part."""
        self.markers = Markers(partitions, replicas, groups, self.remote, time)
        """Writes the markers of transactions."""
        self.coordinator = TransactionCoordinator(
            TransactionConfig.from_broker(config),
            InternalLog(TRANSACTIONS_TOPIC, topics, partitions, replicas),
            allocate_producer_id=allocate_producer_id,
            writer=self.markers,
            journal=journal,
        )
        self._lost_markers = LostMarkers(self.coordinator, topics, partitions, replicas, journal)
        self.loading = Loading(self.coordinator, steps, time, self._refuse, journal)
        """Loads the partitions of `__transaction_state`."""

    # Roles

    def begin_all(self) -> Work[None]:
        """Begin to coordinate all partitions, if the topic exists. The work loads them, and replaces lost markers."""
        indexes = self._partitions.led(TRANSACTIONS_TOPIC)
        self.loading.begin(indexes)
        return self._load_all(indexes)

    def begin(self, index: int) -> None:
        """Begin to coordinate a partition: this broker has become its leader."""
        self.loading.begin([index])
        self.loading.run(self._load(index))

    def end(self, index: int) -> None:
        """Stop coordinating a partition: this broker leads it no longer."""
        self.loading.end(index)

    def end_all(self) -> None:
        """Stop coordinating all partitions. Requests that wait get an error: their changes may be lost."""
        topic = self._topics.get(TRANSACTIONS_TOPIC)
        for index in range(0 if topic is None else topic.partitions_count):
            self.coordinator.unload(index)

    def _load(self, index: int) -> Work[None]:
        yield from self.loading.replay(index)
        yield from self.loading.activate(index)

    def _load_all(self, indexes: list[int]) -> Work[None]:
        for index in indexes:
            yield from self.loading.replay(index)
        if indexes:
            yield from self._lost_markers.replace(self.loading)
        for index in indexes:
            yield from self.loading.activate(index)

    def _refuse(self, index: int, error: Exception) -> None:
        """Log that the broker refuses the transactions of one partition, and serves the others."""
        self._journal.error(
            "transaction_partition_not_loaded",
            partition=index,
            error=str(error),
            meaning="transactional producers in this partition are refused with NOT_COORDINATOR",
            remedy=f"restore the directory {TRANSACTIONS_TOPIC}-{index} from a backup: "
            "docs/reference/on-disk-format.md, 'A damaged partition of the broker'",
        )
