"""Transactions whose coordinator, or whose partitions, are on another broker.

A broker asks itself first. Only if it does not coordinate the transactional id, or does not lead the partition, it
sends a request to the broker that does. So a single broker sends nothing.

A partition accepts a batch of a transaction when the coordinator has confirmed that the partition is in the
transaction. Three events must not come in this order (KIP-890): (1) The coordinator confirms. (2) The transaction ends,
and its marker is written into the partition. (3) The batch is appended, and no marker follows. Therefore a marker voids
the confirmations that are in flight (`Confirmations`). Later batches of the same transaction need no confirmation,
because the partition has the open transaction in its log.

Until transaction version 2 the transactions of a producer have the same epoch, so a late marker could end the next
transaction: (1) The coordinator sends a marker, and the connection breaks. (2) The coordinator sends the marker again,
which ends the transaction. (3) The producer begins the next transaction. (4) The first marker arrives. Therefore a
confirmation has the time at which its transaction has begun, a marker has it, too, and the partition refuses the marker
of another transaction. Apache Kafka does not notice such a marker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, TypeAlias

from headrace.broker.context import LatestTime
from headrace.broker.coordinators.leaders import NO_LEADER, coordinator_of, leader_of
from headrace.broker.partitions.topics import Topics
from headrace.broker.replication.partition import Partition
from headrace.broker.topic_names import TRANSACTIONS_TOPIC
from headrace.core.coordinator.transaction.producers import ProducerIdAndEpoch
from headrace.core.log import Marker
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.ports import Peers
from headrace.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from headrace.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from headrace.types import TopicPartition

CONFIRMATION_TIMEOUT_MS: Final = 10_000
"""The time for which a broker waits for the response of a coordinator, in milliseconds. A coordinator responds within
5 seconds, whether or not its records become durable."""
MARKER_TIMEOUT_MS: Final = 3_000
"""The time for which a coordinator waits for the response to a marker, in milliseconds. Then it sends the marker again.
The next transaction of the producer waits for the marker, so the time is short."""
BEGUN_LIMIT: Final = 100_000
"""The largest number of transactions whose begin a broker remembers. The oldest one is forgotten first."""

Confirmed: TypeAlias = Mapping[TopicPartition, ErrorCode]
"""The error code of each partition; NONE if the partition is in the transaction."""


class Confirmation:
    """A request to confirm that a partition is in a transaction. It is valid until a marker ends a transaction."""

    __slots__ = ("valid",)

    def __init__(self) -> None:
        self.valid = True


class Confirmations:
    """The confirmations that are in flight, by partition and producer id."""

    __slots__ = ("pending",)

    def __init__(self) -> None:
        self.pending: dict[tuple[TopicPartition, int], set[Confirmation]] = {}
        """The confirmations by partition and producer id; empty on a single broker."""

    def begin(self, partition: TopicPartition, producer_id: int) -> Confirmation:
        """Begin a confirmation. `end` has to follow."""
        confirmation = Confirmation()
        self.pending.setdefault((partition, producer_id), set()).add(confirmation)
        return confirmation

    def end(self, partition: TopicPartition, producer_id: int, confirmation: Confirmation) -> None:
        """Forget a confirmation: its batch was appended, or refused."""
        pending = self.pending.get((partition, producer_id))
        if pending is not None:
            pending.discard(confirmation)
            if not pending:
                del self.pending[partition, producer_id]

    def marker_written(self, partition: TopicPartition, producer_id: int) -> None:
        """Void the confirmations of a producer whose transaction in a partition has ended."""
        for confirmation in self.pending.pop((partition, producer_id), ()):
            confirmation.valid = False


class RemoteTransactions:
    """The transactions of which another broker has a part."""

    __slots__ = ("_broker_id", "_peers", "_time", "_topics", "begun", "confirmations")

    def __init__(self, broker_id: int, topics: Topics, peers: Peers, time: LatestTime) -> None:
        """Use the peers.

        Args:
            broker_id: The id of this broker.
            topics: The topics, with the leaders of their partitions.
            peers: Sends requests.
            time: The time of the latest call of the broker.
        """
        self._broker_id = broker_id
        self._topics = topics
        self._peers = peers
        self._time = time
        self.confirmations = Confirmations()
        """The confirmations by coordinators on other brokers."""
        self.begun: dict[tuple[TopicPartition, int], int] = {}
        """The time at which each confirmed transaction has begun, in milliseconds, by partition and producer id. An
        entry is removed when the marker is written. The times are those of coordinators on other brokers."""

    def coordinates(self, transactional_id: str) -> bool:
        """Return whether another broker coordinates a transactional id."""
        return self._is_other(coordinator_of(self._topics, TRANSACTIONS_TOPIC, transactional_id))

    def leads(self, partition: TopicPartition) -> bool:
        """Return whether another broker leads a partition."""
        return self._is_other(leader_of(self._topics, *partition))

    def _is_other(self, broker_id: int) -> bool:
        return broker_id not in {NO_LEADER, self._broker_id}

    def confirm(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Collection[TopicPartition],
        *,
        adds: bool,
    ) -> Deferred[Confirmed]:
        """Have the coordinator add partitions to a transaction, or confirm that they are in it.

        Args:
            transactional_id: The transactional id.
            producer: The producer.
            partitions: The partitions.
            adds: Whether the coordinator adds the partitions.
        """
        by_topic: dict[str, list[int]] = {}
        for name, index in sorted(partitions):
            by_topic.setdefault(name, []).append(index)
        wanted = AddPartitionsToTxnTransaction(
            transactional_id=transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            verify_only=not adds,
            topics=[
                AddPartitionsToTxnTopic(name=name, partitions=indexes)
                for name, indexes in by_topic.items()
            ],
        )
        to = coordinator_of(self._topics, TRANSACTIONS_TOPIC, transactional_id)
        reply = self._send(
            to, AddPartitionsToTxnRequest(transactions=[wanted]), CONFIRMATION_TIMEOUT_MS
        )

        def confirmed(response: AddPartitionsToTxnResponse | ApiError) -> Confirmed:
            found = dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if isinstance(response, AddPartitionsToTxnResponse):
                for result in response.results_by_transaction:
                    for topic in result.topic_results:
                        for each in topic.results_by_partition:
                            place = TopicPartition(topic.name, each.partition_index)
                            found[place] = _as_here(ErrorCode(each.partition_error_code))
                            self._confirmed(place, producer.producer_id, found[place], response)
            return found

        return _mapped(reply, confirmed)

    def _confirmed(
        self,
        place: TopicPartition,
        producer_id: int,
        error: ErrorCode,
        response: AddPartitionsToTxnResponse,
    ) -> None:
        key, start_ms = (place, producer_id), response.headrace_start_ms
        # A marker that was written since the request was sent has ended the transaction.
        if error is ErrorCode.NONE and start_ms >= 0 and key in self.confirmations.pending:
            self.begun.pop(key, None)
            self.begun[key] = start_ms
            if len(self.begun) > BEGUN_LIMIT:
                del self.begun[next(iter(self.begun))]

    def check_start(self, partition: TopicPartition, marker: Marker, start_ms: int) -> None:
        """Check that a marker does not belong to a transaction before the open one.

        Args:
            partition: The partition.
            marker: The marker of a coordinator on another broker.
            start_ms: When the marker's transaction has begun, in milliseconds; -1 if that is unknown.

        Raises:
            ApiError: INVALID_PRODUCER_EPOCH. The marker belongs to another transaction.
        """
        begun_ms = self.begun.get((partition, marker.producer_id), start_ms)
        if start_ms >= 0 and begun_ms != start_ms:
            raise ApiError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"the marker for {partition} belongs to an earlier transaction of producer {marker.producer_id}",
            )

    def role_changed(self, partition: TopicPartition) -> None:
        """Forget the transactions of a partition that this broker leads since now, or leads no longer.

        A broker that has become the coordinator confirms transactions without a response.
        """
        if partition.topic == TRANSACTIONS_TOPIC:
            self.begun.clear()
        for key in [key for key in self.begun if key[0] == partition]:
            del self.begun[key]

    def write(
        self, partition: TopicPartition, marker: Marker, start_ms: int
    ) -> Deferred[ErrorCode]:
        """Have the leader of a partition write a marker; the code is NONE when the marker is durable.

        Args:
            partition: The partition.
            marker: The marker.
            start_ms: When the transaction has begun, in milliseconds.
        """
        wanted = WritableTxnMarker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            transaction_result=marker.committed,
            coordinator_epoch=marker.coordinator_epoch,
            transaction_version=marker.transaction_version,
            headrace_start_ms=start_ms,
            topics=[
                WritableTxnMarkerTopic(
                    name=partition.topic, partition_indexes=[partition.partition]
                )
            ],
        )
        to = leader_of(self._topics, *partition)
        reply = self._send(to, WriteTxnMarkersRequest(markers=[wanted]), MARKER_TIMEOUT_MS)

        def written(response: WriteTxnMarkersResponse | ApiError) -> ErrorCode:
            if isinstance(response, ApiError):
                return response.code
            (result,) = response.markers
            return ErrorCode(result.topics[0].partitions[0].error_code)

        return _mapped(reply, written)

    def _send(self, broker_id: int, request: Any, timeout_ms: int) -> Deferred[Any]:
        return self._peers.send(broker_id, request, self._time.now_ms + timeout_ms)


def has_open_transaction(partition: Partition, producer: ProducerIdAndEpoch) -> bool:
    """Return whether a partition has an open transaction of this epoch of a producer, so that batches may follow."""
    producers = partition.log.producers
    if producer.producer_id not in producers.transactions.open:
        return False
    known = producers.get(producer.producer_id)
    return known is not None and known.epoch == producer.producer_epoch


def _as_here(error: ErrorCode) -> ErrorCode:
    """Return the code that the own coordinator returns for an error of a coordinator on another broker."""
    return ErrorCode.INVALID_TXN_STATE if error is ErrorCode.TRANSACTION_ABORTABLE else error


def _mapped(reply: Deferred[Any], function: Callable[[Any], Any]) -> Deferred[Any]:
    """Return a deferred of `function(value)`. Unlike `Deferred.map`, it is not cancelled with its response."""
    mapped: Deferred[Any] = Deferred()
    reply.on_done(lambda value: mapped.resolve(function(value)))
    return mapped
