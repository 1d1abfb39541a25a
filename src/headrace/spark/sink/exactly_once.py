"""Exactly-once writes: one transaction for each of Spark's partitions. The driver ends all of them.

A *batch* is one micro-batch of a stream, or one batch write with `txnVersion`. Several attempts may write a batch:
Spark repeats tasks, a new driver repeats the batch, and a driver that was believed dead may continue. Each partition
of the batch has its own transactional id, `NAME-PARTITION`.

A task (`write_partition`):
1. The task initializes its transactional id. This fences all earlier attempts and aborts their open transactions.
2. The task reads the partition's marker, an offset of the group with the name of the id, and waits for pending commits.
   Earlier attempts are fenced by now, so the marker cannot change any more. If the marker shows that the batch is
   written, the task counts its rows and does not write them.
3. The task writes its rows and adds the marker to the transaction: batch + 1, the number of rows and their size. It
   reports the open transaction to the driver.

The driver (`commit_batch`), after Spark has accepted one attempt of each task:
1. The driver initializes the id `NAME-claim`. It reads the claim, an offset of the group with that name, or the record
   that was written with it.
2. The driver claims the batch in a transaction of that id: batch + 1, and the division of the batch. If the batch is
   claimed already, it must be divided as the claim says, or be committed completely. If a later batch is claimed, the
   driver fails.
3. The driver commits the transactions of the tasks.

Brokers delete offsets of inactive groups, but not the records of a compacted topic (`claims.py`). No part of a batch
after the last claim was committed, even if markers were deleted. For a claimed batch, a partition without marker may be
committed if markers may have been deleted. Then the driver fails, because it cannot decide.

Claims are read and written under one transactional id, and no part of a batch is committed before its claim. The claim
is withdrawn only after each partition's id was initialized and no partition had its marker. So all committed parts of a
batch have the same division, and each part has one id, under which one attempt wins. After any failure the batch is
repeated: committed parts have their marker, the other parts have no rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.producer.many import Rows
from headrace.errors import HeadraceError, TransactionError
from headrace.spark.options.sink import WriteId
from headrace.spark.sink.cluster import Cluster
from headrace.spark.sink.producer import RowProducer, TaskTransaction

_log: Final = logging.getLogger("headrace.spark")

MARKERS_KEPT_MS: Final = 6 * 24 * 3_600_000
"""Milliseconds for which markers certainly exist. By default brokers delete offsets after seven days, and markers are
slightly older than the claim."""


@dataclass(frozen=True)
class PartitionWrite:
    """The report of a task to the driver."""

    once: WriteId
    partition: int
    records: int
    """The number of rows of the task."""
    transaction: TaskTransaction | None = None
    """The open transaction with the rows; None if there are no rows, or if an earlier attempt has written them."""
    earlier_records: int | None = None
    """The number of rows that an earlier attempt has written; None if there is none."""
    size: int = 0
    """The size of the rows' keys and values in bytes."""
    earlier_size: int | None = None
    """The size that an earlier attempt has written; None if there is none, or if it ran an earlier version."""

    @property
    def repeated(self) -> bool:
        """Whether an earlier attempt at the batch has written this partition."""
        return self.earlier_records is not None


@dataclass(frozen=True)
class BatchClaim:
    """The division of a claimed batch."""

    partitions: int
    written: int
    """The number of partitions with rows."""
    records: int
    at_ms: int | None = field(default=None, compare=False)
    """The time of the claim in milliseconds since 1970; None in claims of earlier versions."""

    @classmethod
    def of(cls, writes: Sequence[PartitionWrite]) -> BatchClaim:
        """Return the division of the batch that these tasks have written."""
        counts = [each.records for each in writes]
        return cls(len(counts), sum(1 for count in counts if count), sum(counts), _now_ms())

    @classmethod
    def parse(cls, text: str) -> BatchClaim:
        """Parse the metadata of a claim's offset."""
        partitions, written, records, *at_ms = map(int, text.split())
        return cls(partitions, written, records, *at_ms)

    def __str__(self) -> str:
        return f"{self.partitions} {self.written} {self.records} {self.at_ms}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class RowBatch:
    """A batch of a task's rows."""

    count: int
    records: Callable[[], Iterable[Rows]]
    """Converts the rows to records."""
    size: int = 0
    """The size of the rows' keys and values in bytes."""


