"""Writes the markers that end transactions, into partitions of this broker and, through their leaders, into others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.broker.coordinators.remote import RemoteTransactions
from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.core.coordinator.group_coordinator import GroupCoordinator
from headrace.core.coordinator.transaction.shard import TransactionOutcome
from headrace.core.log import Marker
from headrace.deferred import Deferred
from headrace.errors import ApiError, ErrorCode
from headrace.types import TopicPartition

_NOTHING_TO_MARK: Final = frozenset(
    {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_PRODUCER_EPOCH}
)
"""The errors after which no marker is needed: the partition is deleted, or a later epoch of the producer has
written."""


class Markers:
    """Implements `headrace.core.coordinator.transaction.shard.MarkerWriter` with the partitions of the cluster."""

    __slots__ = ("_groups", "_partitions", "_remote", "_replicas")

    def __init__(
        self,
        partitions: LocalPartitions,
        replicas: Replicas,
        groups: GroupCoordinator,
        remote: RemoteTransactions,
    ) -> None:
        self._partitions = partitions
        self._replicas = replicas
        self._groups = groups
        self._remote = remote

    def write(
        self,
        coordinator_partition: int,
        outcome: TransactionOutcome,
        partition: TopicPartition,
        done: Callable[[ErrorCode], None],
        now_ms: int,
    ) -> None:
        """Write a marker into a partition; see `MarkerWriter`."""

        def written(error: ErrorCode) -> None:
            done(ErrorCode.NONE if error in _NOTHING_TO_MARK else error)

        marker: Marker | None = None
        try:
            epoch = self._partitions.require(TRANSACTIONS_TOPIC, coordinator_partition)
            marker = Marker(
                outcome.producer_id,
                outcome.producer_epoch,
                epoch.leader_epoch,
                outcome.committed,
                outcome.transaction_version,
            )
            self.append(partition, marker, written, now_ms)
        except ApiError as error:
            if marker is None or not self._remote.leads(partition):
                written(error.code)
            else:
                self._write_remotely(partition, marker, done)

    def _write_remotely(
        self, partition: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]
    ) -> None:
        def written(error: ErrorCode) -> None:
            # The partition exists. If its leader does not know that yet, the marker is written again.
            fenced = error is ErrorCode.INVALID_PRODUCER_EPOCH
            done(ErrorCode.NONE if fenced else error)

        self._remote.write(partition, marker).on_done(written)

    def append(
        self,
        partition: TopicPartition,
        marker: Marker,
        written: Callable[[ErrorCode], None],
        now_ms: int,
    ) -> None:
        """Append the marker of a coordinator to a partition that this broker leads.

        Args:
            partition: The partition. In `__consumer_offsets` the marker also ends the transaction of the groups.
            marker: The marker.
            written: Called once with NONE when the marker is durable, or with an error.
            now_ms: The time.

        Raises:
            ApiError: The marker was not appended, and `written` is not called.
        """
        replica = self._partitions.require(partition.topic, partition.partition)
        if self._remote.confirmations.pending:
            self._remote.confirmations.marker_written(partition, marker.producer_id)
        if partition.topic == OFFSETS_TOPIC:
            reply = self._groups.end_transaction(partition.partition, marker, now_ms)
            if isinstance(reply, Deferred):
                reply.on_done(written)
            elif reply is ErrorCode.NOT_COORDINATOR:
                raise ApiError(reply, f"{partition} is not coordinated by this broker")
            else:
                written(reply)
            return
        try:
            info = self._replicas.append_marker(replica, marker, now_ms)
        except ApiError as error:
            is_open = marker.producer_id in replica.log.producers.transactions.open
            if error.code is not ErrorCode.TRANSACTION_COORDINATOR_FENCED or is_open:
                raise
            # Another client has ended the transaction, with the epoch of a future coordinator.
            written(ErrorCode.NONE)
            return
        if replica.high_watermark > info.last_offset:
            written(ErrorCode.NONE)
        else:
            replica.await_high_watermark(info.last_offset + 1, written)
