"""Aborts transactions whose markers a power failure has lost, when the broker starts.

(1) A partition has durability `os` or `interval`. (2) The broker writes a marker there, and the coordinator stores
durably that the transaction has ended. (3) A power failure loses the marker, but not the records. (4) Readers of
committed records would wait for ever. The outcome of the transaction is unknown now. The broker aborts it, so that its
records are not visible, as if the power failure had lost them, too.

A broker of a cluster does not look for such transactions: when it starts, it leads no partitions yet, and it does not
coordinate all transactions.
"""

from __future__ import annotations

from headrace.broker.coordinators.loading import Loading, paced
from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.partitions.topics import Topics
from headrace.broker.replication.partition import Partition
from headrace.broker.replication.replicas import Replicas
from headrace.broker.waiting.steps import ENTRY_COST, Work
from headrace.core.coordinator.transaction.coordinator import TransactionCoordinator
from headrace.core.log import Marker
from headrace.errors import ApiError
from headrace.ports import Journal


class LostMarkers:
    """Finds the open transactions that the coordinator does not know, and aborts them."""

    __slots__ = ("_coordinator", "_journal", "_partitions", "_replicas", "_topics")

    def __init__(
        self,
        coordinator: TransactionCoordinator,
        topics: Topics,
        partitions: LocalPartitions,
        replicas: Replicas,
        journal: Journal,
    ) -> None:
        self._coordinator = coordinator
        self._topics = topics
        self._partitions = partitions
        self._replicas = replicas
        self._journal = journal

    def replace(self, loading: Loading) -> Work[None]:
        """Abort these transactions.

        Called when all partitions of `__transaction_state` are replayed, and before they are active. A request could
        begin a transaction otherwise, which would be taken for an old one.
        """
        found: list[tuple[Partition, int]] = []
        for topic in list(self._topics):
            if not topic.is_internal:
                for partition in self._partitions.of(topic):
                    if partition is not None:
                        producers = partition.log.producers.transactions.open
                        found += [(partition, producer_id) for producer_id in producers]
                yield (1 + topic.partitions_count) * ENTRY_COST // 10
        if not found:
            return
        known = yield from paced(
            self._coordinator.writers({producer_id for _, producer_id in found})
        )
        for partition, producer_id in found:
            if known is not None and (producer_id, partition.topic_partition) not in known:
                self._abort(partition, producer_id, loading.now_ms())
                yield ENTRY_COST

    def _abort(self, partition: Partition, producer_id: int, now_ms: int) -> None:
        producers = partition.log.producers
        entry = producers.get(producer_id)
        if partition.refusal or entry is None or producer_id not in producers.transactions.open:
            return
        coordinator_epoch = max(entry.coordinator_epoch, partition.leader_epoch)
        marker = Marker(producer_id, entry.epoch, coordinator_epoch, committed=False)
        try:
            self._replicas.append_marker(partition, marker, now_ms)
        except ApiError as error:
            outcome = f"cannot be aborted: {error.message}"
        else:
            outcome = "aborted"
        self._journal.warning(
            "transaction_without_outcome",
            partition=str(partition.topic_partition),
            producer_id=producer_id,
            reason="the marker that ended it is lost",
            outcome=outcome,
        )