def write_partition(
    cluster: Cluster, once: WriteId, partition: int, batches: Iterator[RowBatch]
) -> PartitionWrite:
    """Write a task's rows in a transaction and leave it open. A task without rows has no transaction.

    Raises:
        HeadraceError: The rows cannot be written, and the transaction is aborted.
    """
    for first in batches:
        if first.count:
            return _write_rows(cluster, once, partition, chain([first], batches))
    return PartitionWrite(once, partition, 0)


def _write_rows(
    cluster: Cluster, once: WriteId, partition: int, batches: Iterable[RowBatch]
) -> PartitionWrite:
    name = once.part(partition)
    with cluster.new_producer(name) as producer:
        producer.init_transactions()
        marker = cluster.marker(name)
        if marker is not None and marker.offset > once.version:
            if marker.offset > once.version + 1:
                raise _too_old(once, marker.offset - 1)
            count, size = _amount(batches)
            earlier = [int(each) for each in marker.metadata.split()]
            return PartitionWrite(
                once,
                partition,
                count,
                size=size,
                earlier_records=earlier[0],
                earlier_size=earlier[1] if len(earlier) > 1 else None,
            )
        producer.begin_transaction()
        count, size = _amount(_sent(producer, batches))
        mark = OffsetAndMetadata(once.version + 1, f"{count} {size}")
        cluster.mark(producer, name, mark)
        return PartitionWrite(once, partition, count, producer.hand_over(), size=size)


def _sent(producer: RowProducer, batches: Iterable[RowBatch]) -> Iterator[RowBatch]:
    for batch in batches:
        for rows in batch.records():
            producer.send_rows(rows)
        yield batch


def _amount(batches: Iterable[RowBatch]) -> tuple[int, int]:
    """Return the number of rows and their size in bytes."""
    count = size = 0
    for batch in batches:
        count += batch.count
        size += batch.size
    return count, size


def commit_batch(
    cluster: Cluster,
    writes: Sequence[PartitionWrite],
    *,
    streaming: bool,
    fail_on_lost_marker: bool = True,
) -> None:
    """Commit the rows of all tasks of one batch.

    Args:
        cluster: The cluster.
        writes: The reports of the tasks.
        streaming: Whether batch numbers start at 0, so that every later batch must have a claim before it.
        fail_on_lost_marker: Whether a missing claim or marker is an error.

    Raises:
        HeadraceError: No part, or only some parts of the batch are committed. The batch must be repeated.
    """
    once = writes[0].once
    with cluster.new_producer(once.claim) as producer:
        producer.init_transactions()
        offset = cluster.marker(once.claim)
        claim = offset or cluster.kept_claim(once.claim)
        claimed = claim is not None and claim.offset > once.version
        if claim is not None and claim.offset > once.version + 1:
            raise _too_old(once, claim.offset - 1)
        divided = BatchClaim.parse(claim.metadata) if claim is not None and claimed else None
        if fail_on_lost_marker:
            _check_known(writes, claim, divided, forgotten=offset is None, streaming=streaming)
        if divided is None:
            _claim(cluster, producer, once, str(BatchClaim.of(writes)))
        elif not _is_divided_as(divided, writes):
            _check_other_division(cluster, producer, divided, writes)
            return
    failures = cluster.end(_open(writes), committed=True)
    for transaction, error in failures.items():
        raise TransactionError(
            f"batch {once.version} is not committed as a whole, {len(failures)} of {len(writes)} partitions are "
            f"missing: {transaction.transactional_id}: {error}. It is repeated when the query is started again, and "
            "committed partitions are not written twice. If the batch took longer than kafka.transaction.timeout.ms, "
            "raise that (brokers allow transaction.max.timeout.ms), or make batches smaller (maxOffsetsPerTrigger)"
        ) from error


