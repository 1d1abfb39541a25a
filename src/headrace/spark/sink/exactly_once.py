"""Exactly once: a transaction for each of Spark's partitions, all of them ended by the driver.

A *batch* is one of a stream's micro-batches, or one batch write with `txnVersion`. It may be tried several times, by
tasks that are repeated and by drivers that come after each other; one that was believed dead may go on. Each of its
partitions has a transactional id of its own, `NAME-PARTITION`.

A task (`write_partition`):
1. takes over its id. From then on no attempt before it can write or commit, and what that one left open is aborted;
2. reads the partition's marker, an offset of the group that is called like the id. Only now, and waiting for offsets
   that are being committed: what was committed before the take-over is there, and nothing can be after it. If it says
   that this batch is written, the rows are counted and not written;
3. writes its rows, commits the marker with them (batch + 1, and the number of rows), and hands the transaction, which
   is still open, to the driver.

The driver (`commit_batch`), when Spark has accepted one attempt of each task:
1. takes over the id `NAME`, and reads the batch's claim, an offset of the group `NAME`;
2. if another number of partitions has claimed this batch, or a later batch has, it refuses;
3. claims the batch: batch + 1, and the number of partitions, in a transaction of `NAME`;
4. commits the tasks' transactions.

A batch's claim is written once, for it is read and written under the id `NAME`; and nothing of a batch is committed before.
So all that is ever committed of a batch is divided alike, and then each part has one id, under which one attempt wins.
Whatever fails in between, the batch is tried again: parts that are committed have their marker, the others have nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.clients.flows.offsets import OffsetAndMetadata
from headrace.clients.producer.many import Rows
from headrace.errors import HeadraceError, TransactionError
from headrace.spark.options.sink import Once
from headrace.spark.sink.cluster import Cluster
from headrace.spark.sink.producer import OpenTransaction, RowProducer

_log: Final = logging.getLogger("headrace.spark")


@dataclass(frozen=True)
class PartitionWrite:
    """What a task tells the driver."""

    once: Once
    partition: int
    records: int
    transaction: OpenTransaction | None = None
    """With the rows; None if there are none, or they were written by an earlier attempt at the batch."""
    repeated: bool = False
    """Whether they were written by an earlier attempt at the batch."""


RowBatches = Iterator[tuple[int, Callable[[], Iterable[Rows]]]]
"""Number of rows, and what makes them records."""


def write_partition(
    cluster: Cluster, once: Once, partition: int, batches: RowBatches
) -> PartitionWrite:
    """Write a task's rows in a transaction that is left open; without rows there is none.

    Raises:
        HeadraceError: They cannot be written, and the transaction is aborted.
    """
    for count, records in batches:
        if count:
            return _write_rows(cluster, once, partition, (count, records), batches)
    return PartitionWrite(once, partition, 0)


def _write_rows(
    cluster: Cluster,
    once: Once,
    partition: int,
    first: tuple[int, Callable[[], Iterable[Rows]]],
    rest: RowBatches,
) -> PartitionWrite:
    name = f"{once.name}-{partition}"
    with cluster.new_producer(name) as producer:
        producer.init_transactions()
        marker = cluster.marker(name)
        if marker is not None and marker.offset > once.version:
            if marker.offset > once.version + 1:
                raise _too_old(once, marker.offset - 1)
            rows = first[0] + sum(count for count, _ in rest)
            _check_rows(cluster, once, partition, marker, rows)
            return PartitionWrite(once, partition, 0, repeated=True)
        producer.begin_transaction()
        written = _send(producer, *first)
        for count, records in rest:
            written += _send(producer, count, records)
        cluster.mark(producer, name, OffsetAndMetadata(once.version + 1, str(written)))
        return PartitionWrite(once, partition, written, producer.hand_over())


def _send(producer: RowProducer, count: int, records: Callable[[], Iterable[Rows]]) -> int:
    for rows in records():
        producer.send_rows(rows)
    return count


def _check_rows(
    cluster: Cluster, once: Once, partition: int, marker: OffsetAndMetadata, rows: int
) -> None:
    """Refuse rows that are not those that were written, as far as their number tells."""
    if marker.metadata not in {"", str(rows)}:
        claim = cluster.marker(once.name)
        count = "" if claim is None else claim.metadata
        now = f"has {rows} rows in partition {partition} instead of {marker.metadata}"
        raise _changed(once, count, now)


def commit_batch(
    cluster: Cluster,
    writes: Sequence[PartitionWrite],
    *,
    streaming: bool,
    fail_on_lost_marker: bool = True,
) -> None:
    """Commit what tasks have written, all of one batch.

    Args:
        cluster: Where to.
        writes: What each of the tasks has told.
        streaming: Whether batches are counted from 0, so that after that something is known of earlier ones.
        fail_on_lost_marker: Whether it is an error if there is not.

    Raises:
        HeadraceError: Nothing was committed, or not all of it; the batch is to be repeated.
    """
    once = writes[0].once
    with cluster.new_producer(once.name) as producer:
        producer.init_transactions()
        claim = cluster.marker(once.name)
        if claim is not None:
            _check_claim(once, claim, writes)
        elif fail_on_lost_marker:
            _check_beginning(once, writes, streaming=streaming)
        if claim is None or claim.offset <= once.version:
            producer.begin_transaction()
            mine = OffsetAndMetadata(once.version + 1, str(len(writes)))
            cluster.mark(producer, once.name, mine)
            producer.commit_transaction()
    failures = cluster.end(_open(writes), committed=True)
    for transaction, error in failures.items():
        raise TransactionError(
            f"batch {once.version} is not committed as a whole, {len(failures)} of {len(writes)} partitions are "
            f"missing: {transaction.transactional_id}: {error}. It is repeated when the query is started again, and "
            "what is committed is not written twice. If it took longer than kafka.transaction.timeout.ms, raise that "
            "(brokers allow transaction.max.timeout.ms), or make batches smaller (maxOffsetsPerTrigger)"
        ) from error


def _check_beginning(once: Once, writes: Sequence[PartitionWrite], *, streaming: bool) -> None:
    if (streaming and once.version) or any(write.repeated for write in writes):
        raise HeadraceError(
            f"nothing is known any more of how far {once.name} is: brokers forget it when a query has rested for "
            "longer than offsets.retention.minutes (7 days), or its marker topic was deleted, or the query was not "
            f"exactly once before. Whether batch {once.version} was written in part cannot be told. If it was not, "
            "or if that does no harm, start the query once with failOnLostMarker=false"
        )


def _check_claim(once: Once, claim: OffsetAndMetadata, writes: Sequence[PartitionWrite]) -> None:
    if claim.offset > once.version + 1:
        raise _too_old(once, claim.offset - 1)
    if claim.offset == once.version + 1 and claim.metadata != str(len(writes)):
        raise _changed(once, claim.metadata, f"has {len(writes)}")
    if claim.offset <= once.version and any(write.repeated for write in writes):
        raise HeadraceError(
            f"partitions of batch {once.version} of {once.name} are written, and its claim says that none is: use one "
            "markerTopic and one kafka.transactional.id for all starts of a query"
        )


def _changed(once: Once, count: str, now: str) -> HeadraceError:
    return HeadraceError(
        f"batch {once.version} of {once.name} was committed, perhaps in part, as {count or 'other'} partitions, and now "
        f"that it is repeated it {now}. Start it with what it had until this batch is done: the same query, "
        "spark.sql.shuffle.partitions, number of cores, minPartitions. Or start it once with delivery=at_least_once, "
        "which writes all rows of the batch again"
    )


def _too_old(once: Once, newest: int) -> HeadraceError:
    return HeadraceError(
        f"batch {once.version} of {once.name} is to be written after batch {newest} was: a checkpoint was set back, or "
        "txnVersion does not grow. Whether its rows were written cannot be told; if they are to be, start with a new "
        "checkpoint, or a new txnAppId"
    )


def abort_batch(cluster: Cluster, writes: Sequence[PartitionWrite]) -> None:
    """Abort what tasks have written, as far as it is not committed; what cannot be is aborted when its time is up."""
    for transaction, error in cluster.end(_open(writes), committed=False).items():
        _log.info("%s is not aborted: %s", transaction.transactional_id, error)


def _open(writes: Sequence[PartitionWrite]) -> list[OpenTransaction]:
    return [write.transaction for write in writes if write.transaction is not None]
