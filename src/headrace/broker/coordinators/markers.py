"""Writes the markers that end transactions, into partitions of this broker and, through their leaders, into others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.broker.context import LatestTime
from headrace.broker.coordinators.remote import RemoteTransactions
from headrace.broker.partitions.local_partitions import LocalPartitions
from headrace.broker.replication.replicas import Replicas
from headrace.broker.topic_names import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.core.coordinator.group_coordinator import GroupCoordinator
from headrace.core.coordinator.transaction.shard import TransactionOutcome
from headrace.core.log import Marker
from headrace.core.replica.progress import ALL_IN_SYNC
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

    __slots__ = ("_groups", "_partitions", "_remote", "_replicas", "_time")

    def __init__(
        self,
        partitions: LocalPartitions,
        replicas: Replicas,
        groups: GroupCoordinator,
        remote: RemoteTransactions,
        time: LatestTime,
    ) -> None:
        self._partitions = partitions
        self._replicas = replicas
        self._groups = groups
        self._remote = remote
        self._time = time

    def write(
        self,
        coordinator_partition: int,
        outcome: TransactionOutcome,
        partition: TopicPartition,
        done: Callable[[ErrorCode, int], None],
        now_ms: int,
    ) -> None:
        """Write a marker into a partition; see `MarkerWriter`."""

        def written(error: ErrorCode) -> None:
            done(ErrorCode.NONE if error in _NOTHING_TO_MARK else error, self._time.now_ms)

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
            if marker is None:  # this broker coordinates the transaction no longer
                done(error.code, now_ms)
            elif not self._remote.leads(partition):
                written(error.code)
            else:
                self._write_remotely(partition, marker, outcome.start_ms, done)

    def _write_remotely(
        self,
        partition: TopicPartition,
        marker: Marker,
        start_ms: int,
        done: Callable[[ErrorCode, int], None],
    ) -> None:
        def written(error: ErrorCode) -> None:
            # The partition exists. If its leader does not know that yet, the marker is written again.
            fenced = error is ErrorCode.INVALID_PRODUCER_EPOCH
            done(ErrorCode.NONE if fenced else error, self._time.now_ms)

        self._remote.write(partition, marker, start_ms).on_done(written)

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
            # The batch that the coordinator appends does not have the transaction version, which the check needs.
            replica.log.producers.check_marker(marker)
            self._end_in_groups(partition, marker, written, now_ms)
            return
        if replica.isr is not None:
            replica.require_in_sync(ALL_IN_SYNC)
        try:
            end_offset = self._replicas.append_marker(replica, marker, now_ms).last_offset + 1
        except ApiError as error:
            is_open = marker.producer_id in replica.log.producers.transactions.open
            if error.code is not ErrorCode.TRANSACTION_COORDINATOR_FENCED or is_open:
                raise
            # Another client has ended the transaction, with the epoch of a future coordinator.
            end_offset = replica.log.log_end_offset
        if self._remote.begun:
            self._remote.begun.pop((partition, marker.producer_id), None)
        if replica.high_watermark >= end_offset:
            written(ErrorCode.NONE)
        else:
            replica.await_high_watermark(end_offset, written)

    def _end_in_groups(
        self,
        partition: TopicPartition,
        marker: Marker,
        written: Callable[[ErrorCode], None],
        now_ms: int,
    ) -> None:
        reply = self._groups.end_transaction(partition.partition, marker, now_ms)
        if reply is ErrorCode.NOT_COORDINATOR:
            raise ApiError(reply, f"{partition} is not coordinated by this broker")
        if self._remote.begun and (isinstance(reply, Deferred) or reply is ErrorCode.NONE):
            self._remote.begun.pop((partition, marker.producer_id), None)
        if isinstance(reply, Deferred):
            reply.on_done(written)
        else:
            written(reply)