def _check_known(
    writes: Sequence[PartitionWrite],
    claim: OffsetAndMetadata | None,
    divided: BatchClaim | None,
    *,
    forgotten: bool,
    streaming: bool,
) -> None:
    """Check that claim and markers show which parts of the batch are committed.

    Raises:
        HeadraceError: Parts of the batch may be committed, but the claim or the markers are gone.
    """
    once = writes[0].once
    if claim is None:
        known = not (streaming and once.version) and not any(each.repeated for each in writes)
    elif divided is None:
        known = not any(
            each.repeated for each in writes
        )  # no part of a batch is committed before its claim
    else:
        at_ms = _now_ms() if divided.at_ms is None else divided.at_ms
        old = forgotten or _now_ms() - at_ms > MARKERS_KEPT_MS
        known = not old or all(each.repeated or not each.records for each in writes)
    if not known:
        raise HeadraceError(
            f"the progress of {once.name} is not known any more: brokers delete markers when a query was stopped for "
            "longer than offsets.retention.minutes (7 days), or its marker or claim topic was deleted, or the query "
            f"was not exactly once before. Parts of batch {once.version} may have been written. If not, or if "
            "duplicates do no harm, start the query once with failOnLostMarker=false"
        )


def _is_divided_as(claim: BatchClaim, writes: Sequence[PartitionWrite]) -> bool:
    """Return whether a repeated batch has the same number and size of rows in the same partitions."""
    alike = all(
        each.earlier_records in {None, each.records} and each.earlier_size in {None, each.size}
        for each in writes
    )
    return alike and claim == BatchClaim.of(writes)


def _check_other_division(
    cluster: Cluster, producer: RowProducer, claim: BatchClaim, writes: Sequence[PartitionWrite]
) -> None:
    """Find out which parts are committed of a batch that is repeated with another division. Return if all are.

    If no part is committed, the claim is withdrawn, so that the next attempt may have any division.

    Raises:
        HeadraceError: Only some parts, or none, are committed.
    """
    once, now = writes[0].once, BatchClaim.of(writes)
    abort_batch(cluster, writes)
    committed = sum(_is_committed(cluster, once, number) for number in range(claim.partitions))
    if committed == claim.written and claim.records == now.records:
        return
    was = (
        f"batch {once.version} of {once.name} was first written as {claim.partitions} partitions of {claim.records} "
        f"rows; its repetition has {now.partitions} of {now.records}, or other rows"
    )
    if not committed:
        _claim(cluster, producer, replace(once, version=once.version - 1))
        raise TransactionError(f"{was}. No part of it was committed: start the query again")
    raise HeadraceError(
        f"{was}. {committed} partitions were committed. Until this batch is done, start the query as before: the same "
        "query, spark.sql.shuffle.partitions, the source's maxTasks, number of cores. Or start it once with "
        "delivery=at_least_once, which writes all rows of the batch again"
    )


def _is_committed(cluster: Cluster, once: WriteId, partition: int) -> bool:
    """Return whether a partition of a batch is committed.

    If not, its attempts are fenced and cannot commit it later.
    """
    name = once.part(partition)
    with cluster.new_producer(name) as producer:
        producer.init_transactions()
        marker = cluster.marker(name)
        return marker is not None and marker.offset > once.version


def _claim(cluster: Cluster, producer: RowProducer, once: WriteId, divided: str = "") -> None:
    producer.begin_transaction()
    cluster.claim(producer, once.claim, OffsetAndMetadata(once.version + 1, divided))
    producer.commit_transaction()


def _too_old(once: WriteId, newest: int) -> HeadraceError:
    return HeadraceError(
        f"batch {once.version} of {once.name} comes after batch {newest} was written: a checkpoint was set back, or "
        "txnVersion does not grow. Its rows may have been written already. To write them now, start with a new "
        "checkpoint, or a new txnAppId"
    )


def abort_batch(cluster: Cluster, writes: Sequence[PartitionWrite]) -> None:
    """Abort the open transactions of tasks. A transaction that cannot be aborted here times out later."""
    for transaction, error in cluster.end(_open(writes), committed=False).items():
        _log.info("%s is not aborted: %s", transaction.transactional_id, error)


def _open(writes: Sequence[PartitionWrite]) -> list[TaskTransaction]:
    return [write.transaction for write in writes if write.transaction is not None]
